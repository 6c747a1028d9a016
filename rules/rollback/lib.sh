# shellcheck shell=bash
# The steps that the rollback scripts share: arguments, choosing, showing changes, stopping, starting.
#
# Sourced by checkpoint.sh, config.sh, version.sh, infra.sh and rollback_verl.sh, which say what is done in which order.
# Everything is passed on as words; nothing that comes from outside is ever evaluated.
set -euo pipefail

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

# What every script takes, and the exit codes of all of them: the middle and the end of each --help.
usage_common() {
    cat <<'TEXT'
  --state-dir DIR       the run's state directory (verl-sentinel-train prints it at the start of a run)
  --target-step N       begin the search at step N; an older checkpoint is taken where that one does not verify
  --not-after-step N    take nothing that was saved after step N (the step before the fault began)
  --save-first          the fault is in the process, not in what it learned: ask for a clean end with a save, and go on
                        from there; where it does not end cleanly, the limits above count
  --skip-steps N        leave out the N training batches that follow the target
  --set KEY=VALUE       a setting of the trainer, such as actor_rollout_ref.actor.optim.lr=5e-7 (may be repeated)
  --remove KEY          take a setting out (may be repeated)
  --forget-changes      drop what earlier rungs have changed
  --request-id ID       the same id again has the effect of once (default: made up)
  --reason TEXT         for the record; naming a detector such as stalled_phase skips the clean stop
  --start-supervisor    if the supervisor is dead, start a new one in the background
  --dry-run             choose, verify and show what would change, but stop and start nothing
  --help                this text
TEXT
}

usage_codes() {
    cat <<'TEXT'

The interpreter is $VERL_SENTINEL_PYTHON where that is set, else verl-sentinel-train is looked for on the PATH. What is
changed stays for later attempts too, until it is changed again (verl-sentinel-train changes shows it).

Exit codes:
  0  the trainer was started from the target (or, with --dry-run, there is a target)
  2  the arguments cannot be used; nothing was done
  4  no checkpoint may be restored; the trainer is stopped, and stays so
  5  the trainer could not be stopped
  6  the trainer could not be started from the target, and is stopped; or the run or its checkpoints cannot be read,
     and nothing was done (the last line says which)
  7  the target is recorded, but no supervisor runs; the command that starts one is printed
  8  the supervisor refused: another command or attempt came in between
  9  what is to be changed cannot be changed, or no checkpoint fits it; nothing was stopped
TEXT
}

# A script sets own_options to the names of its own that take a value (NAME), or another number of them (NAME:3); what
# was given of them is in given=(NAME VALUE ...). Everything else is the same for all.
own_options=() from=()
state_dir="" reason="" dry_run=no save_first=no
request_id="hand-$(date +%s)-$$"
limits=() start=() changes=() given=() target=""
nothing_done="nothing was done"
done_so_far=$nothing_done

takes_values() {
    local name
    for name in ${own_options[@]+"${own_options[@]}"}; do
        [[ ${name%%:*} == "$1" ]] || continue
        values=1
        [[ $name == *:* ]] && values=${name##*:}
        return 0
    done
    return 1
}

parse_arguments() {
    local values=1
    while (($#)); do
        # --name=value is --name value.
        if [[ $1 == --*=* ]]; then
            set -- "${1%%=*}" "${1#*=}" "${@:2}"
        fi
        if takes_values "$1"; then
            (($# > values)) || refuse "$1 needs $([[ $values == 1 ]] && echo "a value" || echo "$values values")."
            given+=("$1" "${@:2:values}")
            shift $((values + 1))
            continue
        fi
        case $1 in
            --state-dir | --target-step | --not-after-step | --request-id | --reason | --skip-steps | --set | --remove)
                (($# >= 2)) || refuse "$1 needs a value."
                case $1 in
                    --state-dir) state_dir=$2 ;;
                    --request-id) request_id=$2 ;;
                    --reason) reason=$2 ;;
                    --set | --remove) changes+=("$1=$2") ;;
                    --skip-steps)
                        [[ $2 =~ ^[0-9]{1,7}$ ]] || refuse "$1 needs a number of batches, not '$2'."
                        changes+=("$1=$2")
                        ;;
                    *)
                        [[ $2 =~ ^[0-9]{1,18}$ ]] || refuse "$1 needs a step, a whole number from 0, not '$2'."
                        limits+=("$1" "$2")
                        ;;
                esac
                shift 2
                ;;
            --version | --exclude)
                # A rung below may be told of what a rung above has decided; it is carried on.
                (($# >= 2)) || refuse "$1 needs a value."
                changes+=("${1/#--version/--verl-version}=$2")
                shift 2
                ;;
            --save-first) save_first=yes && shift ;;
            --forget-changes) changes+=("$1") && shift ;;
            --start-supervisor) start=("$1") && shift ;;
            --dry-run) dry_run=yes && shift ;;
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
}

