#!/usr/bin/env bash
# One shot: put a run back on another verl version. Build it beside the current one, check that the newest verified
# checkpoint loads there, stop, restore, restart, and see that the trainer runs on it.
#
# For a person at night: works with the exporter down, and with the supervisor alive or dead. See --help.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
[[ -e $here/lib.sh ]] || here=${VERL_SENTINEL_ROLLBACK_SCRIPTS:-$here}
# shellcheck source=rules/rollback/lib.sh
source "$here/lib.sh"

usage() {
    cat <<'TEXT'
Usage: rollback_verl.sh VERSION --state-dir DIR [options]

  VERSION               the verl version to run on, such as 0.9.0
  --from PATH           where to install it from: a wheel, a folder of wheels or with an unpacked verl, a source tree
                        (default: pip's index)
  --wait-seconds S      how long to wait until the trainer runs on it (default: 600; 0 does not wait)
TEXT
    usage_common
    cat <<'TEXT'

The steps: build, choose, check, stop, restart, verify. A supervisor that is dead is replaced by a new one.
Until the checkpoint has loaded under the new version, nothing is stopped; run it again if it was interrupted.
TEXT
    usage_codes
    cat <<'TEXT'
  11 the trainer was started, but does not run on that version (after --wait-seconds)
TEXT
}

version=""
if (($#)) && [[ $1 != -* ]]; then
    version=$1
    shift
fi
own_options=(--from --wait-seconds)
parse_arguments "$@"
from=() wait_seconds=600
for ((i = 0; i < ${#given[@]}; i += 2)); do
    case ${given[i]} in
        --from) from=(--from="${given[i + 1]}") ;;
        --wait-seconds) wait_seconds=${given[i + 1]} ;;
    esac
done
[[ -n $version ]] || refuse "VERSION is missing; it is the first argument."
[[ $wait_seconds =~ ^[0-9]{1,5}$ ]] || refuse "--wait-seconds needs a whole number, not '$wait_seconds'."
changes+=(--verl-version="$version")
start=(--start-supervisor)

say "step 1 of 6: build an environment for verl $version"
build_environment "$version"

say "step 2 of 6: choose the newest verified checkpoint ${limits[*]:-}"
choose_target

say "step 3 of 6: check that it loads there"
check_environment "$version"
show_changes
stop_if_dry_run

say "step 4 of 6: stop the trainer"
stop_trainer

say "step 5 of 6: start from $target on verl $version"
start_trainer

say "step 6 of 6: see that the trainer runs on verl $version"
if ((wait_seconds == 0)); then
    say "not waited for; verl-sentinel-train status shows it"
    exit 0
fi
if ! tool status "${run[@]}" --wait-for="verl_version" --wait-seconds="$wait_seconds"; then
    say "the trainer does not run on verl $version; see its output in $state_dir/attempts"
    exit 11
fi
say "the run is back from $target, on verl $version"
