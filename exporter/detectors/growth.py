"""Growth that has begun somewhere in a window: since when, in which shape, and when it reaches a limit.

Used by the memory detectors. A leak has an onset, and it need not be a straight line: a cache fills by the square, a
fault feeds on itself. Shapes with a hinge are fitted to the points, and the best one is extrapolated: level until the
hinge, and from there a power of the steps since (1/2, 1, 3/2, 2, 3) or an exponential. Every step of the window is
tried for a hinge, coarsely. Curved shapes have to be clearly better than the straight one. All shapes that fit nearly
as well as the best make the interval, together with Sen's interval of the slope.

Points are smoothed by the median of three neighbours, and the misfit is the sum of absolute distances, so single wild
readings matter little. About 40 hinges and shapes are tried for 50 points: some hundred microseconds, so ask only when
the ends of the window say that there is growth.

Reference: the hinge is the broken-stick regression of R. E. Quandt, The estimation of the parameters of a linear
regression system obeying two separate regimes, Journal of the American Statistical Association 53, 1958.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from exporter.detectors.trend import NEVER, Arrival, Line, theil_sen

EXPONENTIAL = 0.0
BENT_UP = (2.0, 1.5, EXPONENTIAL)
BENT_DOWN = (0.5,)
"""Powers that are tried for growth that is not straight, the simplest first."""
STRAIGHT = 0.002
"""A straight shape that misses by less than this share of the rise, on average, is straight enough."""
RATES = (0.5, 1.2, 2.2, 4.0)
"""Exponential rates that are tried, in units of one over the steps since the hinge; refined from there."""
CURVED_BELOW, OTHER_BELOW = 0.85, 0.95
"""A curved shape replaces the straight one, or a simpler curved one, when its misfit is below this share of theirs."""
NEARLY = 1.3
"""Shapes whose misfit is up to this many times the best one's are possible, too."""
LEAST_POINTS = 8
MOST_POINTS, NEWEST = 36, 20
"""Points that are fitted at the most, and how many of them are the newest ones as they are."""
LEVEL_POINTS, DRIFT_POINTS = 8, 16
"""Points before the hinge that tell the level there, and the slope."""
JUMP, JUMP_POINTS, LEAST_AFTER = 2.0, 4, 12
"""Times the usual change that is a jump; changes in a row that are one; points that there have to be after it."""
DRIFTS = 0.5
"""Share of the slope since the hinge up to which the points before it may have had one of their own."""
HINGES = 10
REFINED = 5
"""Halvings of the distance between hinges that are tried."""
LEEWAY = 0.08
"""No interval is narrower than this share of the way to go, and a step, to either side."""
STEEPEST = 30.0
"""Slackening of a climb that has come to rest already."""
UNSURE = 18.0
"""Mean distance from the settling curve, as a share of the rise, times this is how uncertain the slackening is. Stairs
that come by chance leave a Brownian bridge of scale s. Its mean distance is 0.31 s, and less by a third from a curve
that was fitted; the slackening is twelve times the area between the bridge and 0, which varies by s / sqrt(12). Even
noise and even stairs vary less."""
NEW_HIGH = 0.02
"""A point counts as a rise when it lies above all before it by this share of the whole rise."""


class Shape(NamedTuple):
    """One fitted curve: ``base`` until ``hinge``, then ``base + gain * f(steps since)``."""

    hinge: float
    base: float
    gain: float
    power: float
    """``EXPONENTIAL`` (0) for the exponential, ``f(u) = exp(rate * u) - 1``."""
    rate: float
    misfit: float

    def at(self, step: float) -> float:
        """Height at ``step``."""
        since = step - self.hinge
        if since <= 0.0:
            return self.base
        return self.base + self.gain * _grown(since, self.power, self.rate)

    def reaches(self, limit: float) -> float:
        """Step at which the curve is at ``limit``; infinity for one that does not rise."""
        ratio = (limit - self.base) / self.gain if self.gain > 0.0 else math.inf
        if ratio <= 0.0:
            return self.hinge
        if not ratio < 1e100:
            return math.inf
        return self.hinge + (
            math.log1p(ratio) / self.rate if self.power == EXPONENTIAL else ratio ** (1.0 / self.power)
        )


def _grown(since: float, power: float, rate: float) -> float:
    return math.expm1(rate * since) if power == EXPONENTIAL else since**power


