"""Whether the newest steps of one series lie elsewhere than the ones before: the test for slow and moderate changes.

For several lengths m the mean of the newest m values is compared with the mean of the values before them. Long means
find small changes, short ones find large changes soon. Three things make that fit for signals of a training run:

- Values are clipped at ``CLIP`` robust standard deviations around the median of the recent past before they enter a
  mean. One value, however large, moves a mean of m values by a few standard deviations over m: it cannot make a finding,
  and a spike that heals is none.
- Everything moves while a policy learns, so what is judged is not whether a change is significant but whether it is
  beyond what this run has shown: the threshold is a quantile of the largest changes in its own past blocks (see
  :mod:`exporter.detectors.calibration`), in units of the run's noise.
- A change must also be large enough to matter, whatever the noise: its ``least`` size, which the caller gives.

Used by the detectors of single signals (entropy, KL, response length, reward and so on).

Reference: moving-sum (MOSUM) tests for a change of level: P. Bauer and P. Hackl, The use of MOSUMs for quality control,
Technometrics 20, 1978; with Huber's clipping (P. J. Huber, Robust Statistics, 1981).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.detectors.calibration import BlockMaxima
from exporter.detectors.window import SortedWindow

LENGTHS: Final = (5, 12, 30, 80)
"""Steps of the newest mean."""
BEFORE: Final = 40
"""The mean before it is taken over this many steps, or over as many as the newest where that is more."""
LEAST_BEFORE: Final = 10
LAG: Final = 10
"""The window of noise and median ends this many steps ago."""
CLIP: Final = 5.0
PRIOR: Final = (2.2, 0.55)
"""Location and scale of a healthy block's largest change, in units of the noise of the difference of the means."""
UNSETTLED: Final = 60
"""Steps from the start of an attempt in which learning is fastest and little is known: more is asked of a change."""
_KEPT: Final = 2 * max(LENGTHS)
_BAND: Final = 4.0
"""Robust standard deviations around the median in which the next value is expected."""


@dataclass(frozen=True, slots=True)
class Change:
    """In what the newest steps differ from those before, in the unit of the values that were pushed."""

    size: float
    """Mean of the newest steps less the mean before; signed."""
    before: float
    now: float
    length: int
    """Steps of the newest mean."""
    score: float
    """Size over the size that the run's own past and the budget ask for; above 1 is beyond it."""


