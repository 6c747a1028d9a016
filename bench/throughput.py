"""Steps per second with some work beside training and without it, from when each step began. Used by benchmarks.

Medians of steps would hide a stall, and so would leaving out a step that lies across a window's border: here every
moment of a window belongs to some step.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TARGET = 1.02
"""How much faster training may be without the work."""


@dataclass(frozen=True, slots=True)
class Window:
    """From and to in monotonic seconds, and whether it is a round of the background work."""

    began: float
    ended: float
    busy: bool


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of one window: steps, whole and in part, and seconds."""

    steps: float
    seconds: float


Pair = tuple[Throughput, Throughput]
"""With the work, and without."""


def throughput(window: Window, starts: Sequence[float]) -> Throughput:
    """Each step lasts until the next one begins, and counts by the share of it that lies in the window.

    >>> throughput(Window(0.5, 3.0, True), [0.0, 1.0, 2.0, 4.0])
    Throughput(steps=2.0, seconds=2.5)
    """
    steps = 0.0
    for index in range(max(0, bisect_right(starts, window.began) - 1), len(starts) - 1):
        began, ended = starts[index], starts[index + 1]
        if began >= window.ended:
            break
        steps += max(0.0, min(ended, window.ended) - max(began, window.began)) / (ended - began)
    return Throughput(steps, window.ended - window.began)


def figures(before: Window, windows: Sequence[Window], starts: Sequence[float]) -> dict[str, Any]:
    """What the windows say, in pairs: one with the work and one without, in either order.

    ``before`` is a window before any work. ``target_met`` is judged by the upper end of the interval.
    """
    pairs: list[Pair] = []
    for one, other in zip(windows[::2], windows[1::2], strict=True):
        busy, free = (one, other) if one.busy else (other, one)
        pairs.append((throughput(busy, starts), throughput(free, starts)))
    free_only = [free for _, free in pairs]
    apart = list(zip(free_only[::2], free_only[1::2], strict=False))
    low, high = _interval(pairs)
    noise_low, noise_high = _interval(apart)
    at_first = throughput(before, starts)
    return {
        "steps_per_second_before": round(at_first.steps / at_first.seconds, 2),
        "steps_per_second": round(_rate(free for _, free in pairs), 2),
        "steps_per_second_with_background": round(_rate(busy for busy, _ in pairs), 2),
        "longest_step_ms": _longest([one for one in windows if not one.busy], starts),
        "longest_step_ms_with_background": _longest([one for one in windows if one.busy], starts),
        "ratio": round(_ratio(pairs), 4),
        "ratio_interval": [round(low, 4), round(high, 4)],
        "noise": round(_ratio(apart), 4),
        "noise_interval": [round(noise_low, 4), round(noise_high, 4)],
        "pairs": len(pairs),
        "ratio_within_target": _ratio(pairs) <= TARGET,
        "target_met": high <= TARGET,
    }


def _rate(windows: Iterable[Throughput]) -> float:
    found = list(windows)
    return sum(one.steps for one in found) / sum(one.seconds for one in found)


def _ratio(pairs: Sequence[Pair]) -> float:
    """How much faster it is without. Infinite where not even a part of a step was made with the work."""
    busy = _rate(one for one, _ in pairs)
    return _rate(other for _, other in pairs) / busy if busy else math.inf


def _interval(pairs: Sequence[Pair]) -> tuple[float, float]:
    """A 95 % interval of the ratio, by bootstrap."""
    chosen = random.Random(1)
    ratios = sorted(_ratio(chosen.choices(pairs, k=len(pairs))) for _ in range(2000))
    return ratios[50], ratios[1949]


def _longest(windows: Sequence[Window], starts: Sequence[float]) -> float:
    """Milliseconds of the longest step of which a part lies in one of the windows."""
    spans = itertools.pairwise(starts)
    lengths = [end - begin for begin, end in spans if any(begin < w.ended and end > w.began for w in windows)]
    return round(1000 * max(lengths, default=0.0), 1)
