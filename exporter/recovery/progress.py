"""How a recovery moves from stage to stage. Pure functions from a record and a report to the next record.

Called by the engine, which stores the result and writes the audit line. Each returns None where the report says nothing
new, so reports that come twice, late or for another attempt change nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from exporter.protocol import AttemptExited, AttemptStarted, CommandProgress, SettingApplied
from exporter.recovery import proving
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


MOST_OUTPUT = 60
"""Lines of what was reported that are kept, the newest ones, and of each the first characters."""
LINE_CHARACTERS = 400


def with_output(recovery: Recovery, *lines: str) -> Recovery:
    """Keep what the supervisor, or the trainer at its end, said; nothing that is there already."""
    new = [line.strip()[:LINE_CHARACTERS] for line in lines if line.strip()]
    if not new or recovery.output[-len(new) :] == tuple(new):
        return recovery
    return replace(recovery, output=(*recovery.output, *new)[-MOST_OUTPUT:])


def heard(recovery: Recovery, progress: CommandProgress) -> Recovery:
    """With what a report says of the command, whatever becomes of the recovery: state, words, restored checkpoint."""
    said = f"{progress.state}: {progress.detail}" if progress.detail else ""
    recovery = with_output(replace(recovery, progress=progress.state), *progress.output[-MOST_OUTPUT:], said)
    if progress.target_step is None:
        return recovery
    return replace(recovery, target_step=progress.target_step, target_path=progress.target_path)


def after_command(recovery: Recovery, progress: CommandProgress, now: float) -> Recovery | None:
    """The supervisor's report on the command. What was reported before, or lies behind it, is None."""
    if recovery.stage not in (*COMMANDED, "verifying") or RANK[progress.state] <= RANK[recovery.progress]:
        return None
    recovery = at_times(heard(recovery, progress), command_delivered=now, accepted=now)
    if recovery.stage == "verifying" and RANK[progress.state] < RANK["started"]:
        return recovery
    if progress.state == "failed":
        detail = progress.detail or "it gave no reason"
        outcome = f"The supervisor could not carry out the command: {detail}"
        return ended(
            recovery,
            "failed",
            outcome,
            now,
            failed_by="not_carried_out",
            failure_code=progress.code,
            command_closed=True,
        )
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


_NO_CHECKPOINT = "no verified checkpoint from before the onset is known"


def _after_stop(recovery: Recovery, now: float) -> Recovery:
    if recovery.without_target:
        why = next((it.reason for it in recovery.considered if it.rung == "person"), _NO_CHECKPOINT)
        return ended(recovery, "failed", f"The run is stopped: {why}.", now, failed_by="ladder")
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
        recovery,
        new_attempt=attempt,
        last_step=None,
        last_healthy_at=None,
        healthy_steps=0,
        unhealthy_steps=0,
        proof_awaited=None,
    )


def after_exit(recovery: Recovery, event: AttemptExited, attempt: int, now: float) -> Recovery | None:
    """The new attempt ended before it was verified. The end of the failed attempt says nothing new."""
    if recovery.stage not in (*COMMANDED, "verifying") or recovery.action == "stop":
        return None
    if attempt <= recovery.attempt or attempt != (recovery.new_attempt or attempt):
        return None
    recovery = with_output(replace(recovery, new_attempt=attempt), *event.last_output[-10:])
    if event.expected and event.exit_code == 0 and recovery.unhealthy_steps == 0 and recovery.healthy_steps > 0:
        unproved = proving.missing(recovery)
        if unproved:
            outcome = f"Attempt {attempt} finished the run, but {unproved}."
            return ended(recovery, "failed", outcome, now, failed_by="unproved")
        healthy = f"{recovery.healthy_steps} healthy steps past the checkpoint"
        outcome = f"Attempt {attempt} finished the run after {healthy}{proving.sentence(recovery)}."
        return ended(recovery, "succeeded", outcome, now)
    how = f"signal {event.signal}" if event.signal is not None else f"exit code {event.exit_code}"
    healthy = f"after {recovery.healthy_steps} healthy steps past the checkpoint"
    return ended(recovery, "failed", f"Attempt {attempt} ended with {how} {healthy}.", now, failed_by="died")


