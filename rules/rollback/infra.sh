#!/usr/bin/env bash
# Go back to a verified checkpoint without a machine, or a GPU, that is at fault: the fourth rung of the ladder.
#
# A trainer on this machine alone no longer sees the GPU, where a spare one is left; one that joins a Ray cluster puts no
# worker on the machine; a Slurm job is submitted with --exclude. The supervisor runs this file when the exporter commands
# it, and an operator may run it by hand: with the exporter down, and also with the supervisor dead. See --help.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
[[ -e $here/lib.sh ]] || here=${VERL_SENTINEL_ROLLBACK_SCRIPTS:-$here}
# shellcheck source=rules/rollback/lib.sh
source "$here/lib.sh"

usage() {
    cat <<'TEXT'
Usage: infra.sh --state-dir DIR --exclude NODE[/GPU] [options]

  --exclude NODE[/GPU]  the machine (host name, address or Ray node id), or one GPU of it (index or UUID); may be
                        repeated. The number of GPUs of a run cannot change, so without a spare one this is refused.
TEXT
    usage_common
    cat <<'TEXT'

The steps, each of which is also a command of its own:
  1. choose   verl-sentinel-train checkpoints choose
  2. check    verl-sentinel-train changes              refused here if too few GPUs would be left
  3. stop     verl-sentinel-train stop --for-rollback
  4. resume   verl-sentinel-train resume --exclude …
TEXT
    usage_codes
}

own_options=(--exclude)
parse_arguments "$@"
((${#given[@]})) || refuse "--exclude is missing."
for ((i = 1; i < ${#given[@]}; i += 2)); do
    changes+=(--exclude="${given[i]}")
done

say "step 1 of 4: choose the newest verified checkpoint ${limits[*]:-}"
choose_target

say "step 2 of 4: check that the run can do without"
show_changes
stop_if_dry_run

say "step 3 of 4: stop the trainer"
stop_trainer

say "step 4 of 4: start from $target"
start_trainer
