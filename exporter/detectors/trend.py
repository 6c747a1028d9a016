"""Robust trends, and when they reach a limit: used by the detectors that forecast (memory, entropy, KL).

:class:`Trend` keeps a bounded window of a series, thinned: it holds at most ``points`` numbers, each the median of some
neighbouring steps, and takes more steps into one number as the window gets longer, up to ``span`` steps in all. The
line through them is that of Theil and Sen (the median of the slopes of all pairs), which 29 % of wild values do not
move; its interval is Sen's, from the distribution of Kendall's tau, which needs no assumption on the noise. Neighbours
in a metric are not independent, and an interval that takes them so is too narrow: the variance of tau is raised by the
autocorrelation of the residuals.

A push costs O(1), a line O(points squared).
:class:`Pace` turns steps into seconds.

References: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the American
Statistical Association 63, 1968; K. H. Hamed and A. R. Rao, A modified Mann-Kendall trend test for autocorrelated data,
Journal of Hydrology 204, 1998 (here with the first lag only).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from exporter.detectors.base import StepSample

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""
LEAST_POINTS = 5
"""Fewer points make no line: Sen's interval is empty of meaning below."""
LARGEST = 1e150
"""Values beyond are taken for this: differences of floats near their end overflow."""
MOST_CORRELATION = 0.9
NEVER = 1e6
"""Steps after which nothing is forecast any more."""


class Line(NamedTuple):
    """A straight line through a window of a series. Slopes are in the signal's unit a step."""

    step: float
    """Newest step of the window."""
    level: float
    """The line's height there."""
    slope: float
    low: float
    high: float
    """Interval of the slope, at 95 %."""
    tau: float
    """Kendall's tau, -1 to 1: pairs that rise less pairs that fall, as a share of all pairs."""
    scatter: float
    """Median distance of the points from the line."""
    points: int


class Arrival(NamedTuple):
    """Steps from a line's newest step to a limit; ``early`` and ``late`` from the interval of the slope."""

    steps: float
    early: float
    late: float


def theil_sen(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """The line of Theil and Sen with Sen's interval; None for fewer than five points.

    ``xs`` must rise strictly, and all numbers be finite. O(n squared).

    >>> line = theil_sen([0, 1, 2, 3, 4, 5, 6], [1.0, 3.1, 5.0, 700.0, 8.9, 11.0, 13.1])
    >>> f"{line.slope:.2f} from {line.low:.2f} to {line.high:.2f}, now {line.level:.1f}"
    '2.00 from 1.90 to 2.10, now 13.0'
    """
    n = len(xs)
    if n < LEAST_POINTS:
        return None
    slopes = []
    for i in range(1, n):
        x, y = xs[i], ys[i]
        slopes += [(y - v) / (x - u) for u, v in zip(xs[:i], ys[:i], strict=True)]
    slopes.sort()
    slope = _middle(slopes)
    rests = [y - slope * x for x, y in zip(xs, ys, strict=True)]
    base = median(rests)
    rests = [rest - base for rest in rests]
    spread = Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0 * _inflation(rests))
    pairs = len(slopes)
    first = max(int((pairs - spread) / 2.0), 0)
    falling, rising = bisect_left(slopes, 0.0), pairs - bisect_right(slopes, 0.0)
    return Line(
        step=xs[-1],
        level=base + slope * xs[-1],
        slope=slope,
        low=slopes[first],
        high=slopes[pairs - 1 - first],
        tau=(rising - falling) / pairs,
        scatter=median([abs(rest) for rest in rests]),
        points=n,
    )


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * ordered[half - 1] + 0.5 * ordered[half]


def _inflation(rests: Sequence[float]) -> float:
    """By how much the variance of tau grows when neighbours are alike: (1 + r) / (1 - r), r of the residuals' signs.

    Of signs, so that one wild value does not hide what the others share.
    """
    signs = [(rest > 0.0) - (rest < 0.0) for rest in rests]
    power = sum(s * s for s in signs)
    if not power:
        return 1.0
    r = sum(a * b for a, b in pairwise(signs)) / power
    r = min(max(r, 0.0), MOST_CORRELATION)
    return (1.0 + r) / (1.0 - r)


def arrival(line: Line, limit: float) -> Arrival | None:
    """When ``line`` reaches ``limit``, up or down; None where it comes no nearer, or not within a million steps.

    A line that is beyond the limit already comes no nearer: compare ``line.level`` first. The interval has the scatter
    around the line in it; its late end is a million steps where the slope may be none.

    >>> line = theil_sen(range(10), [5.0 * x for x in range(10)])
    >>> arrival(line, 100.0)
    Arrival(steps=11.0, early=11.0, late=11.0)
    >>> arrival(line, -1.0) is None
    True
    """
    way, slope, fast, slow = limit - line.level, line.slope, line.high, line.low
    if slope < 0.0:
        way, slope, fast, slow = -way, -slope, -line.low, -line.high
    if way <= 0.0 or slope * NEVER <= way:
        return None
    late = (way + line.scatter) / slow if slow * NEVER > way + line.scatter else NEVER
    return Arrival(way / slope, max(way - line.scatter, 0.0) / fast, late)


