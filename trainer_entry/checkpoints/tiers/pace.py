"""How fast, and how long, background work may go: a byte rate, a reason to stop, and progress, asked at each chunk."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainer_entry.checkpoints.resting import Rest


class Stopped(Exception):
    """The work was given up between two chunks because the caller said so; what was done is kept."""


class Pace:
    """One piece of work. ``stop`` is asked at every chunk; ``advance`` is told how many bytes were done.

    ``bytes_per_second`` limits the average since the start of the work; None: no limit. ``rest``: of a process beside
    training, which rests after each chunk.
    """

    def __init__(
        self,
        *,
        bytes_per_second: int | None = None,
        rest: Rest | None = None,
        stop: Callable[[], bool] = lambda: False,
        advance: Callable[[int], None] = lambda count: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_second
        self._rest = rest
        self._stop = stop
        self._advance = advance
        self._sleep = sleep
        self._clock = clock
        self._due = clock()

    def took(self, count: int) -> None:
        """``count`` bytes were read or sent. Raises Stopped; waits where the rate asks for it."""
        if self._stop():
            raise Stopped("The work was told to stop.")
        self._advance(count)
        if self._rest is not None:
            self._rest.after_a_piece()
        if self._rate is None:
            return
        now = self._clock()
        # Time not used is no credit: after a pause the rate is not exceeded to make up for it.
        self._due = max(self._due, now - 1.0) + count / self._rate
        while (left := self._due - self._clock()) > 0:
            self._sleep(min(left, 0.5))
            if self._stop():
                raise Stopped("The work was told to stop.")
