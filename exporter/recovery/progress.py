"""How a recovery moves from stage to stage. Pure functions from a record and a report to the next record.

Called by the engine, which stores the result and writes the audit line. Each returns None where the report says nothing
new, so reports that come twice, late or for another attempt change nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from exporter.protocol import AttemptExited, AttemptStarted, CommandProgress
from exporter.recovery.policy import Deadlines
from exporter.recovery.record import COMMANDED, Recovery, Stage

RANK = {"": 0, "accepted": 1, "stopping": 2, "stopped": 3, "starting": 4, "started": 5, "succeeded": 6, "failed": 7}
"""What the supervisor reports of a command, in its order."""


def at_times(recovery: Recovery, **times: float) -> Recovery:
    """Fill in times of the timeline that are not known yet.

    None is before the present stage: a push has the time of its arrival, and may be answered after an alert that came
    while it was being written.
    """
    new = {name: max(at, recovery.stage_since) for name, at in times.items() if getattr(recovery.times, name) is None}
    return replace(recovery, times=replace(recovery.times, **new)) if new else recovery


def to_stage(recovery: Recovery, stage: Stage, now: float, **changes: Any) -> Recovery:
    """Enter ``stage``; entering the stage it is in keeps the time it was entered."""
    since = recovery.stage_since if stage == recovery.stage else max(now, recovery.stage_since)
    return replace(recovery, stage=stage, stage_since=since, **changes)


def ended(recovery: Recovery, stage: Stage, outcome: str, now: float, **changes: Any) -> Recovery:
    """The end of the recovery, with the sentence that says why."""
    times = {"finished": now, "succeeded": now} if stage == "succeeded" else {"finished": now}
    return at_times(to_stage(recovery, stage, now, outcome=outcome, **changes), **times)


def after_command(recovery: Recovery, progress: CommandProgress, now: float) -> Recovery | None:
    """The supervisor's report on the command. What was reported before, or lies behind it, is None."""
    if recovery.stage not in (*COMMANDED, "verifying") or RANK[progress.state] <= RANK[recovery.progress]:
        return None
    recovery = replace(recovery, progress=progress.state)
    if progress.target_step is not None:
        recovery = replace(recovery, target_step=progress.target_step, target_path=progress.target_path)
    recovery = at_times(recovery, command_delivered=now, accepted=now)
    if recovery.stage == "verifying" and RANK[progress.state] < RANK["started"]:
        return recovery
    if progress.state == "failed":
        detail = progress.detail or "it gave no reason"
        return ended(recovery, "failed", f"The supervisor could not carry out the command: {detail}", now)
    if progress.state == "accepted":
        return replace(recovery, stage_since=max(now, recovery.stage_since))
    if progress.state == "stopping":
        return to_stage(at_times(recovery, stopping=now), "stopping", now)
    if recovery.action == "stop":
        return (
            _after_stop(at_times(recovery, stopped=now), now) if RANK[progress.state] >= RANK["stopped"] else recovery
        )
    if progress.state == "stopped":
        return to_stage(at_times(recovery, stopped=now), "starting", now)
    if progress.state == "starting":
        return to_stage(at_times(recovery, starting=now), "starting", now)
    closed = progress.state == "succeeded"
    return to_stage(at_times(recovery, started=now), "verifying", now, command_closed=closed)


def _after_stop(recovery: Recovery, now: float) -> Recovery:
    if recovery.without_target:
        return ended(
            recovery, "failed", "The run is stopped: no verified checkpoint from before the onset is known.", now
        )
    return ended(recovery, "succeeded", "The run is stopped, as the policy asks.", now)


def after_start(recovery: Recovery, event: AttemptStarted, attempt: int, now: float) -> Recovery | None:
    """A new attempt was started: by this command, or by somebody else while the command was under way."""
    if recovery.stage not in (*COMMANDED, "verifying") or recovery.action == "stop":
        return None
    if attempt <= (recovery.new_attempt or recovery.attempt):
        return None
    recovery = at_times(_new_attempt(recovery, attempt), started=now)
    if event.resume_step is not None:
        recovery = replace(recovery, target_step=event.resume_step, target_path=event.resume_path)
    return to_stage(recovery, "verifying", now)


