"""Traces of the runs that somebody looks at, bounded by what they take of memory. Used by
:mod:`exporter.console.series`, on its thread."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from exporter.service.watch import WatchedRun

if TYPE_CHECKING:
    from exporter.console.traces import Traces

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all traces together: half a dozen runs of the greatest length, or all of a usual fleet."""
MOST_RUNS: Final = 32
LOOKED_AT_SECONDS: Final = 30.0
"""A page that is open asks several times in this time: its run stays, however many there are, as long as the bytes
allow it."""


@dataclass(slots=True)
class _One:
    # Not the run itself: it may leave memory, and it may be forgotten.
    of: weakref.ref[WatchedRun]
    traces: Traces
    asked: float


class Kept:
    """What was asked for last.

    Args:
        clock: seconds.
        most_bytes: bound of all together; one that is larger alone is kept alone.
        most_runs: bound of those that nobody looks at now.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_bytes: int = MOST_BYTES,
        most_runs: int = MOST_RUNS,
    ) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._most_runs = most_runs
        self._ones: OrderedDict[str, _One] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ones)

    @property
    def bytes(self) -> int:
        """Of all together, about."""
        return sum(one.traces.bytes for one in self._ones.values())

    def get(self, run: WatchedRun) -> Traces | None:
        """Of this very run: one that was forgotten may have come again under the same id."""
        found = self._ones.get(run.state.run_id)
        return found.traces if found is not None and found.of() is run else None

    def put(self, run: WatchedRun, traces: Traces) -> None:
        """They were asked for now. What was asked for longest ago goes where it is too much."""
        run_id, now = run.state.run_id, self._clock()
        self._ones[run_id] = _One(weakref.ref(run), traces, now)
        self._ones.move_to_end(run_id)
        for gone in [name for name, one in self._ones.items() if one.of() is None]:
            del self._ones[gone]
        while len(self._ones) > 1 and self._is_too_much(now):
            self._ones.popitem(last=False)

    def _is_too_much(self, now: float) -> bool:
        oldest = next(iter(self._ones.values()))
        too_many = len(self._ones) > self._most_runs and now - oldest.asked >= LOOKED_AT_SECONDS
        return too_many or self.bytes > self._most_bytes