@dataclass(frozen=True, slots=True)
class Growth:
    """What is known of the growth in a window."""

    step: float
    """The newest step."""
    shape: Shape
    possible: tuple[Shape, ...]
    """Other shapes that fit nearly as well."""
    recent: Line | None
    """The line of Theil and Sen through the newer half of the growth."""
    tau: float
    """Kendall's tau of the points since the hinge."""
    scatter: float
    """Mean distance of the points from the shape."""
    rises: int
    """Points since the hinge that lie above all before them; of several in a row every second one."""
    largest: float
    """Largest share of the whole rise between a point and the next but one: a jump may fall in between."""
    waiting: float
    """Share of the time since the hinge that has passed since the last such rise."""
    bending: float
    """Slope of the newer half of that time over slope of the older half: 1 for a straight line, below for a plateau."""

    @property
    def onset(self) -> float:
        """Step at which it began."""
        return self.shape.hinge

    @property
    def seen(self) -> float:
        """Steps since the onset."""
        return self.step - self.shape.hinge

    @property
    def level(self) -> float:
        """Height of the curve now."""
        return self.shape.at(self.step)

    @property
    def rise(self) -> float:
        """Height gained since the onset."""
        return self.level - self.shape.base

    def arrival(self, limit: float) -> Arrival | None:
        """Steps until ``limit``; None when it is not reached within a million steps."""
        steps = self.shape.reaches(limit) - self.step
        if not steps < NEVER:
            return None
        steps = max(steps, 0.0)
        others = [min(max(shape.reaches(limit) - self.step, 0.0), NEVER) for shape in self.possible]
        way = max(limit - self.level, 0.0)
        if self.shape.power == 1.0 and self.recent is not None and self.recent.high > 0.0:
            low, high = self.recent.low, self.recent.high
            others += [max(way - self.scatter, 0.0) / high, (way + self.scatter) / low if low > 0.0 else NEVER]
        leeway = LEEWAY * steps + 1.0
        early, late = min([steps - leeway, *others]), max([steps + leeway, *others])
        return Arrival(steps, max(early, 0.0), min(late, NEVER))


def find_growth(
    xs: Sequence[float], ys: Sequence[float], worth: Callable[[Growth], bool] = lambda growth: True
) -> Growth | None:
    """The growth at the end of the points, oldest first; None where they do not end above where they began to rise.

    ``xs`` must rise strictly, and all numbers be finite. Curved shapes, which cost most, are tried where the growth by
    the straight one is ``worth`` it; else the answer is None, too.

    >>> steps = list(range(60))
    >>> found = find_growth(steps, [40.0 + 0.01 * max(0, step - 20) ** 2 for step in steps])
    >>> round(found.onset), found.shape.power, round(found.step + found.arrival(80.0).steps)
    (20, 2.0, 83)
    """
    xs, ys = _smooth(xs, ys)
    n = len(xs)
    if n < LEAST_POINTS:
        return None
    last, lowest = median(ys[-3:]), min(ys[: n - LEAST_POINTS + 2])
    if last <= lowest:
        return None
    straight = _best(xs, ys, 1.0)
    if straight is None:
        return None
    growth = _describe(xs, ys, straight)
    if not worth(growth):
        return None
    best, misfit, possible = straight, _misses(xs, ys, straight, straight.hinge), []
    floor = 1e-9 * growth.rise * n  # what rounding leaves of a perfect fit
    if misfit > STRAIGHT * growth.rise * sum(x >= straight.hinge for x in xs):
        for power in BENT_UP if growth.bending > 1.0 else BENT_DOWN:
            shape = _best(xs, ys, power)
            if shape is None:
                continue
            # Compared where the straight one grows: what was before says nothing of the bend.
            missed = _misses(xs, ys, shape, straight.hinge)
            possible.append((missed, shape))
            if missed + floor < (CURVED_BELOW if best is straight else OTHER_BELOW) * misfit:
                best, misfit = shape, missed
    possible.append((_misses(xs, ys, straight, straight.hinge), straight))
    near = NEARLY * misfit + floor
    return replace(
        _leaned(growth) if best is straight else _describe(xs, ys, best),
        possible=tuple(shape for missed, shape in possible if missed <= near and shape is not best),
    )


def _leaned(growth: Growth) -> Growth:
    """Straight growth, turned to its newer half where that contradicts it: earlier stairs have pulled at the hinge."""
    recent, shape = growth.recent, growth.shape
    if recent is None or recent.low <= shape.gain <= recent.high or not recent.low > 0.0:
        return growth
    hinge = growth.step - (recent.level - shape.base) / recent.slope
    if not shape.hinge < hinge < growth.step - 0.5 * growth.seen:
        return growth
    return replace(growth, shape=shape._replace(hinge=hinge, gain=recent.slope))


def _misses(xs: Sequence[float], ys: Sequence[float], shape: Shape, since: float) -> float:
    """Sum of the distances of the points from step ``since`` on."""
    return sum([abs(y - shape.at(x)) for x, y in zip(xs, ys, strict=True) if x >= since])


