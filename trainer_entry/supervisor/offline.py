"""What an operator can do to a run whose supervisor is dead: see it, stop it, record where it goes on, start it again.

Called by the command line, when nobody answers on the control socket. Takes the run's lock, so that no supervisor
starts meanwhile.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from exporter.protocol import Changes, SettingApplied
from trainer_entry import checkpoints
from trainer_entry.changes import describe as describe_changes
from trainer_entry.changes.records import read_applied
from trainer_entry.supervisor.attempts import Attempt
from trainer_entry.supervisor.control import ControlRequest, NoSupervisor, ask
from trainer_entry.supervisor.keeping import environment_for, limits_of
from trainer_entry.supervisor.lifecycle import describe
from trainer_entry.supervisor.outfit import changes_from
from trainer_entry.supervisor.state import ResumeTarget, RunRecord, StateDir, StateError
from trainer_entry.supervisor.stopping import clean_seconds, stop

_COME_UP_SECONDS = 60.0


def recorded_run(state: StateDir) -> RunRecord:
    """The run of this state directory. Raises StateError where there is none."""
    run = state.read_run()
    if run is None:
        raise StateError(f"There is no run in {state.path}; give its --state-dir, or its --run-id.")
    return run


def status(state: StateDir) -> dict[str, object]:
    """As the supervisor would answer, from what is on disk."""
    run = recorded_run(state)
    attempt = Attempt.existing(state, run.attempt)
    trainer = attempt.trainer() if attempt else None
    ended = attempt.exit() if attempt else None
    return {
        "run_id": run.run_id,
        "attempt": run.attempt,
        "state": "running" if attempt is not None and ended is None else ("held" if run.held else "stopped"),
        "trainer_pid": trainer.pid if trainer else None,
        "resume_step": attempt.request.resume_step if attempt else None,
        "exit_code": ended.exit_code if ended else None,
        "signal": ended.signal if ended else None,
        "held": run.held,
        "command": "",
        "changes": describe_changes(run.changes),
        "checkpoint_dir": run.checkpoint_dir,
        "state_dir": str(state.path),
    }


def applied(state: StateDir, attempt: int) -> list[SettingApplied]:
    """What the trainer of that attempt has proved so far: changes that took effect, or did not."""
    return read_applied(state.attempt_dir(attempt))


def stop_run(
    state: StateDir, *, for_rollback: bool, save_first: bool = False, reason: str, say: Callable[[str], None]
) -> tuple[str, bool]:
    """Stop the trainer by its attempt record; returns what was done, and whether it ended by itself with code 0.

    Raises StateError, StateBusy.
    """
    with state.locked():
        run = recorded_run(state)
        attempt = Attempt.existing(state, run.attempt)
        if attempt is None or attempt.give_up_if_never_started():
            return "There is no trainer to stop.", False
        if attempt.exit() is None:
            state.write_run(replace(run, told_to_stop=attempt.number))
        limits = limits_of(run.kept)
        quick = for_rollback and not save_first
        clean = clean_seconds(limits, for_rollback=quick, reason=reason)
        stopped = stop(state, attempt, limits, clean=clean, save=not quick, say=say)
        if stopped.survivors:
            pids = ", ".join(str(pid) for pid in stopped.survivors)
            raise StateError(f"Processes of attempt {attempt.number} could not be ended: {pids}.")
        if stopped.remains:
            raise StateError(" ".join(stopped.remains))
        ended = attempt.exit()
        how = describe(ended) if ended else "ended"
        detail = f"Attempt {attempt.number} {how} ({stopped.stage}, {stopped.seconds:.1f} s)."
        return detail, ended is not None and ended.exit_code == 0


def record_resume(state: StateDir, target: str, request_id: str, asked: Changes, *, forget: bool = False) -> str:
    """Verify the target and record that the next start is from it, with what is asked to be changed.

    Returns what to run. Raises StateError.
    """
    with state.locked():
        run = recorded_run(state)
        attempt = Attempt.existing(state, run.attempt)
        if attempt is not None and attempt.exit() is None:
            raise StateError(f"Attempt {run.attempt} is running; stop it first.")
        verification = checkpoints.verify(target)
        if not verification.ok:
            raise StateError(f"{target} cannot be restored. {verification.reason}")
        target_here = ResumeTarget(step=verification.step, path=os.fspath(verification.path), command_id=request_id)
        in_force = changes_from(run, asked, verification.step, forget=forget)
        state.write_run(
            replace(
                run,
                next_start=target_here,
                held="",
                held_by_person=False,
                changes=in_force.changes,
                skip_from=in_force.skip_from,
            )
        )
    return shlex.join(["verl-sentinel-train", "run", "--state-dir", str(state.path)])


def start_supervisor(state: StateDir, attempt_before: int, environments: Path | None = None) -> str:
    """Start a supervisor that goes on by itself, and wait until it has started the trainer. Raises StateError.

    It has the options and our own variables that the run keeps; all other variables are those of this shell.
    """
    words = [sys.executable, "-m", "trainer_entry.cli", "run", "--state-dir", str(state.path), "--quiet"]
    if environments is not None:
        words += ["--environments-dir", str(environments)]
    log = state.path / "supervisor.log"
    with open(log, "ab") as output:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment_for(recorded_run(state).kept, os.environ),
            start_new_session=True,
        )
    deadline = time.monotonic() + _COME_UP_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        try:
            answer = next(iter(ask(state, ControlRequest(op="status"))))
        except NoSupervisor:
            time.sleep(0.1)
            continue
        found = answer.status or {}
        number = found.get("attempt")
        if isinstance(number, int) and number > attempt_before and found.get("state") == "running":
            return (
                f"Attempt {number} started by a new supervisor, process {child.pid}; it writes to {log}. Its options "
                "are those of the run, its environment is that of this shell."
            )
        time.sleep(0.1)
    said = log.read_text("utf-8", "replace").strip().splitlines()
    raise StateError(
        f"The new supervisor did not start the trainer; see {log}. It said: {said[-1] if said else 'nothing'}"
    )


def checkpoint_root(state: StateDir) -> Path:
    """Where the run's checkpoints lie. Raises StateError."""
    return Path(recorded_run(state).checkpoint_dir)
