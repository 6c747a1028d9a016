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
from array import array
from collections.abc import Iterable
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
WARNINGS_PER_PAGE: Final = 100.0
"""A warning costs a hundredth of a page: nobody is woken."""
MOST: Final = 8.0
_GUMBEL_MEAN: Final = 0.5772156649015329
_GUMBEL_SD: Final = math.pi / math.sqrt(6.0)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a user accepts. ``pages_per_week``: pages that a week of a healthy run may cost, all detectors together.

    >>> round(Budget(1.0).rarity(), 1), round(Budget(50).rarity(), 1)
    (9.9, 6.0)
    """

    pages_per_week: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.pages_per_week, bool) or not 0.001 <= self.pages_per_week <= 1000:
            raise ValueError(f"pages_per_week is {self.pages_per_week!r}: it must be from 0.001 to 1000")

    def rarity(self, step_seconds: float = USUAL_STEP_SECONDS) -> float:
        """``-ln p`` of a page of one series in one block; ``step_seconds``: of the run's usual step."""
        return math.log(WEEK * SERIES / (self.pages_per_week * BLOCK * step_seconds))

    def least(self) -> float:
        """Times a detector's least size of change: who accepts ten times as many pages hears of 15 % smaller changes.

        >>> [round(Budget(pages).least(), 2) for pages in (0.01, 1.0, 100.0)]
        [1.3, 1.0, 0.7]
        """
        return 1.0 - 0.15 * math.log10(self.pages_per_week)


class BlockMaxima:
    """What is usual for the largest values of some statistics in a block of steps.

    ``count``: statistics. ``location``, ``scale``: the prior's, in the statistics' unit.

    >>> usual = BlockMaxima(1, 2.0, 0.5)
    >>> round(usual.quantile(0, 10.0), 1)
    7.0
    >>> for step in range(2000):
    ...     usual.raise_to(0, 1.0 + (step % 40 == 0))
    ...     usual.step()
    >>> round(usual.quantile(0, 10.0), 1)
    5.6
    """

    __slots__ = ("_in_block", "_means", "_seen", "_squares", "_waiting", "largest")

    def __init__(self, count: int, location: float, scale: float) -> None:
        # Arrays: there is one of these for each watched series of each run.
        self._waiting = array("f")  # blocks that are not learned from yet, one after the other, oldest first
        self._in_block = 0
        self.largest = array("f", [0.0] * count)
        """Of each statistic the largest value in the block so far."""
        self._seen = PRIOR_BLOCKS
        mean = location + _GUMBEL_MEAN * scale
        self._means = array("f", [mean] * count)
        self._squares = array("f", [(_GUMBEL_SD * scale) ** 2 + mean**2] * count)

    def raise_to(self, place: int, value: float) -> None:
        """A statistic of this step is above ``largest``; one far beyond the usual counts as ``MOST`` scales beyond."""
        self.largest[place] = max(min(value, self.quantile(place, MOST)), self.largest[place])

    def step(self) -> None:
        """The step's statistics are all there."""
        self._in_block += 1
        if self._in_block >= BLOCK:
            self._end_block()

    def _end_block(self) -> None:
        count = len(self.largest)
        self._waiting.extend(self.largest)
        self._clear_block()
        if len(self._waiting) <= DELAY * count:
            return
        self._seen = min(self._seen + 1.0, MEMORY)
        for place in range(count):
            value = self._waiting[place]
            self._means[place] += (value - self._means[place]) / self._seen
            self._squares[place] += (value * value - self._squares[place]) / self._seen
        del self._waiting[:count]

    def _clear_block(self) -> None:
        self.largest = array("f", [0.0] * len(self.largest))
        self._in_block = 0

    def found(self, places: Iterable[int]) -> None:
        """A finding of these statistics holds: the newest blocks are part of it, and nothing is learned from them."""
        for place in places:
            location = self.quantile(place, 0.0)
            self.largest[place] = 0.0
            for block in range(place, len(self._waiting), len(self.largest)):
                self._waiting[block] = min(self._waiting[block], location)

    def restart(self) -> None:
        """What waits to be learned is of another attempt."""
        self._waiting = array("f")
        self._clear_block()

    def quantile(self, place: int, rarity: float) -> float:
        """The value that a healthy block's maximum exceeds with probability ``exp(-rarity)``; at 0 the location."""
        mean = self._means[place]
        scale = math.sqrt(max(self._squares[place] - mean * mean, 1e-12)) / _GUMBEL_SD
        return mean - _GUMBEL_MEAN * scale + rarity * scale

    def state(self) -> list[Any]:
        """Plain data, for :meth:`load`."""
        arrays = (self._waiting, self.largest, self._means, self._squares)
        return [self._in_block, self._seen, *(list(values) for values in arrays)]

    def load(self, state: Any) -> None:
        """Take over what :meth:`state` gave."""
        self._in_block, self._seen, *arrays = state
        self._waiting, self.largest, self._means, self._squares = (array("f", values) for values in arrays)
