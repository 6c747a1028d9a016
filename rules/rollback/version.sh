#!/usr/bin/env bash
# Go back to a verified checkpoint on another verl version: the third rung of the ladder.
#
# The version gets an environment of its own beside the current one, which is never changed. It is built, and the
# checkpoint is loaded there, before the trainer is stopped. The supervisor runs this file when the exporter commands it,
# and an operator may run it by hand: with the exporter down, and also with the supervisor dead. See --help.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
[[ -e $here/lib.sh ]] || here=${VERL_SENTINEL_ROLLBACK_SCRIPTS:-$here}
# shellcheck source=rules/rollback/lib.sh
source "$here/lib.sh"

usage() {
    cat <<'TEXT'
Usage: version.sh --state-dir DIR --version X.Y.Z [options]

  --version X.Y.Z       the verl version to run on
  --from PATH           where to install it from: a wheel, a folder of wheels or with an unpacked verl, a source tree
                        (default: pip's index)
TEXT
    usage_common
    cat <<'TEXT'

The steps, each of which is also a command of its own:
  1. build    verl-sentinel-train environments build   an environment of its own, where there is none yet
  2. choose   verl-sentinel-train checkpoints choose
  3. check    verl-sentinel-train environments check   that version, our plugin and the checkpoint load there
  4. stop     verl-sentinel-train stop --for-rollback
  5. resume   verl-sentinel-train resume --verl-version …
TEXT
    usage_codes
}

own_options=(--version --from)
parse_arguments "$@"
version="" from=()
for ((i = 0; i < ${#given[@]}; i += 2)); do
    case ${given[i]} in
        --version) version=${given[i + 1]} ;;
        --from) from=(--from="${given[i + 1]}") ;;
    esac
done
[[ -n $version ]] || refuse "--version is missing."
changes+=(--verl-version="$version")

say "step 1 of 5: build an environment for verl $version"
build_environment "$version"

say "step 2 of 5: choose the newest verified checkpoint ${limits[*]:-}"
choose_target

say "step 3 of 5: check that it loads there"
check_environment "$version"
show_changes
stop_if_dry_run

say "step 4 of 5: stop the trainer"
stop_trainer

say "step 5 of 5: start from $target on verl $version"
start_trainer
