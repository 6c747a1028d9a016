"""The newest steps of a run with their signals, in little memory. Part of the run's state; shown by the API.

One table of doubles and not one dict for each step: a thousand runs with 60 signals each hold 15 million numbers here,
which as Python objects in dicts would be a gigabyte and in tables are an eighth of that.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, NamedTuple

RECENT_STEPS = 128
"""Steps of a run whose signals are remembered."""

_pack = struct.Struct("<d").pack
_ABSENT_BITS = struct.pack("<Q", 0x7FF8_5665_726C_0001)
_ABSENT: float = struct.unpack("<d", _ABSENT_BITS)[0]
"""In a row: the step did not have the signal. A NaN of its own, told by its bits from the NaN that a step has."""


@dataclass(frozen=True, slots=True)
class RecentStep:
    """One logged step as the API shows it."""

    step: int
    attempt: int
    at: float
    """When its first part arrived: Unix seconds of the exporter's clock."""
    signals: dict[str, float]


class NewestStep(NamedTuple):
    """One logged step, with one of its signals."""

    step: int
    attempt: int
    at: float
    value: float | None
    """None where the step did not have it, or it was NaN."""


class RecentSteps:
    """A ring of the newest :data:`RECENT_STEPS` steps.

    >>> recent = RecentSteps()
    >>> recent.append(7, 1, 100.0, {"loss": 0.5})
    >>> recent.append(8, 1, 130.0, {"kl": float("nan")})
    >>> recent.update_last({"loss": 0.25})
    >>> [(row.step, row.signals) for row in recent]
    [(7, {'loss': 0.5}), (8, {'loss': 0.25, 'kl': nan})]
    """

    __slots__ = ("attempts", "names", "oldest", "steps", "times", "values")

    def __init__(self) -> None:
        self.steps: array[int] = array("q")
        self.attempts: array[int] = array("q")
        self.times: array[float] = array("d")
        self.names: dict[str, int] = {}
        """Every signal that a step has had, and its place in a row."""
        self.values: array[float] = array("d")
        """One row for each step, each as long as ``names``; behind them, room for more rows."""
        self.oldest = 0
        """Row of the oldest step, which the next one replaces when the ring is full."""

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data, for a snapshot; the numbers as bytes of the machine's own order."""
        used = len(self.steps) * len(self.names)
        return {
            "steps": self.steps.tobytes(),
            "attempts": self.attempts.tobytes(),
            "times": self.times.tobytes(),
            "names": list(self.names),
            "values": self.values[:used].tobytes(),
            "oldest": self.oldest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.steps, self.attempts = array("q", state["steps"]), array("q", state["attempts"])
        self.times = array("d", state["times"])
        self.names = {name: place for place, name in enumerate(state["names"])}
        self.values = array("d", state["values"])
        self.oldest = state["oldest"]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecentStep]:
        """Every step, oldest first."""
        size, width = len(self.steps), len(self.names)
        for number in range(size):
            row = (self.oldest + number) % size
            values = zip(self.names, self.values[row * width : (row + 1) * width], strict=True)
            signals = {name: value for name, value in values if not isnan(value) or _pack(value) != _ABSENT_BITS}
            yield RecentStep(self.steps[row], self.attempts[row], self.times[row], signals)

    def newest(self, most: int, signal: str) -> list[NewestStep]:
        """The newest steps, at most so many and the newest first, with one of their signals.

        >>> recent = RecentSteps()
        >>> for step in (1, 2, 3):
        ...     recent.append(step, 1, 10.0 * step, {"step_time": 9.0} if step > 1 else {})
        >>> [(row.step, row.at, row.value) for row in recent.newest(2, "step_time")]
        [(3, 30.0, 9.0), (2, 20.0, 9.0)]
        """
        size, width, place = len(self.steps), len(self.names), self.names.get(signal)
        found = []
        for number in range(1, min(most, size) + 1):
            row = (self.oldest - number) % size
            value = None if place is None else self.values[row * width + place]
            if value is not None and isnan(value):
                value = None
            found.append(NewestStep(self.steps[row], self.attempts[row], self.times[row], value))
        return found

    def newest_at(self) -> float:
        """When the newest step arrived; 0 where there is none."""
        return self.times[self.oldest - 1] if self.times else 0.0

    def append(self, step: int, attempt: int, at: float, signals: Mapping[str, float]) -> None:
        """Take the next step; the oldest leaves when there are :data:`RECENT_STEPS`."""
        self._know(signals)
        row = len(self.steps)
        if row < RECENT_STEPS:
            self.steps.append(step)
            self.attempts.append(attempt)
            self.times.append(at)
        else:
            row = self.oldest
            self.steps[row], self.attempts[row], self.times[row] = step, attempt, at
            self.oldest = (row + 1) % RECENT_STEPS
        width, get = len(self.names), signals.get
        values = array("d", [_ABSENT if (v := get(name)) is None else nan if isnan(v) else v for name in self.names])
        if (row + 1) * width > len(self.values):
            # In few and large strides: thousands of arrays that grow by a little tear holes into memory.
            rows = min(RECENT_STEPS, max(8, 4 * row))
            self.values = self.values[: row * width] + array("d", bytes(8 * width * (rows - row)))
        self.values[row * width : (row + 1) * width] = values

    def update_last(self, signals: Mapping[str, float]) -> None:
        """Add what a later part of the newest step brings, in place of what the step had; nothing without a step."""
        if not self.steps:
            return
        self._know(signals)
        first = (self.oldest - 1) % len(self.steps) * len(self.names)
        for name, value in signals.items():
            # For every NaN the one NaN that does not stand for "absent".
            self.values[first + self.names[name]] = nan if isnan(value) else value

    def _know(self, signals: Mapping[str, float]) -> None:
        """Lay the rows out anew where a signal is the first of its name: the steps before did not have it."""
        new = signals.keys() - self.names.keys()
        if not new:
            return
        width = len(self.names)
        absent = array("d", [_ABSENT]) * len(new)
        rows = [self.values[row * width : (row + 1) * width] + absent for row in range(len(self.steps))]
        self.names.update((name, width + number) for number, name in enumerate(n for n in signals if n in new))
        self.values = array("d", b"".join(row.tobytes() for row in rows))
