"""Whether the newest steps of one series lie elsewhere than the ones before: the test for slow and moderate changes.

For several lengths m the mean of the newest m values is compared with the mean of the values before them. Long means
find small changes, short ones find large changes soon. Three things make that fit for signals of a training run:

- Values are clipped at ``CLIP`` robust standard deviations around the median of the recent past before they enter a
  mean. One value, however large, moves a mean of m values by a few standard deviations over m: it cannot make a
  finding, and a spike that heals is none. How large a change is, once it is clear that there is one, is told by
  medians.
- Everything moves while a policy learns, so what is judged is not whether a change is significant but whether it is
  beyond what this run has shown: the threshold is a quantile of the largest changes in its own past blocks (see
  :mod:`exporter.detectors.calibration`), in units of the run's noise.
- A change must also be large enough to matter, whatever the noise: its ``least`` size, which the caller gives.

Used by the detectors of single signals (entropy, KL, response length, reward and so on).

Reference: moving-sum (MOSUM) tests for a change of level: P. Bauer and P. Hackl, The use of MOSUMs for quality
control, Technometrics 20, 1978; with Huber's clipping (P. J. Huber, Robust Statistics, 1981).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from exporter.detectors.calibration import BlockMaxima

LENGTHS: Final = (5, 12, 30, 60)
"""Steps of the newest mean."""
BEFORE: Final = 40
"""The mean before it is taken over this many steps, or over as many as the newest where that is more."""
LEAST_BEFORE: Final = 10
LAG: Final = 10
"""The window of noise and median ends this many steps ago."""
CLIP: Final = 5.0
REACHED: Final = 0.75
"""Share of what a mean can reach at most, since values are clipped, that is always enough: no past asks for more."""
FEWEST: Final = 2.0
"""Units of noise below which no budget makes a finding."""
PRIOR: Final = (4.8, 2.4)
"""Location and scale of the square of a healthy block's largest change, in units of the noise of the difference of the
means. Squares, since the tail of a normal variable's square falls as that of Gumbel's distribution does."""
UNSETTLED: Final = 60
"""Steps from the start of an attempt in which learning is fastest and little is known: more is asked of a change."""
SHORT: Final = 12
_SHORT: Final = sum(length <= SHORT for length in LENGTHS)
SELDOM: Final = 3
"""Longer means than ``SHORT`` are compared at every third step: they move slowly."""
MEASURED: Final = 16
"""Steps after which median and noise are measured again; more often while the attempt is young."""
LEAST_MEASURED: Final = 6
_KEPT: Final = 2 * max(LENGTHS)
ROUNDING: Final = 1e-5
"""Share of the median that noise is taken for at least: sums are kept as narrow floats."""
_FARTHEST: Final = 2**31 - 1
_SPACE: Final = 24
"""Values by which the store grows before the oldest are dropped."""
_WIDTH: Final = {
    (length, before): math.sqrt(1.0 / length + 1.0 / before)
    for length in LENGTHS
    for before in range(LEAST_BEFORE, max(BEFORE, length) + 1)
}
"""Standard deviation of the difference of two means, by their lengths, in units of the noise."""


@dataclass(frozen=True, slots=True)
class Change:
    """In what the newest steps differ from those before, in the unit of the values that were pushed."""

    size: float
    """Median of the newest steps less the median before; signed."""
    before: float
    now: float
    length: int
    """Newest steps that were compared with those before."""
    score: float
    """Size over the size that the run's own past and the budget ask for; above 1 is beyond it."""