class Shift:
    """One series. Values come transformed already (logarithms, say).

    ``least_noise``: noise below this is taken for this much, in the unit of the values. ``window``: values from which
    noise and median are taken. ``warmup``: values before anything is judged.

    >>> series = Shift(least_noise=0.01)
    >>> for step in range(1, 101):
    ...     series.push(step, step % 3 / 10 + (1.0 if step > 80 else 0.0))
    ...     change = series.change(rising=True, least=0.5, rarity=10.0)
    ...     if change is not None:
    ...         print(step, round(change.size, 1), "over", change.length, "steps, since", series.onset(change))
    ...         break
    84 0.6 over 5 steps, since 81
    """

    __slots__ = ("_admitted", "_changes", "_count", "_least", "_past", "_steps", "_sums", "_usual", "_values", "_warmup")

    def __init__(self, *, least_noise: float, window: int = 100, warmup: int = 15) -> None:
        self._least, self._warmup = least_noise, warmup
        self._past = SortedWindow(window)
        self._usual = (BlockMaxima(*PRIOR), BlockMaxima(*PRIOR))  # of falls, of rises
        self.restart()

    def restart(self) -> None:
        """Forget the level, and keep what is known of how much this run's level moves."""
        self._past.clear()
        self._values = array("d")  # clipped
        self._steps = array("q")
        self._sums = array("d", [0.0])  # of the values before each place
        self._admitted = 0  # place of the first value that is not in the window yet
        self._count = 0
        self._changes: list[tuple[float, float, int]] = []  # size, in units of its noise, and length
        for usual in self._usual:
            usual.found()

    @property
    def last_step(self) -> int:
        """Step of the newest value; -1 where there is none."""
        return self._steps[-1] if self._steps else -1

    def push(self, step: int, value: float) -> None:
        """Take the finite value of the next step."""
        values, sums, past = self._values, self._sums, self._past
        if len(values) >= 2 * _KEPT:
            self._shorten()
            values, sums = self._values, self._sums
        noise = 0.0
        if len(past) >= 5:
            middle, noise = past.median(), self._noise()
            value = min(max(value, middle - CLIP * noise), middle + CLIP * noise)
        self._count += 1
        values.append(value)
        self._steps.append(step)
        sums.append(sums[-1] + value)
        until = len(values) - min(LAG, self._count // 3)
        while self._admitted < until:
            past.push(values[self._admitted])
            self._admitted += 1
        self._compare(noise)

    def _compare(self, noise: float) -> None:
        self._changes = []
        if self._count <= self._warmup or not noise:
            return
        sums, total = self._sums, len(self._values)
        newest = sums[total]
        highest = lowest = 0.0
        for length in LENGTHS:
            before = min(max(BEFORE, length), total - length)
            if before < LEAST_BEFORE or before * 2 < length:
                break
            start = sums[total - length]
            size = (newest - start) / length - (start - sums[total - length - before]) / before
            ratio = size / (noise * math.sqrt(1.0 / length + 1.0 / before))
            self._changes.append((size, ratio, length))
            if ratio > highest:
                highest = ratio
            elif ratio < lowest:
                lowest = ratio
        self._usual[0].push(-lowest)
        self._usual[1].push(highest)

    def _noise(self) -> float:
        """Standard deviation, by quartiles or by outer deciles, whichever is more."""
        past = self._past
        middle = past.quantile(0.75) - past.quantile(0.25)
        outer = past.quantile(0.9) - past.quantile(0.1)
        return max(middle / 1.349, outer / 2.563, self._least, 1e-6 * abs(past.median()))

    def asked(self, *, rising: bool, rarity: float) -> float:
        """Units of noise that a change must exceed."""
        unsettled = max(0, UNSETTLED - self._count) / UNSETTLED
        return self._usual[rising].quantile(rarity) * (1.0 + 0.5 * unsettled)

    def change(self, *, rising: bool, least: float, rarity: float) -> Change | None:
        """The clearest change of at least ``least`` that is beyond what the run has shown; ``rarity``: of a finding."""
        sign = 1.0 if rising else -1.0
        asked = 0.0
        best: tuple[float, float, int] | None = None
        for found in self._changes:
            size, ratio, _ = found
            if sign * size < least:
                continue
            asked = asked or self.asked(rising=rising, rarity=rarity)
            if sign * ratio > asked and (best is None or sign * ratio > sign * best[1]):
                best = found
        if best is None:
            return None
        size, ratio, length = best
        total = len(self._values)
        now = (self._sums[total] - self._sums[total - length]) / length
        return Change(size, now - size, now, length, sign * ratio / asked)

    def found(self, *, rising: bool) -> None:
        """A finding holds: what the newest steps show is not what is usual."""
        self._usual[rising].found()

    def onset(self, change: Change) -> int:
        """First step of a change, estimated: where the values pass from nearer the old mean to nearer the new."""
        sign = math.copysign(1.0, change.size)
        between = 0.5 * (change.before + change.now)
        first = best = len(self._values) - 1
        total = highest = 0.0
        for place in range(first, max(first - 2 * change.length, -1), -1):
            total += sign * (self._values[place] - between)
            if total > highest:
                highest, best = total, place
        return self._steps[best]

    def band(self) -> tuple[float, float, float] | None:
        """What is expected of the next value: median, and where the unusual begins below and above."""
        if self._count <= self._warmup or not self._past:
            return None
        middle, reach = self._past.median(), _BAND * self._noise()
        return middle, middle - reach, middle + reach

    def _shorten(self) -> None:
        """Drop the oldest values. Sums are made anew, so that rounding does not add up."""
        dropped = len(self._values) - _KEPT
        self._values = self._values[dropped:]
        self._steps = self._steps[dropped:]
        self._admitted -= dropped
        self._sum_up()

    def _sum_up(self) -> None:
        self._sums = array("d", [0.0])
        for value in self._values:
            self._sums.append(self._sums[-1] + value)

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        return {
            "past": list(self._past),
            "values": list(self._values),
            "steps": list(self._steps),
            "admitted": self._admitted,
            "count": self._count,
            "changes": [list(change) for change in self._changes],
            "usual": [usual.state() for usual in self._usual],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self._past.clear()
        for value in state["past"]:
            self._past.push(float(value))
        self._values = array("d", state["values"])
        self._steps = array("q", state["steps"])
        self._sum_up()
        self._admitted, self._count = state["admitted"], state["count"]
        self._changes = [(float(size), float(ratio), int(length)) for size, ratio, length in state["changes"]]
        for usual, kept in zip(self._usual, state["usual"], strict=True):
            usual.load(kept)
