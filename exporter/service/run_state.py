"""In which state a run is, as one word: what ``/metrics`` and the console say of it. Called by both, and by snapshots.

The first that holds counts:

- ``awaiting_approval``: a plan to recover the run waits for a person.
- ``recovering``: a recovery is carried out.
- ``failed``: the trainer ended badly; or a recovery failed, was refused because the budget is spent, or was aborted and
  left the run stopped or in doubt, nobody has acknowledged that, and no newer attempt has begun since.
- ``stopped``: the trainer ended because a command or a person stopped it.
- ``finished``: the trainer ended by itself with exit code 0.
- ``silent``: an attempt runs and is not heard, as the detector ``silent_run`` says.
- ``starting``: an attempt has begun and logged no step.
- ``training``: steps are logged.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from exporter.detectors.silent_run import LIMIT_SECONDS, START_SECONDS, SilentRun
from exporter.recovery.record import RunState as RecoveryState
from exporter.service.state import RunState
from exporter.service.watch import WatchedRun

Ending = Literal["finished", "stopped", "failed"]
StateName = Literal[
    "starting", "training", "silent", "awaiting_approval", "recovering", "failed", "finished", "stopped"
]
STATES: Final[tuple[StateName, ...]] = get_args(StateName)


def run_state(run: WatchedRun, recovery: RecoveryState | None, now: float) -> StateName:
    """The state of a run; ``recovery`` is None where the recovery store cannot be read, and then says nothing.

    >>> from exporter.incidents import Rules
    >>> from exporter.protocol import AttemptExited, Run
    >>> class NoDetectors:
    ...     step, live = (), ()
    >>> run = WatchedRun.new(Run(run_id="a"), NoDetectors(), Rules(), at=1000.0)
    >>> run.state.begin_attempt(1, None, at=1000.0)
    >>> run_state(run, None, 1010.0)
    'starting'
    >>> run.state.steps_this_attempt = 1
    >>> run_state(run, None, 1020.0), run_state(run, None, 1200.0)
    ('training', 'silent')
    >>> run_state(run, RecoveryState(awaiting_approval=True), 1200.0)
    'awaiting_approval'
    >>> run.state.exited(AttemptExited(time=0.0, exit_code=0, expected=True), at=1300.0)
    >>> run_state(run, None, 1300.0)
    'finished'
    """
    state = run.state
    if recovery is not None:
        if recovery.awaiting_approval:
            return "awaiting_approval"
        if recovery.in_progress:
            return "recovering"
        if recovery.failed and state.attempt <= recovery.failed_attempt:
            return "failed"
    ended = ending(state, now)
    if ended == "finished" and recovery is not None and _was_stopped(state, recovery):
        return "stopped"
    if ended is not None:
        return ended
    if is_silent(run, now):
        return "silent"
    return "training" if state.steps_this_attempt else "starting"


def ending(state: RunState, now: float) -> Ending | None:
    """How the newest attempt ended; None while it has not, or while its supervisor has yet to say how."""
    if state.running or state.ended_at is None:
        return None
    if state.ended_badly(now):
        return "failed"
    if not state.exit_code:
        return "finished"
    return None if state.finished_only else "stopped"


def is_silent(run: WatchedRun, now: float) -> bool:
    """Whether the trainer of a running attempt is not heard any more.

    The detector knows best, for it leaves out the time in which this exporter was down. Where it is switched off, the
    time since the newest push decides.
    """
    state = run.state
    if not state.running:
        return False
    if any(detector.name == SilentRun.name for detector in run.detectors.live):
        return any(
            incident.detector == SilentRun.name and incident.attempt == state.attempt and incident.clear_since is None
            for incident in run.book
        )
    limit = LIMIT_SECONDS if state.steps_this_attempt else START_SECONDS
    return now - (state.last_push or state.first_seen) > limit


def _was_stopped(state: RunState, recovery: RecoveryState) -> bool:
    """Whether a trainer with exit code 0 was told to end: the newest recovery stopped its attempt for good."""
    last = recovery.last
    return last is not None and last.action == "stop" and last.stage == "succeeded" and last.attempt == state.attempt
