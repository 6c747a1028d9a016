"""From a budget of pages to a threshold, by extreme-value theory on what a run's own healthy steps have shown.

A user says how many pages a week a healthy run may cost. Each series that may page gets an equal share, so the chance
that its statistic goes beyond the threshold within one block of ``BLOCK`` steps must be

    p = pages a week x seconds of a block / seconds of a week / series

The largest value of the statistic in a block of healthy steps is taken for Gumbel-distributed, the limit for maxima of
light-tailed noise; the statistics are built so (values are clipped before they enter, so no single one rules). Its
quantile at ``1 - p`` is the threshold. Location and scale are estimated from the run's own blocks by moments, blended
with a prior that counts for ``PRIOR_BLOCKS`` blocks: a run is judged from its first blocks on, and by itself after some
hundreds of steps. What would raise the threshold because it is the fault itself is kept out: a block enters only
``DELAY`` blocks later, no larger than ``MOST`` scales above the location, and not at all while a finding holds.

Used by :mod:`exporter.detectors.shift`.

Reference: block maxima and their Gumbel limit: E. J. Gumbel, Statistics of Extremes, 1958; thresholds of a stream by
extreme values: A. Siffer et al., Anomaly Detection in Streams with Extreme Value Theory, KDD 2017.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

BLOCK: Final = 20
"""Steps of a block."""
DELAY: Final = 3
"""Blocks that pass before one is learned from: as long as a slow fault may take to be found."""
PRIOR_BLOCKS: Final = 10.0
MEMORY: Final = 60.0
"""Blocks after which the oldest no longer count for much."""
SERIES: Final = 40
"""Statistics of a run that may page, about: the detectors' tables together."""
WEEK: Final = 7 * 86_400.0
USUAL_STEP_SECONDS: Final = 60.0
WARNINGS_PER_PAGE: Final = 20.0
"""A warning costs a twentieth of a page: nobody is woken."""
MOST: Final = 8.0
_GUMBEL_MEAN: Final = 0.5772156649015329
_GUMBEL_SD: Final = math.pi / math.sqrt(6.0)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a user accepts. ``pages_per_week``: pages that a week of a healthy run may cost, all detectors together.

    >>> round(Budget(0.5).rarity(), 1), round(Budget(50).rarity(), 1)
    (10.6, 6.0)
    """

    pages_per_week: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.pages_per_week, bool) or not 0.001 <= self.pages_per_week <= 1000:
            raise ValueError(f"pages_per_week is {self.pages_per_week!r}: it must be from 0.001 to 1000")

    def rarity(self, step_seconds: float = USUAL_STEP_SECONDS) -> float:
        """``-ln p`` of a page of one series in one block; ``step_seconds``: of the run's usual step."""
        return math.log(WEEK * SERIES / (self.pages_per_week * BLOCK * step_seconds))


class BlockMaxima:
    """What is usual for the largest value of a statistic in a block of steps.

    ``location``, ``scale``: the prior's, in the statistic's unit.

    >>> usual = BlockMaxima(2.0, 0.5)
    >>> round(usual.quantile(10.0), 1)
    7.0
    >>> for step in range(2000):
    ...     usual.push(1.0 + (step % 40 == 0))
    >>> round(usual.quantile(10.0), 1)
    5.6
    """

    __slots__ = ("_count", "_in_block", "_largest", "_location", "_mean", "_scale", "_square", "_waiting")

    def __init__(self, location: float, scale: float) -> None:
        self._waiting: deque[float] = deque()
        self._in_block = 0
        self._largest = 0.0
        self._count = PRIOR_BLOCKS
        self._mean = location + _GUMBEL_MEAN * scale
        self._square = (_GUMBEL_SD * scale) ** 2 + self._mean**2
        self._fit()

    def _fit(self) -> None:
        self._scale = math.sqrt(max(self._square - self._mean**2, 1e-12)) / _GUMBEL_SD
        self._location = self._mean - _GUMBEL_MEAN * self._scale

    def push(self, statistic: float) -> None:
        """Take the statistic of a step; far more than was usual so far counts as :data:`MOST` scales beyond it."""
        if statistic > self._largest:
            self._largest = min(statistic, self._location + MOST * self._scale)
        self._in_block += 1
        if self._in_block < BLOCK:
            return
        self._waiting.append(self._largest)
        self._in_block, self._largest = 0, 0.0
        if len(self._waiting) > DELAY:
            largest = self._waiting.popleft()
            self._count = min(self._count + 1.0, MEMORY)
            self._mean += (largest - self._mean) / self._count
            self._square += (largest * largest - self._square) / self._count
            self._fit()

    def found(self) -> None:
        """A finding holds: the newest blocks are part of it, and nothing is learned from them."""
        if self._waiting or self._in_block:
            self._waiting.clear()
            self._in_block, self._largest = 0, 0.0

    def quantile(self, rarity: float) -> float:
        """The value that a healthy block's maximum exceeds with probability ``exp(-rarity)``."""
        return self._location + rarity * self._scale

    def state(self) -> list[Any]:
        """Plain data, for :meth:`load`."""
        return [list(self._waiting), self._in_block, self._largest, self._count, self._mean, self._square]

    def load(self, state: Any) -> None:
        """Take over what :meth:`state` gave."""
        waiting, self._in_block, self._largest, self._count, self._mean, self._square = state
        self._waiting = deque(float(value) for value in waiting)
        self._fit()
