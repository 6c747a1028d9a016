#!/usr/bin/env bash
# Go back to a verified checkpoint with another configuration: the second rung of the ladder, for a fault that came back
# after a rollback of the checkpoint alone.
#
# The supervisor runs this file when the exporter commands it, and an operator may run it by hand: with the exporter
# down, and also with the supervisor dead. See --help.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
[[ -e $here/lib.sh ]] || here=${VERL_SENTINEL_ROLLBACK_SCRIPTS:-$here}
# shellcheck source=rules/rollback/lib.sh
source "$here/lib.sh"

usage() {
    cat <<'TEXT'
Usage: config.sh --state-dir DIR (--set KEY=VALUE | --remove KEY | --from-manifest | --from-git …) [options]

  --from-manifest       the settings under which the target was saved, by its manifest
  --from-git REPO BRANCH FILE
                        the settings in a file (YAML, JSON, or key=value lines) at the tip of a branch
TEXT
    usage_common
    cat <<'TEXT'

The steps, each of which is also a command of its own:
  1. choose   verl-sentinel-train checkpoints choose
  2. compare  verl-sentinel-train changes              old and new value of each setting; refused here if it cannot be
  3. stop     verl-sentinel-train stop --for-rollback
  4. resume   verl-sentinel-train resume --set …       a learning rate that changed is put into the restored optimizer
TEXT
    usage_codes
}

own_options=(--from-manifest:0 --from-git:3)
parse_arguments "$@"
changes+=(${given[@]+"${given[@]}"})
((${#changes[@]})) || refuse "It is not said what to change; give --set, --remove, --from-manifest or --from-git."

say "step 1 of 4: choose the newest verified checkpoint ${limits[*]:-}"
choose_target

say "step 2 of 4: compare the configurations"
show_changes
stop_if_dry_run

say "step 3 of 4: stop the trainer"
stop_trainer

say "step 4 of 4: start from $target with what changed"
start_trainer
