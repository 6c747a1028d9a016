#!/usr/bin/env bash
# Roll a run back to its newest verified checkpoint: choose, stop, resume.
#
# The supervisor runs this file when the exporter commands a rollback, and an operator may run it by hand: with the
# exporter down, and also with the supervisor dead. Edit a copy and give it to the supervisor with --rollback-script,
# or edit this one; what stands here is what happens. See --help.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: checkpoint.sh --state-dir DIR [options]

  --state-dir DIR       the run's state directory (verl-sentinel-train prints it at the start of a run)
  --target-step N       begin the search at step N; an older checkpoint is taken where that one does not verify
  --not-after-step N    take nothing that was saved after step N (the step before the fault began)
  --request-id ID       the same id again has the effect of once (default: made up)
  --reason TEXT         for the record; naming a detector such as stalled_phase skips the clean stop
  --start-supervisor    if the supervisor is dead, start a new one in the background
  --dry-run             choose and verify, but stop and start nothing
  --help                this text

The steps, each of which is also a command of its own:
  1. choose   verl-sentinel-train checkpoints choose   newest checkpoint whose manifest matches every byte
  2. stop     verl-sentinel-train stop --for-rollback  clean, then SIGTERM, then SIGKILL; nothing is left behind
  3. resume   verl-sentinel-train resume               newer checkpoints are marked as left behind

The interpreter is $VERL_SENTINEL_PYTHON where that is set, else verl-sentinel-train is looked for on the PATH.

Exit codes:
  0  the trainer was started from the target (or, with --dry-run, there is a target)
  2  the arguments cannot be used; nothing was done
  4  no checkpoint may be restored; the trainer is stopped, and stays so
  5  the trainer could not be stopped
  6  the trainer could not be started from the target, and is stopped; or the run or its checkpoints cannot be read,
     and nothing was done (the last line says which)
  7  the target is recorded, but no supervisor runs; the command that starts one is printed
  8  the supervisor refused: another command or attempt came in between
TEXT
}

say() { printf 'rollback: %s\n' "$*"; }

refuse() {
    printf 'rollback: %s See --help.\n' "$*" >&2
    exit 2
}

tool() {
    if [[ -n ${VERL_SENTINEL_PYTHON:-} ]]; then
        "$VERL_SENTINEL_PYTHON" -m trainer_entry.cli "$@"
    else
        verl-sentinel-train "$@"
    fi
}

state_dir="" reason="" dry_run=no
request_id="hand-$(date +%s)-$$"
limits=() start=()

while (($#)); do
    case $1 in
        --state-dir | --target-step | --not-after-step | --request-id | --reason)
            (($# >= 2)) || refuse "$1 needs a value."
            case $1 in
                --state-dir) state_dir=$2 ;;
                --request-id) request_id=$2 ;;
                --reason) reason=$2 ;;
                *)
                    [[ $2 =~ ^[0-9]{1,18}$ ]] || refuse "$1 needs a step, a whole number from 0, not '$2'."
                    limits+=("$1" "$2")
                    ;;
            esac
            shift 2
            ;;
        --start-supervisor)
            start=(--start-supervisor)
            shift
            ;;
        --dry-run)
            dry_run=yes
            shift
            ;;
        --help | -h)
            usage
            exit 0
            ;;
        *) refuse "'$1' is not an option." ;;
    esac
done

[[ -n $state_dir ]] || refuse "--state-dir is missing."
[[ -d $state_dir ]] || refuse "The state directory '$state_dir' does not exist."
[[ -n $request_id && ${#request_id} -le 200 ]] || refuse "--request-id needs 1 to 200 characters."
if [[ -z ${VERL_SENTINEL_PYTHON:-} ]] && ! command -v verl-sentinel-train >/dev/null; then
    refuse "verl-sentinel-train is not on the PATH; set VERL_SENTINEL_PYTHON to the interpreter that has it."
fi

# "=" keeps a value that begins with a dash from being read as an option.
run=(--state-dir="$state_dir")
request=(--request-id="$request_id" --reason="$reason")

stop_trainer() {
    local code=0
    tool stop --for-rollback "${run[@]}" "${request[@]}" || code=$?
    if ((code != 0)); then
        say "the trainer was not stopped (code $code)"
        ((code == 8)) && exit 8
        exit 5
    fi
}

choose_target() {
    local code=0
    say "step 1 of 3: choose the newest verified checkpoint ${limits[*]:-}"
    target=$(tool checkpoints choose "${run[@]}" ${limits[@]+"${limits[@]}"}) || code=$?
    if ((code == 4)); then
        say "there is no checkpoint to go back to"
        if [[ $dry_run == no ]]; then
            say "step 2 of 3: stop the trainer"
            stop_trainer
            say "the trainer is stopped and stays so; nothing is started from scratch"
        fi
        exit 4
    elif ((code != 0)); then
        say "choosing failed (code $code); nothing was done"
        exit "$code"
    fi
    say "the target is $target"
}

target=""
choose_target
if [[ $dry_run == yes ]]; then
    say "a dry run: nothing is stopped or started"
    exit 0
fi

say "step 2 of 3: stop the trainer"
stop_trainer

say "step 3 of 3: start from $target"
code=0
tool resume "${run[@]}" "${request[@]}" --target="$target" --depth=sizes ${start[@]+"${start[@]}"} || code=$?
if ((code == 6)); then
    # A save while the trainer was being stopped may have made verl's own retention delete the target.
    say "that did not start; choosing once more"
    choose_target
    code=0
    tool resume "${run[@]}" "${request[@]}" --target="$target" --depth=sizes ${start[@]+"${start[@]}"} || code=$?
fi
case $code in
    0) say "the trainer was started from $target" ;;
    7) say "the trainer is stopped; start it with the command above" ;;
    *) say "the trainer was not started (code $code)" ;;
esac
exit "$code"
