"""Whether a duration has grown beyond its own best recent level, and beyond what explains the growth.

The memory of the detectors ``step_time`` and ``communication``, one for each signal. Values come in as logarithms, so a
difference is a ratio, and always up: who watches a rate that falls pushes its negative. With each value come
*explanations*, logarithms of what the signal would follow in health (tokens of the step, say). A run's growth counts
only as far as both hold: the value grew, and the value over each explanation grew. A step that is longer because its
answers are is no fault of time, and neither is more time a token where answers got shorter and the step did not get
longer.

Levels are lower tertiles of blocks of eight values. A tertile is not moved by slow steps as long as they are fewer than
six in ten, and real runs have stretches in which every fourth step takes three times as long. The newest values are
compared with the *best* block of the past (three tests: soon and large, moderate, slow drift), because a median of a
window follows a slow drift and never sees it. What a block's level does by chance is measured on the run's own blocks,
and a threshold is never below some times that, which the false-page budget sets.

Cost: a few comparisons a step; the tests are made only where enough of the newest values lie above the best level.

Reference: Huber and Ronchetti, Robust Statistics, 2009 (order statistics of contaminated samples); onset by the maximum
likelihood change point of a cumulative sum, E. S. Page, Continuous inspection schemes, Biometrika 41, 1954; slope by
P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63, 1968.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import sub
from typing import Any, Final, NamedTuple

from exporter.detectors.base import Severity
from exporter.detectors.calibration import Budget

BLOCK: Final = 8
BLOCKS: Final = 26
"""Blocks that are remembered: about two hundred steps."""
KEPT: Final = 64
"""Values that are remembered one by one."""
SETTLED: Final = 16
"""Values before anything is judged."""
LARGEST: Final = 60.0
"""Growth is reported up to ``exp`` of this."""
HELD: Final = 0.85
"""A finding that holds goes on until the growth is below this part of its threshold, so that it does not flicker."""
_PRIOR: Final = (0.08, 0.08, 0.08)
"""Differences of neighbouring blocks that are assumed beside those that were seen."""
_UPPER_QUARTILE: Final = 1.627
"""Of the size of the difference of two normal values, in units of their standard deviation."""
_LEVEL: Final = 2
_MIDDLE: Final = 3
"""Places in a block that is in order: of its level (the lower tertile), and of the smaller of the middle two."""
_LOWER_HALF: Final = 1.27
_OF_LEVEL: Final = 0.45
"""Of eight normal values, in units of their standard deviation: from the smallest to the fourth, on average; and the
standard deviation of the third."""
_UNSETTLED: Final = 0.06
"""How much more is asked for each of the first five blocks that is still missing."""
_OF_WARNING: Final = 5.5
_OF_PAGE: Final = 7.6
"""Thresholds in units of the noise of a block, at the usual budget: the best of the blocks lies about two units below
the usual level, and the newest ones lie as far above it as chance takes them."""


class Test(NamedTuple):
    """The newest ``newest`` values against the best of the last ``blocks`` blocks before them; factors are ratios."""

    newest: int
    blocks: int
    warn: float
    page: float


class Slower(NamedTuple):
    """What was found; ``score`` and ``threshold`` are ratios, of the value itself or over an explanation."""

    severity: Severity
    score: float
    threshold: float
    newest: int
    """Values in which it was seen."""
    block: int
    """Number of the block that it was compared with, counted back from the newest one (-1)."""
    before: float
    now: float
    """Levels of the value itself, in its own unit (not as a logarithm)."""
    drift: bool
    """It came slowly."""
    onset: int


def tertile(values: Sequence[float]) -> float:
    """The value below which a third lies.

    >>> tertile([10.0, 31.0, 11.0, 9.0, 30.0, 12.0, 33.0, 10.5])
    10.5
    """
    return sorted(values)[_rank(len(values))]


def _rank(count: int) -> int:
    return int(0.33 * (count - 1) + 0.5)


class Slowdown:
    """One signal. ``tests``: in any order; ``explanations``: how many come with each value.

    >>> pace = Slowdown((Test(8, 8, 1.4, 1.6),), explanations=1)
    >>> for step in range(1, 60):
    ...     tokens = 11.0 + (step > 30)  # e times as many, and so is the time, until it doubles
    ...     ask = pace.push(step, math.log(20.0) + (step > 30) + math.log(2.0) * (step > 45), (tokens,))
    ...     if ask and (growth := pace.judge()):
    ...         print(step, growth.severity.label, f"x{growth.score:.2f} since {growth.onset}")
    ...         break
    51 critical x2.00 since 46
    """

    __slots__ = (
        "_above", "_bar", "_blocks", "_columns", "_count", "_drift", "_held", "_lows", "_needed", "_noise",
        "_onset", "_sieve", "_steps", "_width", "_z",
    )  # fmt: skip

    def __init__(self, tests: Sequence[Test], *, explanations: int, budget: Budget | None = None) -> None:
        self._sieve = tuple((test, (1 << test.newest) - 1, test.newest - _rank(test.newest)) for test in tests)
        self._needed = min(needed for _, _, needed in self._sieve)
        self._width = 1 + explanations
        self._bar = HELD * math.log(min(test.warn for test in tests))
        usual = Budget().rarity()
        asked = usual if budget is None else budget.rarity()
        self._z = (_OF_WARNING * asked / usual, _OF_PAGE * asked / usual)
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._columns = [array("d") for _ in range(self._width)]
        self._steps = array("q")
        # Of each block the levels of the columns, their spreads, the largest value, and the first step.
        self._blocks: list[array[float]] = []
        self._count = 0
        self._lows = [math.inf] * self._width  # best level of each column
        self._noise = 0.0  # of a block; 0 until it is asked for
        self._above = 0  # a bit for each of the newest values, the newest first: above the best level
        self._held = 0  # severity of the finding that holds
        self._onset = 0
        self._drift = False

    def __len__(self) -> int:
        return self._count

    def push(self, step: int, value: float, explanations: Sequence[float]) -> bool:
        """Take the logarithms of one step; False if :meth:`judge` would find nothing and need not be asked."""
        columns, steps = self._columns, self._steps
        columns[0].append(value)
        index = 1
        for explanation in explanations:
            columns[index].append(value - explanation)
            index += 1
        steps.append(step)
        self._above = (self._above << 1 | (value > self._lows[0] + self._bar)) & 0xFFFFFFFF
        self._count += 1
        if self._count % BLOCK == 0:
            self._end_block()
        return self._held > 0 or self._above.bit_count() >= self._needed

    def _end_block(self) -> None:
        columns, steps = self._columns, self._steps
        ordered = [sorted(column[-BLOCK:]) for column in columns]
        levels, spreads = [o[_LEVEL] for o in ordered], [o[_MIDDLE] - o[0] for o in ordered]
        self._blocks.append(array("d", [*levels, *spreads, ordered[0][-1], steps[-BLOCK]]))
        if len(self._blocks) > BLOCKS:
            gone = self._blocks.pop(0)
            self._lows = [
                min([block[column] for block in self._blocks]) if gone[column] <= low else min(low, level)
                for column, (low, level) in enumerate(zip(self._lows, levels, strict=True))
            ]
        else:
            self._lows = list(map(min, self._lows, levels))
        self._noise = 0.0
        del steps[:-KEPT]
        for column in columns:
            del column[:-KEPT]

    def judge(self) -> Slower | None:
        """Whether the newest values have grown; asked after each push that says so."""
        if self._count <= SETTLED:
            return None
        best: tuple[Severity, float, float, Test, int] | None = None
        for test, mask, needed in self._sieve:
            if (self._above & mask).bit_count() < needed:
                continue
            found = self._try(test)
            if found is not None and (best is None or found[:2] > best[:2]):
                best = found
        if best is None:
            self._held = 0
            return None
        severity, score, threshold, test, block = best
        if severity > self._held or (self._count % BLOCK == 0 and not self._drift):
            onset, self._drift = self._began(score, block)
            if not self._held:
                self._onset = onset
            elif severity > self._held or self._drift:
                self._onset = min(onset, self._onset)
        self._held = int(severity)
        return Slower(
            severity=severity,
            score=math.exp(min(score, LARGEST)),
            threshold=math.exp(threshold),
            newest=test.newest,
            block=block,
            before=safe_exp(self._blocks[block][0]),
            now=safe_exp(tertile(self._columns[0][-test.newest :])),
            drift=self._drift,
            onset=self._onset,
        )

    def _try(self, test: Test) -> tuple[Severity, float, float, Test, int] | None:
        usable = len(self._blocks) - (self._count // BLOCK - (self._count - test.newest) // BLOCK)
        if usable < 1:
            return None
        now = [tertile(column[-test.newest :]) for column in self._columns]
        if min(map(sub, now, self._lows)) <= HELD * math.log(test.warn):
            return None
        noise = self._noise = self._noise or self._measure()
        blocks = self._blocks
        score, block = max((min(map(sub, now, blocks[i])), i) for i in range(max(0, usable - test.blocks), usable))
        more = 1.0 + _UNSETTLED * max(0, 5 - len(blocks))
        for severity, factor, z in (
            (Severity.CRITICAL, test.page, self._z[1]),
            (Severity.WARNING, test.warn, self._z[0]),
        ):
            threshold = (
                more
                * max(math.log(factor), z * noise * _share(test.newest))
                * (HELD if self._held >= severity else 1.0)
            )
            if score > threshold:
                return severity, score, threshold, test, block - len(self._blocks)
        return None

    def _measure(self) -> float:
        """Standard deviation of the level of a block in the quietest column.

        By the values below the middle of each block, which slow steps do not reach, and by neighbouring blocks, which
        show in addition what moves more slowly than a block is long; whichever is more.
        """
        blocks, quietest = self._blocks, math.inf
        for column in range(self._width):
            levels = [block[column] for block in blocks]
            differences = sorted([*map(abs, map(sub, levels, levels[1:])), *_PRIOR])
            between = differences[int(0.75 * (len(differences) - 1) + 0.5)] / _UPPER_QUARTILE
            within = sum([block[self._width + column] for block in blocks]) / len(blocks) / _LOWER_HALF
            quietest = min(quietest, max(between, _OF_LEVEL * within))
        return quietest

    def _excess(self, place: int, usual: Sequence[float]) -> float:
        return float(min(map(sub, [column[place] for column in self._columns], usual)))

    def _began(self, score: float, block: int) -> tuple[int, bool]:
        """First step of the growth, and whether it came slowly: it rose before the change point, and after it."""
        usual, steps = self._blocks[block], self._steps
        total = len(steps)
        best, highest, height = total - 1, 0.0, 0.0
        recent: list[float] = []
        for place in range(total - 1, max(total - KEPT, 0) - 1, -1):
            recent.append(self._excess(place, usual))
            height += min(recent[-1], 1.5 * score) - 0.5 * score
            if height > highest:
                highest, best = height, place
        onset = steps[best]
        levels = [(b[-1], min(map(sub, b[: self._width], usual))) for b in self._blocks]
        before = [(first, excess) for first, excess in levels if first + BLOCK <= onset]
        if len(before) < 4:
            return onset, False
        early = sorted(excess for _, excess in before[: len(before) // 2])
        base = early[len(early) // 2]
        rise = sum(excess for _, excess in before[-3:]) / 3 - base
        since = total - best
        if since >= 2 * BLOCK:
            rise += tertile(recent[:BLOCK]) - tertile(recent[since - BLOCK : since])
        if rise < 0.4 * score:
            return onset, False
        # A straight line reaches half its height half-way; a block that is as low as the early ones lies before.
        line = 2 * onset - steps[max(total - BLOCK, 0)]
        low = max((first for first, excess in before if excess <= base + 0.15 * score), default=before[0][0])
        return max(int(min(line, low)), int(before[0][0])), True

    def calm(self) -> tuple[float, ...] | None:
        """Levels of the newest block, then the value that one in four exceeded; None before the second."""
        if len(self._blocks) < 2:
            return None
        largest = sorted(block[-2] for block in self._blocks)
        return (*self._blocks[-1][: self._width], largest[int(0.75 * (len(largest) - 1) + 0.5)])

    def beyond(self, levels: Sequence[float]) -> float:
        """By how much the newest value lies above ``levels``, one for each column."""
        return self._excess(-1, levels)

    def levels(self) -> tuple[float, ...] | None:
        """Levels of the newest block, of the value and over each explanation; None before the first block is full."""
        return tuple(self._blocks[-1][: self._width]) if self._blocks else None

    def slopes(self, since: int) -> tuple[float, float, float] | None:
        """Growth a step since a step: the lower quartile of all slopes between blocks, the median, the upper one."""
        points = [(b[-1], b[0]) for b in self._blocks if b[-1] + BLOCK > since]
        found = sorted((y - x) / (t - s) for i, (s, x) in enumerate(points) for t, y in points[i + 1 :] if t > s)
        if len(points) < 4 or not found:
            return None
        return found[len(found) // 4], found[len(found) // 2], found[3 * len(found) // 4]

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        return {
            "columns": [list(column) for column in self._columns],
            "steps": list(self._steps),
            "blocks": [list(block) for block in self._blocks],
            "count": self._count,
            "above": self._above,
            "held": self._held,
            "onset": self._onset,
            "drift": self._drift,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self.restart()
        self._columns = [array("d", column) for column in state["columns"]]
        self._steps = array("q", state["steps"])
        self._blocks = [array("d", block) for block in state["blocks"]]
        if self._blocks:
            self._lows = list(map(min, zip(*self._blocks, strict=True)))[: self._width]
        self._count, self._above = state["count"], state["above"]
        self._held, self._onset, self._drift = state["held"], state["onset"], state["drift"]


def _share(newest: int) -> float:
    """Of the noise of a block: what remains where more values are taken together, and of the best block, what stays."""
    return 0.4 + 0.6 * math.sqrt(BLOCK / newest)


def safe_exp(value: float) -> float:
    """``exp``, at most the largest number there is."""
    return math.exp(min(value, 709.0))
