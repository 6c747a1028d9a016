"""What a supervisor reports on a command whose recovery was given up because a stage lasted too long. Pure; called by
the engine.

The recovery stays failed: a person was told, and is not overruled by a report that comes after all. But a supervisor
that was only slow goes on. So the record says what it did, and the attempt that it starts is an attempt of this
recovery: not verified, and not a start by hand. How that attempt ends is for the detectors.
"""

from __future__ import annotations

from msgspec.structs import replace

from exporter.protocol import AttemptStarted, CommandProgress
from exporter.recovery.progress import RANK, at_times, heard
from exporter.recovery.record import Recovery


def after_command(recovery: Recovery, progress: CommandProgress, now: float) -> Recovery | None:
    """The supervisor's report on the command. What was reported before, or lies behind it, is None."""
    if RANK[progress.state] <= RANK[recovery.progress]:
        return None
    new = at_times(heard(recovery, progress), accepted=now)
    if progress.state == "failed":
        said = f"The supervisor could not carry out the command: {progress.detail or 'it gave no reason'}"
        new = _and_then(replace(new, failure_code=progress.code, command_closed=True), said)
    elif progress.state == "succeeded":
        new = replace(new, command_closed=True)
    elif progress.state != "accepted":
        new = at_times(new, **{progress.state: now})
    if recovery.action == "stop" and progress.state in ("stopped", "succeeded") and recovery.progress != "stopped":
        new = _and_then(at_times(new, stopped=now), "The run was stopped all the same.")
    return new


def after_start(recovery: Recovery, event: AttemptStarted, attempt: int, now: float) -> Recovery | None:
    """The command has started an attempt. One that a person starts is none of the recovery's."""
    if event.command_id != recovery.id or attempt <= recovery.newest_attempt:
        return None
    new = replace(at_times(recovery, started=now), new_attempt=attempt)
    if event.resume_step is not None:
        new = replace(new, target_step=event.resume_step, target_path=event.resume_path)
    step = "" if new.resumed_from is None else f" from step {new.resumed_from}"
    return _and_then(new, f"Attempt {attempt} was started for it{step} all the same, and is not verified.")


def _and_then(recovery: Recovery, said: str) -> Recovery:
    return replace(recovery, outcome=f"{recovery.outcome} {said}")