def after_step(
    recovery: Recovery, attempt: int, step: int, now: float, *, healthy: bool, needed: int, why: str = ""
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
        return _after_unhealthy(recovery, attempt, step, needed, why, now)
    first = step if recovery.first_healthy_step is None else recovery.first_healthy_step
    count = recovery.healthy_steps + 1
    recovery = at_times(
        replace(recovery, healthy_steps=count, last_healthy_at=now, first_healthy_step=first), first_healthy_step=now
    )
    return recovery if count < needed else _proved(recovery, now)


def _proved(recovery: Recovery, now: float) -> Recovery:
    """The healthy steps are there: success, once every change that verl would ignore is proved to be in effect."""
    if proving.missing(recovery):
        return recovery if recovery.proof_awaited is not None else replace(recovery, proof_awaited=now)
    outcome = (
        f"Attempt {recovery.new_attempt} has pushed {recovery.healthy_steps} healthy steps in a row past step "
        f"{recovery.resumed_from}{proving.sentence(recovery)}."
    )
    return ended(recovery, "succeeded", outcome, now)


def after_setting(recovery: Recovery, event: SettingApplied, attempt: int, now: float) -> Recovery | None:
    """A changed setting was read back in the new attempt. Also what is not needed as a proof is kept."""
    if recovery.stage not in (*COMMANDED, "verifying") or recovery.action == "stop":
        return None
    if attempt <= recovery.attempt or attempt < (recovery.new_attempt or 0):
        return None
    new = proving.with_proof(recovery, event, attempt, now)
    if new is not None and new.proof_awaited is not None and attempt == new.new_attempt:
        return _proved(new, now)
    return new


def _after_unhealthy(recovery: Recovery, attempt: int, step: int, needed: int, why: str, now: float) -> Recovery:
    count = recovery.unhealthy_steps + 1
    recovery = replace(recovery, healthy_steps=0, unhealthy_steps=count, proof_awaited=None)
    if count < needed:
        return recovery
    outcome = f"{count} steps of attempt {attempt} were not healthy, the last is step {step}{why and f': {why}'}."
    return ended(recovery, "failed", outcome, now, failed_by="unhealthy")


def unproved(recovery: Recovery, deadlines: Deadlines, watching_since: float, now: float) -> Recovery | None:
    """The failed record where a proof has been missing for too long, else None."""
    if recovery.stage != "verifying" or recovery.proof_awaited is None:
        return None
    since = max((at for at in (watching_since, recovery.proof_awaited) if at <= now), default=now)
    if now - since <= deadlines.proof_seconds:
        return None
    outcome = f"The steps of attempt {recovery.new_attempt} are healthy, but {proving.missing(recovery)}."
    return ended(recovery, "failed", outcome, now, failed_by="unproved")


def overdue(recovery: Recovery, deadlines: Deadlines, watching_since: float, now: float) -> str | None:
    """The sentence for a stage that has lasted too long, else None.

    Time before ``watching_since`` does not count: this exporter was down or stopped, and nobody could report to it. A
    time that lies ahead was written before the clock was set back, and does not count either.
    """
    moments = (watching_since, recovery.stage_since, recovery.last_healthy_at or 0.0)
    since = max(at for at in moments if at <= now)
    if recovery.stage == "commanded" and not recovery.progress:
        limit, what = deadlines.command_seconds, "No supervisor has taken the command"
    elif recovery.stage == "commanded" and recovery.action != "stop":
        limit, what = deadlines.prepare_seconds, "The supervisor has not begun to stop the trainer"
    elif recovery.stage in ("commanded", "stopping"):
        limit, what = deadlines.stop_seconds, "The trainer has not stopped"
    elif recovery.stage == "starting":
        limit, what = deadlines.start_seconds, "The new attempt has not started"
    elif recovery.stage == "verifying":
        limit, what = deadlines.step_seconds, "The new attempt has pushed no healthy step"
    else:
        return None
    return f"{what} within {limit:g} s." if now - since > limit else None