# Sets target. Where nothing may be restored, the trainer is stopped all the same: it trains on what is spoilt.
choose_target() {
    local code=0 change settings=()
    # With these the start may be one of another number of ranks, for which another checkpoint is right, or none.
    for change in ${changes[@]+"${changes[@]}"}; do
        case $change in
            --set=trainer.nnodes=* | --set=trainer.n_gpus_per_node=* | --forget-changes) settings+=("$change") ;;
        esac
    done
    target=$(tool checkpoints choose "${run[@]}" ${limits[@]+"${limits[@]}"} ${settings[@]+"${settings[@]}"}) || code=$?
    if ((code == 4 && ${#settings[@]})) &&
        tool checkpoints choose "${run[@]}" ${limits[@]+"${limits[@]}"} >/dev/null 2>&1; then
        say "no checkpoint fits what is to be changed; $done_so_far"
        [[ $done_so_far == "$nothing_done" ]] && exit 9
        exit 6
    elif ((code == 4)) && [[ $save_first == yes && $dry_run == no ]]; then
        say "there is no checkpoint yet; the clean end is to save one"
        target=""
        return 0
    elif ((code == 4)); then
        say "there is no checkpoint to go back to"
        if [[ $dry_run == no ]]; then
            say "stop the trainer"
            stop_trainer
            say "the trainer is stopped and stays so; nothing is started from scratch"
        fi
        exit 4
    elif ((code != 0)); then
        say "choosing failed (code $code); $done_so_far"
        exit "$code"
    fi
    say "the target is $target"
}

# Shows old and new value of each setting, and refuses what cannot be changed, before anything is stopped.
show_changes() {
    local code=0 shown
    ((${#changes[@]})) || return 0
    shown=$(tool changes "${run[@]}" ${target:+--target="$target"} "${changes[@]}") || code=$?
    if ((code != 0)); then
        say "this cannot be changed (code $code); nothing was stopped"
        exit "$code"
    fi
    say "what changes:"
    while IFS= read -r line; do say "  $line"; done <<<"$shown"
}

stop_if_dry_run() {
    if [[ $dry_run == yes ]]; then
        say "a dry run: nothing is stopped or started"
        exit 0
    fi
}

stop_trainer() {
    local code=0 how=(--for-rollback)
    [[ $save_first == yes ]] && how=(--save-first)
    tool stop "${how[@]}" "${run[@]}" "${request[@]}" ${target:+--target="$target"} || code=$?
    if ((code == 10)); then
        say "it did not end cleanly, so nothing was saved; going back further, as the limits say"
    elif ((code != 0)); then
        say "the trainer was not stopped (code $code)"
        # A killed program is no refusal: whoever runs this script may run it once more.
        ((code == 8 || code > 128)) && exit "$code"
        exit 5
    fi
    done_so_far="the trainer is stopped, and was not started"
    if [[ $save_first == yes ]]; then
        save_first=no
        # What a clean end has saved is newer than any limit, and is what is wanted.
        ((code == 10)) || limits=()
        choose_target
    fi
}

# Starts from the target with the changes; the script's exit code is how that went.
start_trainer() {
    local code=0
    resume_from_target || code=$?
    if ((code == 6)); then
        # A save while the trainer was being stopped may have made verl's own retention delete the target.
        say "that did not start; choosing once more"
        choose_target
        code=0
        resume_from_target || code=$?
    fi
    local wait
    for wait in 4 8 16; do
        ((code == 6)) || break
        # A disk that is full for a while, or a mount that is away: seconds, and a run that stands still all night.
        say "that did not start either; once more in $wait s"
        sleep "$wait"
        code=0
        resume_from_target || code=$?
    done
    if ((code == 9)); then
        say "what is to be changed could be changed before the stop, and cannot any more"
        code=6
    fi
    case $code in
        0) say "the trainer was started from $target" ;;
        7) say "the trainer is stopped; start it with the command above" ;;
        *) say "the trainer was not started (code $code)" ;;
    esac
    return "$code"
}

resume_from_target() {
    tool resume "${run[@]}" "${request[@]}" --target="$target" --depth=sizes \
        ${changes[@]+"${changes[@]}"} ${start[@]+"${start[@]}"}
}

# For a version: from=(--from=PATH) may say where to install it from.
build_environment() {
    local code=0
    tool environments build "$1" "${run[@]}" ${from[@]+"${from[@]}"} || code=$?
    if ((code != 0)); then
        say "the environment could not be built (code $code); nothing was stopped"
        exit "$code"
    fi
}

check_environment() {
    local code=0
    tool environments check "$1" ${target:+--checkpoint="$target"} "${run[@]}" || code=$?
    if ((code != 0)); then
        say "verl $1 cannot take this run over (code $code); nothing was stopped"
        exit "$code"
    fi
}