def since_last_jump(xs: Sequence[float], ys: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The points after the last single jump, up or down, that dwarfs what happens now; all of them without one.

    Another job that came or went, or a stair of the warm-up, would else be taken for the beginning of the growth. A
    jump is out of line with the newest third of the points, so stairs of equal height stay.

    >>> since_last_jump(range(20), [1.0, 1.1, 9.0] + [9.1 + x / 10 for x in range(17)])[0][0]
    2
    """
    n = len(xs)
    steps = [abs(b - a) for a, b in pairwise(ys)]
    late = n - max(n // 3, LEAST_POINTS // 2)
    usual = JUMP * max(steps[late:], default=math.inf)
    last = next((i for i in range(min(n - LEAST_AFTER, late) - 1, -1, -1) if steps[i] > usual), -1)
    first = last
    while first >= 0 and steps[first] > usual:
        first -= 1
    # Many such changes in a row are no jump but growth that has slackened since.
    return (xs[last + 1 :], ys[last + 1 :]) if 0 < last - first <= JUMP_POINTS else (xs, ys)


def settles_at(xs: Sequence[float], ys: Sequence[float], unsure: float = UNSURE) -> float:
    """The lowest level at which a climb may come to rest that slackens as ``1 - exp(-slackening)``; infinite for none.

    ``xs`` must rise strictly. The slackening, how many powers of e the slope has lost, comes from the slopes at the
    ends of a parabola through the points, and ``unsure`` times the mean distance of the points from it is added. So a
    straight climb may settle, too, unless it is a clean one or has gone far.

    >>> steps = list(range(41))
    >>> round(settles_at(steps, [50 + 20 * (1 - math.exp(-step / 30)) for step in steps]))
    68
    >>> settles_at(steps, [50 + 0.01 * step**2 for step in steps])
    inf
    """
    if len(xs) < LEAST_POINTS:
        return math.inf
    span = xs[-1] - xs[0]
    ts = [2.0 * (x - xs[0]) / span - 1.0 for x in xs]
    ys = [ys[0], *(_middle(*three) for three in zip(ys, ys[1:], ys[2:], strict=False)), ys[-1]]
    weights = [b - a for a, b in zip([ts[0], *ts[:-1]], [*ts[1:], ts[-1]], strict=True)]  # a point stands for its steps
    total = sum(weights)
    # Orthogonal polynomials, one after the other.
    mean = sum([w * t for w, t in zip(weights, ts, strict=True)]) / total
    first = [t - mean for t in ts]
    norm = sum([w * p * p for w, p in zip(weights, first, strict=True)])
    skew = sum([w * p * p * p for w, p in zip(weights, first, strict=True)]) / norm
    second = [p * p - skew * p - norm / total for p in first]
    middle = sum([w * y for w, y in zip(weights, ys, strict=True)]) / total
    slope = sum([w * p * y for w, p, y in zip(weights, first, ys, strict=True)]) / norm
    bend = sum([w * p * y for w, p, y in zip(weights, second, ys, strict=True)])
    square = sum([w * p * p for w, p in zip(weights, second, strict=True)])
    bend = bend / square if square > 1e-9 else 0.0  # all but one of the points may lie at one end
    curve = [middle + slope * p + bend * q for p, q in zip(first, second, strict=True)]
    early, late = (slope + bend * (2.0 * p - skew) for p in (first[0], first[-1]))
    rise = curve[-1] - curve[0]
    if not rise > 0.0 or early <= 0.0:
        return math.inf  # it falls, or bends upwards
    scatter = sum([w * abs(y - c) for w, y, c in zip(weights, ys, curve, strict=True)]) / total / rise
    slackening = (math.log(early / late) if late > 0.0 else STEEPEST) + unsure * scatter
    return curve[-1] + rise / math.expm1(min(slackening, STEEPEST)) if slackening > 1e-9 else math.inf


def _smooth(xs: Sequence[float], ys: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Medians of three neighbours, and means of two of the older ones of those where there are too many points."""
    if len(xs) >= LEAST_POINTS:
        ys = [ys[0], *(_middle(*three) for three in zip(ys, ys[1:], ys[2:], strict=False)), ys[-1]]
    while len(xs) > MOST_POINTS:
        cut = len(xs) - NEWEST
        odd = cut % 2
        xs = [0.5 * a + 0.5 * b for a, b in zip(xs[odd:cut:2], xs[odd + 1 : cut : 2], strict=True)] + list(xs[cut:])
        ys = [0.5 * a + 0.5 * b for a, b in zip(ys[odd:cut:2], ys[odd + 1 : cut : 2], strict=True)] + list(ys[cut:])
    return xs, ys


def _middle(a: float, b: float, c: float) -> float:
    return max(min(a, b), min(max(a, b), c))


def _best(xs: Sequence[float], ys: Sequence[float], power: float) -> Shape | None:
    """The best shape of one kind: hinges (and rates) on a coarse grid, and from the best of them in halving steps."""
    last = len(xs) - LEAST_POINTS
    pace = (xs[last] - xs[0]) / (HINGES - 1)
    hinges = [xs[0] + i * pace for i in range(HINGES)] if last else [xs[0]]
    rates = RATES if power == EXPONENTIAL else (0.0,)
    best = min((_fit(xs, ys, hinge, power, rate) for hinge in hinges for rate in rates), key=_misfit)
    pace, ratio = 0.5 * pace, 1.3
    for _ in range(REFINED):
        # Both at once: an earlier hinge with a higher rate fits nearly as well, and one at a time is stuck there.
        grown = best.rate * (xs[-1] - best.hinge)
        near = [max(xs[0], best.hinge - pace), best.hinge, min(xs[last], best.hinge + pace)]
        tried = [grown / ratio, grown, grown * ratio] if power == EXPONENTIAL else [grown]
        best = min([best, *(_fit(xs, ys, hinge, power, rate) for hinge in near for rate in tried)], key=_misfit)
        pace, ratio = 0.5 * pace, math.sqrt(ratio)
    return best if best.gain > 0.0 else None


def _misfit(shape: Shape) -> float:
    return shape.misfit


def _fit(xs: Sequence[float], ys: Sequence[float], hinge: float, power: float, rate: float) -> Shape:
    """The shape with this hinge: its base from the points before, its gain by least squares. ``rate`` per span."""
    start = bisect_right(xs, hinge)
    base = median(ys[max(0, start - LEVEL_POINTS) : start])
    rest = [y - base for y in ys[start:]]
    rate /= xs[-1] - hinge
    if power == 1.0:
        basis = [x - hinge for x in xs[start:]]
    elif power == EXPONENTIAL:
        basis = [math.expm1(rate * (x - hinge)) for x in xs[start:]]
    else:
        basis = [(x - hinge) ** power for x in xs[start:]]
    gain = sum([b * r for b, r in zip(basis, rest, strict=True)]) / sum([b * b for b in basis])
    drift = _drift(xs, ys, start)
    if not 0.0 < drift * (xs[-1] - hinge) < DRIFTS * gain * basis[-1]:
        drift = 0.0
    misfit = sum([abs(y - base - drift * (x - hinge)) for x, y in zip(xs[:start], ys[:start], strict=True)])
    misfit += sum([abs(r - gain * b) for b, r in zip(basis, rest, strict=True)])
    return Shape(hinge, base, gain, power, rate, misfit if gain > 0.0 else math.inf)


def _drift(xs: Sequence[float], ys: Sequence[float], end: int) -> float:
    """Slope of the points before index ``end``, by the medians of two halves; 0 where there are too few."""
    start = max(0, end - DRIFT_POINTS)
    half = (end - start) // 2
    if half < 2:
        return 0.0
    rise = median(ys[end - half : end]) - median(ys[start : start + half])
    return rise / (0.5 * (xs[end - 1] + xs[end - half]) - 0.5 * (xs[start + half - 1] + xs[start]))


def _describe(xs: Sequence[float], ys: Sequence[float], shape: Shape) -> Growth:
    start = next(i for i, x in enumerate(xs) if x >= shape.hinge)
    seen, values = xs[start:], ys[start:]
    rise = max(max(values) - shape.base, 1e-300)
    top, rises, in_a_row, last_rise = shape.base, 0, 0, seen[0]
    for x, y in zip(seen, values, strict=True):
        if y > top + NEW_HIGH * rise:
            # Of one jump smoothing makes two rises, so of those in a row every second one counts.
            top, last_rise, in_a_row = y, x, in_a_row + 1
            rises += in_a_row % 2
        else:
            in_a_row = 0
    middle = 0.5 * (seen[0] + seen[-1])
    half = min(max(sum(x < middle for x in seen), 1), len(seen) - 2)
    line, recent = theil_sen(seen, values), theil_sen(seen[half:], values[half:])
    older = (values[half] - values[0]) / (seen[half] - seen[0])
    newer = (values[-1] - values[half]) / (seen[-1] - seen[half])
    return Growth(
        step=xs[-1],
        shape=shape,
        possible=(),
        recent=recent,
        tau=0.0 if line is None else line.tau,
        scatter=shape.misfit / len(xs),
        rises=rises,
        largest=max(b - a for a, b in zip([shape.base, shape.base, *values[:-2]], values, strict=True)) / rise,
        waiting=(seen[-1] - last_rise) / max(seen[-1] - seen[0], 1e-300),
        bending=newer / older if older > 0.0 else math.inf,
    )
