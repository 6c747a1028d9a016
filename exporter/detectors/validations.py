"""Training reward up while the validation reward falls. Used by ``reward`` only.

The training reward at a validation is the mean of the steps since the one before. Two levels are compared: the best two
successive validations, and the newest three, all of which must lie below them by more than validations differ from each
other. Over the same time the training reward must have risen beyond its own noise.

Reference: reward-model overoptimization, where the proxy rises and the gold reward falls: L. Gao, J. Schulman and
J. Hilton, Scaling laws for reward model overoptimization, ICML 2023.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

NEWEST: Final = 3
REMEMBERED: Final = 60
LEVEL: Final = 2
"""Successive validations whose mean is the best level: the best single one is mostly luck."""
NOISES: Final = 4.0
"""Standard errors: the best of many levels is one or two above the true one by luck alone."""
UNKNOWN_NOISE: Final = 0.03
"""Share of the level that validations may differ by where there are too few to tell."""
KNOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Divergence:
    """Training and validation reward, at the best validation and as the mean of the newest."""

    best_step: int
    since: int
    """Step of the first validation after the best."""
    best: float
    now: float
    train_then: float
    train_now: float
    score: float
    """The fall of the validation over the one that its noise allows."""


class Validations:
    """Validations of one attempt, with the training reward between them."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._steps, self._values = array("d"), array("d")
        self._trains, self._errors = array("d"), array("d")  # mean since the validation before, and its variance
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self.found: Divergence | None = None

    def train(self, reward: float) -> None:
        """Take a step's training reward."""
        if abs(reward) < 1e100:
            self._count += 1
            self._sum += reward
            self._squares += reward * reward

    def push(self, step: int, value: float) -> None:
        """Take a validation: finite. ``found`` holds until the next one."""
        if (self._steps and step <= self._steps[-1]) or self._count == 0 or abs(value) > 1e100:
            return
        mean = self._sum / self._count
        self._steps.append(step)
        self._values.append(value)
        self._trains.append(mean)
        self._errors.append(max(self._squares / self._count - mean * mean, 0.0) / self._count)
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        if len(self._steps) > REMEMBERED:
            del self._steps[0], self._values[0], self._trains[0], self._errors[0]
        self.found = self._judge()

    def _judge(self) -> Divergence | None:
        values = self._values
        until = len(values) - NEWEST
        if until < LEVEL:
            return None
        levels = [fmean(values[place : place + LEVEL]) for place in range(until - LEVEL + 1)]
        start = max(range(len(levels)), key=levels.__getitem__)
        best, newest = levels[start], values[until:]
        noise, now = self._noise(best), fmean(newest)
        allowed = NOISES * noise * math.sqrt(1.0 / LEVEL + 1.0 / NEWEST)
        if best - now <= allowed or best - max(newest) <= noise:
            return None
        then, after = range(start, start + LEVEL), range(until, len(values))
        train_then, train_now = (fmean(self._trains[place] for place in places) for places in (then, after))
        error = math.sqrt(sum(self._errors[place] / len(places) ** 2 for places in (then, after) for place in places))
        if train_now - train_then <= max(3.0 * error, 0.01 * abs(train_then)):
            return None
        last = start + LEVEL - 1
        return Divergence(
            best_step=int(self._steps[last]),
            since=int(self._steps[last + 1]),
            best=best,
            now=now,
            train_then=train_then,
            train_now=train_now,
            score=min((best - now) / max(allowed, 1e-300), 1e12),
        )

    def _noise(self, level: float) -> float:
        """Standard deviation of a validation, by the mean distance of successive ones."""
        apart = [abs(after - before) for before, after in pairwise(self._values)]
        # Two normal numbers are 1.128 standard deviations apart.
        noise = fmean(apart) / 1.128
        return max(noise, UNKNOWN_NOISE * abs(level) / (1.0 if len(apart) < KNOWN else 6.0))

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        found = self.found
        return {
            "steps": list(self._steps),
            "values": list(self._values),
            "trains": list(self._trains),
            "errors": list(self._errors),
            "sums": [self._count, self._sum, self._squares],
            "found": None
            if found is None
            else [
                found.best_step,
                found.since,
                found.best,
                found.now,
                found.train_then,
                found.train_now,
                found.score,
            ],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self._steps, self._values = array("d", state["steps"]), array("d", state["values"])
        self._trains, self._errors = array("d", state["trains"]), array("d", state["errors"])
        self._count = state["sums"][0]
        self._sum, self._squares = float(state["sums"][1]), float(state["sums"][2])
        self.found = None if state["found"] is None else Divergence(*state["found"])
