"""What the trainer is doing right now, and its rollout requests: written by the training side, read by the push thread.

Both are written from threads that must not wait, so each write is one or two operations on a dict or an int that the
interpreter makes atomic; the reader copies before it formats.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from exporter.protocol import ClosedPhase, OpenPhase, PhaseReport, RolloutCounts

MAX_CLOSED = 256
"""Closed phases kept between two flushes; the oldest go first. A step has about ten."""


class PhaseBoard:
    """Phases that are open, with their age, and those that closed since the last report. Times are monotonic."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._tokens = itertools.count(1)
        self._open: dict[int, tuple[str, float]] = {}
        self._closed: deque[tuple[str, float]] = deque(maxlen=MAX_CLOSED)
        self.step_source: Callable[[], int] | None = None
        """Asked for the step in progress at each report; where it is None, or raises, the last known step is used."""
        self.step = 0
        self.used = False
        """True once a phase was begun: a process without phases sends no phase report."""

    def begin(self, name: str) -> int:
        """Open a phase; returns the token that ends it. Phases nest and may overlap between threads."""
        token = next(self._tokens)
        self._open[token] = (name, self._monotonic())
        self.used = True
        return token

    def end(self, token: int) -> None:
        """Close a phase. A token that is not open is ignored."""
        opened = self._open.pop(token, None)
        if opened is not None:
            self._closed.append((opened[0], self._monotonic() - opened[1]))

    def report(self) -> PhaseReport | None:
        """What to send now, and start a new list of closed phases; None where no phase was ever begun."""
        if not self.used:
            return None
        if self.step_source is not None:
            try:
                self.step = int(self.step_source())
            except Exception:  # noqa: BLE001 - it reads the trainer's own attributes, which may not be there yet
                self.step_source = None
        now = self._monotonic()
        closed = []
        while self._closed:
            name, seconds = self._closed.popleft()
            closed.append(ClosedPhase(name=name, seconds=seconds))
        opened = [OpenPhase(name=name, seconds=max(0.0, now - since)) for name, since in list(self._open.values())]
        return PhaseReport(step=max(self.step, 0), open=opened, closed=closed)


class RolloutCounter:
    """Rollout requests of this process since its start, by outcome. Several event loops may count at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = self._succeeded = self._failed = self._cancelled = 0

    def started(self) -> None:
        with self._lock:
            self._started += 1

    def succeeded(self) -> None:
        with self._lock:
            self._succeeded += 1

    def failed(self) -> None:
        with self._lock:
            self._failed += 1

    def cancelled(self) -> None:
        """Given up by the trainer: its task was cancelled, or the server was told to abort."""
        with self._lock:
            self._cancelled += 1

    def counts(self) -> RolloutCounts:
        """The counters now, consistent with each other."""
        with self._lock:
            done = self._succeeded + self._failed + self._cancelled
            return RolloutCounts(
                succeeded=self._succeeded,
                failed=self._failed,
                cancelled=self._cancelled,
                in_flight=max(0, self._started - done),
            )