class Shift:
    """One series. Values come transformed already (logarithms, say).

    ``least_noise``: noise below this is taken for this much, in the unit of the values. ``window``: values, at most
    110, from which noise and median are taken. ``warmup``: values before anything is judged.

    >>> series = Shift(least_noise=0.01)
    >>> for step in range(1, 101):
    ...     series.push(step, step % 3 / 10 + (1.0 if step > 80 else 0.0))
    ...     change = series.change(rising=True, least=0.5, rarity=10.0)
    ...     if change is not None:
    ...         print(step, round(change.size, 1), "over", change.length, "steps, since", series.onset(change))
    ...         break
    83 0.9 over 5 steps, since 81
    """

    __slots__ = (
        "_clipped",
        "_count",
        "_least",
        "_middle",
        "_noise",
        "_origin",
        "_ratios",
        "_reach",
        "_steps",
        "_sums",
        "_usual",
        "_values",
        "_warmup",
        "_window",
        "highest",
        "last_step",
        "lowest",
    )

    def __init__(self, *, least_noise: float, window: int = 100, warmup: int = 15) -> None:
        self._least, self._warmup = least_noise, warmup
        self._window = min(window, _KEPT - LAG)
        self._usual = BlockMaxima(2 * len(LENGTHS), *PRIOR)  # falls by length, then rises
        self.restart()

    def restart(self) -> None:
        """Forget the level, and keep what is known of how much this run's level moves."""
        # Half as wide as a float is enough to find medians by, and there is one of these for each series of each run.
        self._values, self._clipped = array("f"), array("f")
        self._steps, self._origin = array("i"), 0  # from the origin on
        self._sums = array("f", [0.0])  # of the clipped values before each place
        self._count = 0
        self._ratios = array("d")  # changes by length, in units of their noise
        self.highest = self.lowest = 0.0
        """The largest change upwards, and downwards (below 0), in units of its noise."""
        self.last_step = -1
        """Step of the newest value; -1 where there is none."""
        self._middle = self._reach = self._noise = 0.0  # of the window, as last measured
        self._usual.restart()

    def push(self, step: int, value: float) -> None:
        """Take the finite value of the next step."""
        clipped = self._clipped
        if len(clipped) >= _KEPT + _SPACE:
            self._shorten()
        count = self._count = self._count + 1
        self.last_step = step
        self._values.append(value)
        if count == 1:
            self._origin = step
        self._steps.append(min(step - self._origin, _FARTHEST))
        if count % MEASURED == 0 or (count <= UNSETTLED and count % 4 == 0):
            self._measure()
        if self._noise:
            if value > self._middle + self._reach:
                value = self._middle + self._reach
            elif value < self._middle - self._reach:
                value = self._middle - self._reach
        clipped.append(value)
        self._sums.append(self._sums[-1] + clipped[-1])
        if count > self._warmup and self._noise:
            self._compare()

    def _measure(self) -> None:
        """Median of the window, how far values may lie from it, and the noise.

        Noise is taken from the jumps between neighbours, so that a trend, or the fault itself, is none.
        """
        end = len(self._clipped) - min(LAG, self._count // 3)
        past = self._clipped[max(0, end - self._window) : end]
        last = len(past) - 1
        if last < LEAST_MEASURED:
            return
        jumps = sorted([abs(after - before) for before, after in pairwise(past)])
        noise = max(jumps[last // 2] / 0.954, jumps[last * 4 // 5] / 1.812)
        ordered = sorted(past)
        self._middle = ordered[last // 2]
        self._noise = max(noise, self._least, ROUNDING * abs(self._middle))
        quartiles = (ordered[last * 3 // 4] - ordered[last // 4]) / 1.349
        deciles = (ordered[last * 9 // 10] - ordered[last // 10]) / 2.563
        self._reach = CLIP * max(quartiles, deciles, self._noise)

    def _compare(self) -> None:
        sums, noise, ratios = self._sums, self._noise, self._ratios
        total = len(sums) - 1
        newest = sums[total]
        compared = _SHORT if len(ratios) == len(LENGTHS) and self._count % SELDOM else len(LENGTHS)
        for place in range(compared):
            length = LENGTHS[place]
            before = length if length > BEFORE else BEFORE
            if total - length < before:
                before = total - length
                if before < LEAST_BEFORE or before * 2 < length:
                    break
            start = sums[total - length]
            size = (newest - start) / length - (start - sums[total - length - before]) / before
            ratio = size / (noise * _WIDTH[length, before])
            if place < len(ratios):
                ratios[place] = ratio
            else:
                ratios.append(ratio)
        highest = lowest = 0.0
        usual, of_rises = self._usual, len(LENGTHS)
        largest = usual.largest
        for place, ratio in enumerate(ratios):
            square = ratio * ratio
            if ratio > 0.0:
                highest = max(highest, ratio)
                if square > largest[place + of_rises]:
                    usual.raise_to(place + of_rises, square)
            else:
                lowest = min(lowest, ratio)
                if square > largest[place]:
                    usual.raise_to(place, square)
        self.highest, self.lowest = highest, lowest
        usual.step()

    def change(self, *, rising: bool, least: float, rarity: float) -> Change | None:
        """The clearest of :meth:`changes`."""
        found = self.changes(rising=rising, least=least, rarity=rarity)
        return found[0] if found else None

    def changes(self, *, rising: bool, least: float, rarity: float) -> list[Change]:
        """Changes of at least ``least`` that are beyond what the run has shown, the clearest first.

        ``rarity``: of a finding, from the budget of pages.
        """
        if (self.highest if rising else -self.lowest) < FEWEST:
            return []
        unsettled = 1.0 + 0.5 * max(0, UNSETTLED - self._count) / UNSETTLED
        sign, first = (1.0, len(LENGTHS)) if rising else (-1.0, 0)
        found = []
        for place, ratio in enumerate(self._ratios):
            if sign * ratio < FEWEST:
                continue
            length = LENGTHS[place]
            before = min(max(BEFORE, length), len(self._values) - length)
            most = REACHED * self._reach / (self._noise * _WIDTH[length, before])
            asked = min(unsettled * math.sqrt(max(self._usual.quantile(first + place, rarity), 0.0)), most)
            score = sign * ratio / max(asked, FEWEST)
            if score > 1.0:
                change = self._measured(length, before, score)
                if sign * change.size >= least:
                    found.append(change)
        found.sort(key=_clearness)
        return found

    def _measured(self, length: int, before: int, score: float) -> Change:
        start = len(self._values) - length
        now, then = median(self._values[start:]), median(self._values[start - before : start])
        return Change(now - then, then, now, length, score)

    @property
    def count(self) -> int:
        """Values since the start of the attempt."""
        return self._count

    @property
    def noise(self) -> float:
        """Standard deviation of a single value, as last measured; 0 where not known yet."""
        return self._noise

    def found(self, *, rising: bool) -> None:
        """A finding holds: what the newest steps show is not what is usual."""
        count = len(LENGTHS)
        self._usual.found(range(count, 2 * count) if rising else range(count))

    def onset(self, change: Change) -> int:
        """First step of a change, estimated: where the values have left the old level by a quarter of the way.

        A quarter, since most changes are slopes, and a step too early costs less than one too late.
        """
        sign = math.copysign(1.0, change.size)
        between = 0.75 * change.before + 0.25 * change.now
        first = best = len(self._values) - 1
        total = highest = 0.0
        for place in range(first, max(first - 2 * change.length, -1), -1):
            total += sign * (self._values[place] - between)
            if total > highest:
                highest, best = total, place
        return self._origin + self._steps[best]

    def recent(self, since: int, most: int = 40) -> tuple[list[float], list[float]]:
        """Steps and values from step ``since`` on, the newest always, thinned to about ``most``."""
        steps, last = self._steps, len(self._steps) - 1
        first = next((place for place, step in enumerate(steps) if self._origin + step >= since), last)
        places = range(last, first - 1, -max(1, (last + 1 - first) // most))
        return [float(self._origin + steps[p]) for p in reversed(places)], [self._values[p] for p in reversed(places)]

    def band(self) -> tuple[float, float, float] | None:
        """What is expected of the next value: the median, and where it is clipped below and above."""
        if self._count <= self._warmup or not self._noise:
            return None
        return self._middle, self._middle - self._reach, self._middle + self._reach

    def _shorten(self) -> None:
        """Drop the oldest values. Sums are made anew, so that rounding does not add up."""
        dropped = len(self._values) - _KEPT
        del self._values[:dropped], self._clipped[:dropped], self._steps[:dropped]
        self._sum_up()

    def _sum_up(self) -> None:
        self._sums = array("f", [0.0])
        for value in self._clipped:
            self._sums.append(self._sums[-1] + value)

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        return {
            "values": list(self._values),
            "clipped": list(self._clipped),
            "steps": [self._origin, *self._steps],
            "count": self._count,
            "ratios": list(self._ratios),
            "extremes": [self.highest, self.lowest],
            "last_step": self.last_step,
            "noise": [self._middle, self._reach, self._noise],
            "usual": self._usual.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self._values, self._clipped = array("f", state["values"]), array("f", state["clipped"])
        self._origin, *steps = state["steps"]
        self._steps, self.last_step = array("i", steps), state["last_step"]
        self._sum_up()
        self._count = state["count"]
        self._ratios = array("d", state["ratios"])
        self.highest, self.lowest = state["extremes"]
        self._middle, self._reach, self._noise = state["noise"]
        self._usual.load(state["usual"])


def _clearness(change: Change) -> float:
    return -change.score
