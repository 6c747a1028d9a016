"""A person calls a recovery off: what becomes of its record, then and by what the supervisor still reports. Pure.

Called by the engine. An abort is an end: the run has no recovery under way any more, and nothing further is decided.
But a supervisor that was handed the command has to hear of it, and one that does not know aborts goes on with it. So
the record of an aborted recovery still takes in what is reported, and says how it left the run.
"""

from __future__ import annotations

from msgspec.structs import replace

from exporter.protocol import Abort, AttemptExited, AttemptStarted, CommandProgress
from exporter.recovery.policy import Deadlines
from exporter.recovery.progress import RANK, at_times, ended, heard
from exporter.recovery.record import Recovery, TrainerLeft

FINAL = ("succeeded", "failed")


def aborted(recovery: Recovery, who: str, now: float) -> Recovery:
    """The record of a recovery whose command was made, called off by ``who``.

    One that had failed keeps the time of its end; whoever took note of that has not taken note of the abort.
    """
    recovery = replace(recovery, acknowledged_by="")
    asked = recovery.times.command_delivered is None or recovery.command_closed
    left: TrainerLeft = ""
    if recovery.new_attempt is not None or recovery.times.started is not None:
        left = "running"
    elif recovery.times.stopped is not None:
        left = "stopped"
    new = ended(recovery, "aborted", "", now, aborted_by=who, aborted_in=recovery.stage, abort_answered=asked)
    return _told(replace(new, trainer_left=left))


def abort_of(recovery: Recovery) -> Abort:
    """What the supervisor is told."""
    return Abort(
        id=recovery.id,
        run_id=recovery.run_id,
        attempt=recovery.attempt,
        action=recovery.action,
        reason=f"{recovery.aborted_by} aborted it.",
    )


def after_command(recovery: Recovery, progress: CommandProgress, now: float) -> Recovery | None:
    """The supervisor's report on a command that was called off. What was reported before is None."""
    if RANK[progress.state] <= RANK[recovery.progress]:
        return None
    rank = RANK[progress.state]
    moments = {"accepted": 1, "stopping": 2, "stopped": 3, "starting": 4, "started": 5}
    if rank <= RANK["started"]:
        new = at_times(recovery, **{name: now for name, at in moments.items() if at == rank or name == "accepted"})
    else:
        new = at_times(recovery, accepted=now)
    answered = recovery.abort_answered or progress.state in FINAL
    if answered and not recovery.abort_answered:
        new = at_times(new, abort_answered=now)
    new = replace(
        heard(new, progress),
        command_closed=recovery.command_closed or progress.state in FINAL,
        abort_answered=answered,
        abort_overdue=False if answered else recovery.abort_overdue,
        trainer_left=_left(recovery, progress),
    )
    return _told(new, progress.detail)


def _left(recovery: Recovery, progress: CommandProgress) -> TrainerLeft:
    if progress.running is not None:
        return "running" if progress.running else "stopped"
    if progress.state in ("stopped", "starting") or (progress.state == "succeeded" and recovery.action == "stop"):
        return "stopped"
    return "running" if progress.state in ("started", "succeeded") else recovery.trainer_left


def after_start(recovery: Recovery, event: AttemptStarted, attempt: int, now: float) -> Recovery | None:
    """A new attempt was started: by the command all the same, or by a person, who then knows how the run is."""
    if attempt <= recovery.newest_attempt:
        return None
    if event.command_id != recovery.id:
        if recovery.trainer_left == "running":
            return None
        outcome = f"{recovery.outcome} Attempt {attempt} was started meanwhile."
        return replace(recovery, trainer_left="running", outcome=outcome)
    new = replace(at_times(recovery, started=now), new_attempt=attempt, trainer_left="running")
    if event.resume_step is not None:
        new = replace(new, target_step=event.resume_step, target_path=event.resume_path)
    return _told(new)


def after_exit(recovery: Recovery, event: AttemptExited, attempt: int, now: float) -> Recovery | None:
    """The failed attempt ended before the supervisor has answered: it had been stopped."""
    if attempt != recovery.newest_attempt or recovery.abort_answered or recovery.trainer_left == "stopped":
        return None
    return _told(replace(recovery, trainer_left="stopped"))


def overdue(recovery: Recovery, deadlines: Deadlines, watching_since: float, now: float) -> Recovery | None:
    """The record with the note that no supervisor has answered; None while it may still, or once it is noted."""
    if recovery.abort_answered or recovery.abort_overdue:
        return None
    limit = deadlines.command_seconds if recovery.times.stopping is None else deadlines.stop_seconds
    moments = (watching_since, recovery.stage_since)
    since = max((at for at in moments if at <= now), default=now)
    if now - since <= limit:
        return None
    return _told(replace(recovery, abort_overdue=True), f"{limit:g} s have passed")


def _told(recovery: Recovery, detail: str = "") -> Recovery:
    """The record with the sentence that says how the abort left the run."""
    late = recovery.aborted_in == "failed"
    when = "after it had failed" if late else f"while it was {recovery.aborted_in.replace('_', ' ')}"
    who = f"{recovery.aborted_by} aborted it {when}."
    attempt = recovery.newest_attempt
    if recovery.times.command_delivered is None:
        how = "The supervisor had not been told of it yet, so nothing was done to the run."
    elif recovery.abort_overdue:
        how = f"The supervisor has not answered ({detail}), so what it does with the command is not known."
    elif recovery.new_attempt is not None and recovery.trainer_left == "running":
        step = "" if recovery.resumed_from is None else f" from step {recovery.resumed_from}"
        how = f"Attempt {attempt} was started{step} and left running, not verified."
    elif recovery.trainer_left == "stopped":
        how = "The trainer is stopped, and a person has to start it."
    elif not recovery.abort_answered:
        how = "The supervisor has not answered yet."
    elif recovery.trainer_left == "running":
        how = f"The trainer was left as it is: attempt {attempt} goes on."
    else:
        how = f"The supervisor says: {detail or 'nothing of the trainer'}."
    return replace(recovery, outcome=f"{who} {how}")
