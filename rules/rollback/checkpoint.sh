#!/usr/bin/env bash
# Roll a run back to its newest verified checkpoint: choose, stop, resume. The first rung of the ladder.
#
# The supervisor runs this file when the exporter commands a rollback, and an operator may run it by hand: with the
# exporter down, and also with the supervisor dead. Edit a copy and give its folder to the supervisor with
# --rollback-scripts, or edit this one; what stands here is what happens. See --help.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
[[ -e $here/lib.sh ]] || here=${VERL_SENTINEL_ROLLBACK_SCRIPTS:-$here}
# shellcheck source=rules/rollback/lib.sh
source "$here/lib.sh"

usage() {
    cat <<'TEXT'
Usage: checkpoint.sh --state-dir DIR [options]

TEXT
    usage_common
    cat <<'TEXT'

The steps, each of which is also a command of its own:
  1. choose   verl-sentinel-train checkpoints choose   newest checkpoint whose manifest matches every byte
              verl-sentinel-train changes              what changes, if anything does; refused here if it cannot
  2. stop     verl-sentinel-train stop --for-rollback  clean, then SIGTERM, then SIGKILL; nothing is left behind
              verl-sentinel-train stop --save-first    the same, with a save at the clean end; choose again then
  3. resume   verl-sentinel-train resume               newer checkpoints are marked as left behind
TEXT
    usage_codes
}

own_options=()
parse_arguments "$@"

say "step 1 of 3: choose the newest verified checkpoint ${limits[*]:-}"
choose_target
show_changes
stop_if_dry_run

say "step 2 of 3: stop the trainer"
stop_trainer

say "step 3 of 3: start from $target"
start_trainer
