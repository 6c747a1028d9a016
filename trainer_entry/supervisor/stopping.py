"""Stop an attempt in three stages, each with a limit: a clean end, SIGTERM, SIGKILL. And leave nothing of it behind.

Called by the supervisor, and by ``verl-sentinel-train stop`` when no supervisor lives.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trainer_entry.supervisor import gone, processes
from trainer_entry.supervisor.attempts import Attempt
from trainer_entry.supervisor.hand import left_behind
from trainer_entry.supervisor.processes import Process
from trainer_entry.supervisor.state import StateDir, StateError, write_record

Stage = Literal["ended before", "clean", "SIGTERM", "SIGKILL"]

_POLL_SECONDS = 0.05
_SWEEP_SECONDS = 15.0
"""More than the attempt process takes to end leftovers (3 s with SIGTERM, 10 s with SIGKILL)."""

_HANGS = re.compile(
    r"\b(stalled|stalled_phase|silent|silent_run|hang|hangs|hung|frozen|stuck|deadlock)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class StopLimits:
    """Seconds that each stage may take."""

    clean_seconds: float = 300.0
    """For a stop: the step that runs, its save and verl's own end. What is saved here is what a person wants kept."""
    rollback_clean_seconds: float = 8.0
    """For a rollback: nothing that the trainer would still save is wanted, only a tidy end if it is quick. A trainer of
    short steps ends in six seconds; one whose step takes minutes does not, however long one waits, and SIGTERM takes
    three."""
    term_seconds: float = 20.0
    kill_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Stopped:
    """How far it had to go, in how many seconds, and which processes would not die (empty when all is well)."""

    stage: Stage
    seconds: float
    survivors: list[int]
    remains: tuple[str, ...] = ()
    """Sentences about what of it is not gone, or not certain to be: GPU memory, or a job on a cluster."""


class Hurry:
    """Counts how often somebody asked to go on to the next stage at once (a second Ctrl-C)."""

    def __init__(self) -> None:
        self._pressed = 0
        self._taken = 0

    def press(self) -> None:
        """Called by a signal handler: one more time."""
        self._pressed += 1

    def take(self) -> bool:
        """True once for each press: the stage that asks is cut."""
        if self._taken >= self._pressed:
            return False
        self._taken += 1
        return True


def clean_seconds(limits: StopLimits, *, for_rollback: bool, reason: str) -> float:
    """How long to wait for a clean end.

    None at all when the reason says that the trainer hangs: the exporter names the detector (``stalled_phase``,
    ``silent_run``) in it, and a trainer whose step does not end never comes to the place where it would stop.

    >>> clean_seconds(StopLimits(), for_rollback=True, reason="stalled_phase on gen since step 7")
    0.0
    >>> clean_seconds(StopLimits(), for_rollback=True, reason="surge on kl")
    8.0
    """
    if _HANGS.search(reason):
        return 0.0
    return limits.rollback_clean_seconds if for_rollback else limits.clean_seconds


def stop(
    state: StateDir,
    attempt: Attempt,
    limits: StopLimits,
    *,
    clean: float,
    save: bool,
    say: Callable[[str], None],
    hurry: Hurry | None = None,
) -> Stopped:
    """Stop the trainer and end all processes of its attempt. Blocks for at most the sum of the limits and a sweep.

    ``save`` False tells the plugin that a checkpoint at the clean end is not wanted. Raises StateError when the attempt
    runs on another host, where nothing can be done from here.
    """
    started = time.monotonic()
    hurry = hurry or Hurry()
    if (host := attempt.elsewhere()) is not None:
        raise StateError(f"Attempt {attempt.number} runs on host {host}; stop it there.")
    attempt.members()  # remembered, in case the attempt process dies under our hands
    held = gone.holding(attempt.pids_seen(), say=say)
    stage: Stage = "ended before"
    if attempt.exit() is None and clean > 0:
        stage = "clean"
        say(f"asking attempt {attempt.number} to end after its step (at most {clean:g} s)")
        try:
            write_record(state.stop_request_path, {"attempt": attempt.number, "save": save})
        except StateError as error:  # a full disk is no reason to leave the trainer running
            say(f"it cannot be asked: {error}")
        else:
            _wait(attempt, clean, hurry)
    if attempt.exit() is None and (trainer := attempt.trainer()) is not None:
        stage = "SIGTERM"
        say(f"sending SIGTERM to the trainer, process {trainer.pid} (at most {limits.term_seconds:g} s)")
        processes.send(trainer, signal.SIGTERM)
        _wait(attempt, limits.term_seconds, hurry)
    if attempt.exit() is None:
        stage = "SIGKILL"
        say("sending SIGKILL to all processes of the attempt")
        _kill(attempt, limits.kill_seconds)
    survivors: set[Process] = set()
    if not attempt.wait_until_swept(_SWEEP_SECONDS) or attempt.members():
        survivors = attempt.end_leftovers()
    with contextlib.suppress(FileNotFoundError):
        state.stop_request_path.unlink()
    remains = [] if survivors else gone.wait_until_free(held, say=say)
    if job := left_behind(attempt, say):
        remains.append(job)
    pids = sorted(process.pid for process in survivors)
    return Stopped(stage, time.monotonic() - started, pids, tuple(remains))


def _wait(attempt: Attempt, seconds: float, hurry: Hurry) -> None:
    deadline = time.monotonic() + seconds
    while attempt.exit() is None and time.monotonic() < deadline and not hurry.take():
        time.sleep(_POLL_SECONDS)


def _kill(attempt: Attempt, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while attempt.exit() is None and time.monotonic() < deadline:
        for process in attempt.members():
            processes.send(process, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
