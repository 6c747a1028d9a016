"""The newest steps of a run with their signals, in little memory. Part of the run's state; shown by the API.

One column of doubles for each signal and not one dict for each step: a thousand runs with 60 signals each hold 15
million numbers here, which as Python objects in dicts would be a gigabyte and in columns are an eighth of that.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Integers = array[int]
    Numbers = array[float]
else:
    # A snapshot evaluates the annotations below, and before Python 3.12 an array takes no parameter.
    Integers = Numbers = array

RECENT_STEPS = 256
"""Steps of a run whose signals are remembered."""

_pack = struct.Struct("<d").pack
_ABSENT_BITS = struct.pack("<Q", 0x7FF8_5665_726C_0001)
_ABSENT: float = struct.unpack("<d", _ABSENT_BITS)[0]
"""In a column: the step did not have the signal. A NaN of its own, told by its bits from the NaN that a step has."""


@dataclass(frozen=True, slots=True)
class RecentStep:
    """One logged step as the API shows it."""

    step: int
    attempt: int
    at: float
    """When its first part arrived: Unix seconds of the exporter's clock."""
    signals: dict[str, float]


class RecentSteps:
    """A ring of the newest :data:`RECENT_STEPS` steps.

    >>> recent = RecentSteps()
    >>> recent.append(7, 1, 100.0, {"loss": 0.5})
    >>> recent.append(8, 1, 130.0, {"kl": float("nan")})
    >>> recent.update_last({"loss": 0.25})
    >>> [(row.step, row.signals) for row in recent]
    [(7, {'loss': 0.5}), (8, {'loss': 0.25, 'kl': nan})]
    """

    __slots__ = ("attempts", "columns", "oldest", "steps", "times")

    def __init__(self) -> None:
        self.steps: array[int] = array("q")
        self.attempts: array[int] = array("q")
        self.times: array[float] = array("d")
        self.columns: dict[str, array[float]] = {}
        """Signal to values, one for each step; a signal that appears later is filled up with "absent" before."""
        self.oldest = 0
        """Slot of the oldest step, which the next one replaces when the ring is full."""

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data, for a snapshot; the numbers as bytes of the machine's own order."""
        return {
            "steps": self.steps.tobytes(),
            "attempts": self.attempts.tobytes(),
            "times": self.times.tobytes(),
            "columns": {name: column.tobytes() for name, column in self.columns.items()},
            "oldest": self.oldest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.steps, self.attempts = array("q", state["steps"]), array("q", state["attempts"])
        self.times = array("d", state["times"])
        self.columns = {name: array("d", column) for name, column in state["columns"].items()}
        self.oldest = state["oldest"]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecentStep]:
        """Every step, oldest first."""
        size = len(self.steps)
        for number in range(size):
            slot = (self.oldest + number) % size
            signals = {
                name: value
                for name, column in self.columns.items()
                if not isnan(value := column[slot]) or _pack(value) != _ABSENT_BITS
            }
            yield RecentStep(self.steps[slot], self.attempts[slot], self.times[slot], signals)

    def append(self, step: int, attempt: int, at: float, signals: Mapping[str, float]) -> None:
        """Take the next step; the oldest leaves when there are :data:`RECENT_STEPS`."""
        if len(self.steps) < RECENT_STEPS:
            self.steps.append(step)
            self.attempts.append(attempt)
            self.times.append(at)
            for column in self.columns.values():
                column.append(_ABSENT)
        else:
            slot = self.oldest
            self.steps[slot], self.attempts[slot], self.times[slot] = step, attempt, at
            self.oldest = (slot + 1) % RECENT_STEPS
            for name, column in self.columns.items():
                if name not in signals:
                    column[slot] = _ABSENT
        self.update_last(signals)

    def update_last(self, signals: Mapping[str, float]) -> None:
        """Add what a later part of the newest step brings, in place of what the step had; nothing without a step."""
        if not self.steps:
            return
        slot, columns = (self.oldest - 1) % len(self.steps), self.columns
        for name, value in signals.items():
            if name not in columns:
                columns[name] = array("d", [_ABSENT]) * len(self.steps)
            columns[name][slot] = nan if isnan(value) else value