class Trend:
    """The last steps of one series, thinned: what a line is put through.

    ``span``: steps that the window holds at the most. ``points``: numbers that it keeps of them. A step that is not
    above the newest one is ignored, and so is a value that is not finite: what a step back means is for the caller to
    say, and :meth:`clear` is there.

    >>> trend = Trend(span=200, points=40)
    >>> for step in range(1, 301):
    ...     trend.push(step, 8.0 + 0.25 * step + step * 7919 % 11 / 100)
    >>> line = theil_sen(*trend.series())
    >>> f"{line.slope:.3f} a step, {line.level:.1f} at step {line.step:.0f}, {arrival(line, 93.0).steps:.0f} to go"
    '0.250 a step, 82.7 at step 298, 41 to go'
    """

    __slots__ = ("_last", "_open", "_points", "_room", "_span", "_width", "_xs", "_ys")

    def __init__(self, *, span: int = 200, points: int = 40) -> None:
        self._points = max(points - points % 2, 2 * LEAST_POINTS)
        self._span = max(span, self._points)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._xs, self._ys = array("d"), array("d")  # closed points: mean step, median value
        self._open: list[tuple[float, float]] = []  # steps of the point that is being filled
        self._set_width(1)
        self._last = -math.inf

    def __len__(self) -> int:
        """Points in the window, with the one that is being filled."""
        return len(self._xs) + bool(self._open)

    @property
    def last_step(self) -> float:
        """Newest step, minus infinity when there is none."""
        return self._last

    @property
    def values(self) -> array[float]:
        """Values of the points that are complete, oldest first, without a copy: only to be read."""
        return self._ys

    @property
    def steps(self) -> array[float]:
        """Steps of the points that are complete (the middle of each), without a copy: only to be read."""
        return self._xs

    def push(self, step: float, value: float) -> None:
        """Take the next step's value."""
        step = float(step)  # beyond 2**53 two steps may be one
        if not (step > self._last and math.isfinite(value)):
            return
        self._last = step
        value = min(max(value, -LARGEST), LARGEST)
        if self._width == 1:
            self._xs.append(step)
            self._ys.append(value)
        else:
            self._open.append((step, value))
            if len(self._open) < self._width:
                return
            x, y = self._being_filled()
            self._xs.append(x)
            self._ys.append(y)
            self._open.clear()
        if len(self._xs) > self._room:
            self._make_room()

    def _make_room(self) -> None:
        """Let two neighbours be one from now on, or the oldest go where the window is as long as it may be."""
        if self._width * self._points >= self._span:
            del self._xs[0], self._ys[0]
            return
        x, y = self._xs.pop(), self._ys.pop()
        for series in (self._xs, self._ys):
            series[:] = array("d", [0.5 * a + 0.5 * b for a, b in zip(series[::2], series[1::2], strict=True)])
        self._open.extend([(x, y)] * self._width)
        self._set_width(2 * self._width)

    def _set_width(self, width: int) -> None:
        """``width`` steps make a point from now on."""
        self._width = width
        self._room = min(self._points, self._span // width)

    def _being_filled(self) -> tuple[float, float]:
        return sum(x for x, _ in self._open) / len(self._open), median([y for _, y in self._open])

    def series(self) -> tuple[list[float], list[float]]:
        """Steps and values of the points, oldest first."""
        xs, ys = list(self._xs), list(self._ys)
        if self._open:
            x, y = self._being_filled()
            xs.append(x)
            ys.append(y)
        return xs, ys

    def state_dict(self) -> dict[str, Any]:
        return {
            "xs": list(self._xs),
            "ys": list(self._ys),
            "open": [list(pair) for pair in self._open],
            "width": self._width,
            "last": self._last if math.isfinite(self._last) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self._xs.extend(map(float, state["xs"]))
        self._ys.extend(map(float, state["ys"]))
        self._open.extend((float(x), float(y)) for x, y in state["open"])
        self._set_width(int(state["width"]))
        self._last = -math.inf if state["last"] is None else float(state["last"])


class Pace:
    """Seconds a step, of the last 64: their mean, each counted as ten times their median at the most.

    The mean, because validations and checkpoints are time that passes, too; bounded, because a night of standstill is
    not. From the signal ``step_time``, or where that is not logged, from the times at which steps arrived.

    >>> pace = Pace()
    >>> for step in range(1, 31):
    ...     seconds = 9000.0 if step == 7 else 50.0 if step % 10 == 0 else 20.0
    ...     pace.push(StepSample(step, 1, 0.0, {"step_time": seconds}))
    >>> f"{pace.seconds():.0f} s"
    '29 s'
    """

    __slots__ = ("_arrived", "_last", "_next", "_seconds")

    SIZE = 64
    CAP = 10.0
    LEAST = 3

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._seconds = array("d")
        self._next = 0  # place of the number that is replaced next, once there are SIZE
        self._last = -1
        self._arrived = math.nan

    def push(self, sample: StepSample) -> None:
        """Take the next step; one that is not above the newest adds nothing."""
        steps, passed = sample.step - self._last, sample.time - self._arrived
        if steps == 0:
            return
        self._last, self._arrived = sample.step, sample.time
        seconds = sample.signals.get("step_time")
        if seconds is None:
            seconds = passed / steps if steps > 0 else math.nan
        if not 0.0 < seconds < LARGEST:
            return
        if len(self._seconds) < self.SIZE:
            self._seconds.append(seconds)
        else:
            self._seconds[self._next] = seconds
            self._next = (self._next + 1) % self.SIZE

    def seconds(self) -> float | None:
        """Seconds a step; None before three are known. O(64)."""
        if len(self._seconds) < self.LEAST:
            return None
        cap = self.CAP * median(self._seconds)
        return sum(min(seconds, cap) for seconds in self._seconds) / len(self._seconds)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": list(self._seconds),
            "next": self._next,
            "last": self._last,
            "arrived": self._arrived if math.isfinite(self._arrived) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self._seconds.extend(map(float, state["seconds"]))
        self._next, self._last = int(state["next"]), int(state["last"])
        self._arrived = math.nan if state["arrived"] is None else float(state["arrived"])
