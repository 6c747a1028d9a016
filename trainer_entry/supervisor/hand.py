"""Whose hands hold the trainer's processes: this machine's, Ray's or Slurm's. For the lifecycle of attempts.

For the latter two the attempt process runs a shadow of the job (:mod:`trainer_entry.executors`), so starting, watching
and stopping are the same; what a shadow that was killed leaves behind is looked for here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer_entry.executors import ExecutorError, confirm_gone, confirm_none_alive, job_state
from trainer_entry.supervisor.attempts import Attempt
from trainer_entry.supervisor.state import StateDir, StateError

_SHADOW = "trainer_entry.executors"

MAX_FOLLOWED_AGAIN = 20
"""How often the shadow of one attempt is started again. One that keeps dying is a fault of its own."""
ASK_AGAIN_SECONDS = 15.0
UNKNOWN_SECONDS = 900.0
"""How long a job that cannot be asked about counts as running, once its shadow is gone."""


@dataclass(frozen=True, slots=True)
class Hand:
    """``name`` is one of ``local``, ``ray`` and ``slurm``; ``settings`` the file of its settings, absolute or empty."""

    name: str = "local"
    settings: str = ""

    def words(self, argv: tuple[str, ...] | list[str]) -> list[str]:
        """What the attempt process is to run for these words of the trainer."""
        if self.name == "local":
            return list(argv)
        given = ["--settings", self.settings] if self.settings else []
        return [sys.executable, "-m", _SHADOW, "--executor", self.name, *given, "--", *argv]


LOCAL = Hand()


def trainer_words(argv: Sequence[str]) -> list[str]:
    """The trainer's own words of what an attempt process was to run: without a shadow in front of them.

    >>> trainer_words(Hand("ray", "/ray.yml").words(["python", "-m", "x", "--", "y"]))
    ['python', '-m', 'x', '--', 'y']
    >>> trainer_words(["python", "-m", "x", "--", "y"])
    ['python', '-m', 'x', '--', 'y']
    """
    words = list(argv)
    return words[words.index("--") + 1 :] if words[1:3] == ["-m", _SHADOW] and "--" in words else words


def check(name: str, settings: Path | None) -> Hand:
    """The hand that the command line names, with its settings read once. Raises StateError."""
    if name == "local":
        if settings is not None:
            raise StateError("--executor-settings is for --executor ray and slurm; local has none.")
        return LOCAL
    from trainer_entry.executors.configuration import read_ray, read_slurm

    path = os.path.abspath(settings) if settings is not None else ""
    try:
        read_ray(path) if name == "ray" else read_slurm(path)
    except ExecutorError as error:
        raise StateError(str(error)) from error
    return Hand(name, path)


def before_start(state: StateDir, say: Callable[[str], None]) -> None:
    """End the jobs that earlier attempts left. Raises StateError where it is not certain that there is none."""
    try:
        for sentence in confirm_none_alive(state.path / "attempts"):
            say(sentence)
    except ExecutorError as error:
        raise StateError(f"{error} Nothing is started.") from error


def left_behind(attempt: Attempt, say: Callable[[str], None]) -> str:
    """End the job of an attempt that is over; a sentence where it is not certain that it ended, else empty."""
    try:
        if sentence := confirm_gone(attempt.directory):
            say(sentence)
    except (ExecutorError, StateError) as error:
        return str(error)
    return ""


class FollowedAgain:
    """Follows the job of an attempt again whose shadow is gone, while the job itself runs.

    The machine of the supervisor was restarted, say, or its memory was short: no reason to end a job elsewhere. Nor
    is a cluster that cannot be asked just then: it is asked again for a while, and the attempt counts as running.
    """

    def __init__(self, state: StateDir, say: Callable[[str], None]) -> None:
        self._state = state
        self._say = say
        self._ask_at = 0.0
        self._give_up_at = 0.0
        self._attempt = 0

    def settle(self, attempt: Attempt, environ: Mapping[str, str]) -> Attempt | Literal["ended", "later"]:
        """For an attempt whose end nobody asked for: the attempt, running again, or that it ended, or not known yet.

        Raises StateError where its shadow cannot be started again.
        """
        now = time.monotonic()
        if self._attempt != attempt.number:
            self._attempt, self._ask_at, self._give_up_at = attempt.number, now, now + UNKNOWN_SECONDS
        if now < self._ask_at:
            return "later"
        try:
            found = job_state(attempt.directory)
        except (ExecutorError, StateError) as error:
            if now >= self._give_up_at:
                return "ended"  # and nothing is started before its job is known to be over
            self._say(f"attempt {attempt.number} is not followed any more, and may be running. {error}")
            self._ask_at = time.monotonic() + ASK_AGAIN_SECONDS
            return "later"
        number = len(list(attempt.directory.glob("lost-*-exit.json")))
        if found is None or not found.alive or number >= MAX_FOLLOWED_AGAIN or not attempt.wait_until_swept(15.0):
            return "ended"
        for name in ("attempt.json", "exit.json"):
            with contextlib.suppress(FileNotFoundError):
                (attempt.directory / name).rename(attempt.directory / f"lost-{number + 1}-{name}")
        self._attempt = 0
        self._say(f"the job of attempt {attempt.number} is {found.state}, and is followed again")
        return Attempt.start(self._state, attempt.request, environ)