def _new_attempt(recovery: Recovery, attempt: int) -> Recovery:
    """Nothing that an earlier attempt did counts for this one."""
    return replace(
        recovery, new_attempt=attempt, last_step=None, last_healthy_at=None, healthy_steps=0, unhealthy_steps=0
    )


def after_exit(recovery: Recovery, event: AttemptExited, attempt: int, now: float) -> Recovery | None:
    """The new attempt ended before it was verified. The end of the failed attempt says nothing new."""
    if recovery.stage not in (*COMMANDED, "verifying") or recovery.action == "stop":
        return None
    if attempt <= recovery.attempt or attempt != (recovery.new_attempt or attempt):
        return None
    recovery = replace(recovery, new_attempt=attempt)
    if event.expected and event.exit_code == 0 and recovery.unhealthy_steps == 0 and recovery.healthy_steps > 0:
        outcome = (
            f"Attempt {attempt} finished the run after {recovery.healthy_steps} healthy steps past the checkpoint."
        )
        return ended(recovery, "succeeded", outcome, now)
    how = f"signal {event.signal}" if event.signal is not None else f"exit code {event.exit_code}"
    healthy = f"after {recovery.healthy_steps} healthy steps past the checkpoint"
    return ended(recovery, "failed", f"Attempt {attempt} ended with {how} {healthy}.", now)


def after_step(
    recovery: Recovery, attempt: int, step: int, now: float, *, healthy: bool, needed: int
) -> Recovery | None:
    """A step of the new attempt. Only steps past the restored one count, and each once."""
    if recovery.stage not in (*COMMANDED, "verifying") or recovery.action == "stop":
        return None
    if attempt <= recovery.attempt or attempt < (recovery.new_attempt or 0):
        return None
    if attempt != recovery.new_attempt:
        recovery = _new_attempt(recovery, attempt)
    if recovery.last_step is not None and step <= recovery.last_step:
        return None
    recovery = to_stage(at_times(recovery, started=now), "verifying", now, last_step=step)
    if recovery.resumed_from is not None and step <= recovery.resumed_from:
        return recovery
    if not healthy:
        return _after_unhealthy(recovery, attempt, step, needed, now)
    first = step if recovery.first_healthy_step is None else recovery.first_healthy_step
    count = recovery.healthy_steps + 1
    recovery = at_times(
        replace(recovery, healthy_steps=count, last_healthy_at=now, first_healthy_step=first), first_healthy_step=now
    )
    if count < needed:
        return recovery
    outcome = f"Attempt {attempt} has pushed {count} healthy steps in a row past step {recovery.resumed_from}."
    return ended(recovery, "succeeded", outcome, now)


def _after_unhealthy(recovery: Recovery, attempt: int, step: int, needed: int, now: float) -> Recovery:
    count = recovery.unhealthy_steps + 1
    recovery = replace(recovery, healthy_steps=0, unhealthy_steps=count)
    if count < needed:
        return recovery
    return ended(
        recovery, "failed", f"{count} steps of attempt {attempt} were not healthy, the last is step {step}.", now
    )


def overdue(recovery: Recovery, deadlines: Deadlines, watching_since: float, now: float) -> str | None:
    """The sentence for a stage that has lasted too long, else None.

    Time before ``watching_since`` does not count: this exporter was down or stopped, and nobody could report to it. A
    time that lies ahead was written before the clock was set back, and does not count either.
    """
    moments = (watching_since, recovery.stage_since, recovery.last_healthy_at or 0.0)
    since = max(at for at in moments if at <= now)
    if recovery.stage == "commanded" and not recovery.progress:
        limit, what = deadlines.command_seconds, "No supervisor has taken the command"
    elif recovery.stage in ("commanded", "stopping"):
        limit, what = deadlines.stop_seconds, "The trainer has not stopped"
    elif recovery.stage == "starting":
        limit, what = deadlines.start_seconds, "The new attempt has not started"
    elif recovery.stage == "verifying":
        limit, what = deadlines.step_seconds, "The new attempt has pushed no healthy step"
    else:
        return None
    return f"{what} within {limit:g} s." if now - since > limit else None
