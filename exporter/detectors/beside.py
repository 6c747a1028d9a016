"""How a signal moves beside the one that is judged: its newest values, compared only when somebody asks.

Used by the detectors of single signals, which want to know whether the reward rises while the entropy falls, say. A
push costs next to nothing. Noise is taken from the jumps between neighbours, as in :mod:`exporter.detectors.shift`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any, Final

KEPT: Final = 120
LEAST_BEFORE: Final = 10
_SPACE: Final = 40
"""Values by which the store grows before the oldest are dropped."""


class Beside:
    """The newest values of one series. ``least_noise``: noise below this is taken for this much.

    >>> reward = Beside(0.01)
    >>> for step in range(60):
    ...     reward.push(step, step % 2 / 10 + (0.3 if step >= 40 else 0.0))
    >>> round(reward.drift(20), 1)
    10.5
    """

    __slots__ = ("_least", "_values", "last_step")

    def __init__(self, least_noise: float) -> None:
        self._least = least_noise
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._values = array("f")
        self.last_step = -1
        """Step of the newest value; -1 where there is none."""

    def push(self, step: int, value: float) -> None:
        """Take the finite value of the next step."""
        self._values.append(value)
        self.last_step = step
        if len(self._values) >= KEPT + _SPACE:
            del self._values[:_SPACE]

    def drift(self, length: int) -> float:
        """Mean of the newest ``length`` values less that of the ones before, in units of its noise; 0 for too few."""
        before = min(max(length, 40), len(self._values) - length)
        if before < LEAST_BEFORE:
            return 0.0
        values = self._values[-length - before :]
        noise = max(median(abs(b - a) for a, b in pairwise(values)) / 0.954, self._least)
        # Wild values count as three deviations from the middle: one of them is no move.
        middle = median(values)
        reach = 3.0 * max(noise, median(abs(value - middle) for value in values) / 0.674)
        held = [min(max(value, middle - reach), middle + reach) for value in values]
        size = sum(held[before:]) / length - sum(held[:before]) / before
        return size / (noise * math.sqrt(1.0 / length + 1.0 / before))

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        return {"values": list(self._values), "last_step": self.last_step}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self._values, self.last_step = array("f", state["values"]), state["last_step"]
