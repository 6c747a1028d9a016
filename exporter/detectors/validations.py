"""Training reward up while the validation reward falls. Used by ``reward`` only.

The training reward at a validation is the mean of the steps since the one before. Two levels are compared: the newest
validations, and the best of as many successive ones or fewer before them. Short levels find a steep fall soon, long
ones a small fall under much noise. The newest must lie below by more than noise explains, which is taken from
successive validations, and by a share of the level that matters.

Over the same time the training reward must have risen beyond its own noise. Where the validation has lost half of its
level it is enough that training did not fall: what the policy learns there no longer helps elsewhere.

Reference: reward-model overoptimization, where the proxy rises and the gold reward falls: L. Gao, J. Schulman and
J. Hilton, Scaling laws for reward model overoptimization, ICML 2023.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, Final

REMEMBERED: Final = 60
LEVELS: Final = ((2, 2), (2, 3), (4, 4), (6, 6), (10, 8))
"""Validations in the best level and in the newest. The best single one is mostly luck."""
NOISES: Final = 4.2
"""Standard errors: the best of many levels is one or two above the true one by luck alone."""
NOISES_OF_LARGE: Final = 3.0
"""The same for a large fall: few levels of a healthy run lie so far apart."""
MATTERS: Final = 0.05
"""Share of its level that the validation must have lost."""
LARGE: Final = 0.5
"""The same, from which on training need not have risen."""
RISEN: Final = 2.0
"""Standard errors by which the training reward must have risen."""
KEPT: Final = 0.05
"""Share of its level that the training reward may have lost, for one that did not fall."""
UNKNOWN_NOISE: Final = 0.03
"""Share of the level that validations may differ by where there are too few to tell."""
KNOWN: Final = 5
THIN: Final = 3.0
"""Over the number of validations: the share by which their noise may be underestimated."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Training and validation reward, at the best validation and as the mean of the newest."""

    best_step: int
    since: int
    """Step of the first validation after the best."""
    best: float
    now: float
    newest: int
    """Validations that ``now`` is the mean of."""
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

    def band(self) -> tuple[float, float, float] | None:
        """What is expected of the next validation: the mean of the newest ones, and from where on it lies apart from
        them by more than their noise explains, below and above. None while there are too few to judge."""
        few = sum(LEVELS[0])
        if len(self._values) < few:
            return None
        newest = self._values[-few:]  # more of them would lag behind a run that learns
        middle = fmean(newest)
        reach = NOISES * self._noise(max(self._values, key=abs)) * math.sqrt(1.0 + 1.0 / len(newest))
        return middle, middle - reach, middle + reach

    def _judge(self) -> Divergence | None:
        """The clearest divergence of all pairs of levels."""
        sums = [0.0, *accumulate(self._values)]
        count = len(self._values)
        if count < sum(LEVELS[0]):
            return None
        noise = self._noise(max(self._values, key=abs))
        clearest = None
        for length, newest in LEVELS:
            until = count - newest
            if until < length:
                break
            best, start = max(((sums[at + length] - sums[at]) / length, at) for at in range(until - length + 1))
            now = (sums[count] - sums[until]) / newest
            share = (best - now) / self._height(best, start + length, noise)
            asked = NOISES_OF_LARGE if share >= LARGE else NOISES
            allowed = asked * noise * math.sqrt(1.0 / length + 1.0 / newest)
            if best - now <= allowed or (clearest is not None and (best - now) / allowed <= clearest.score):
                continue
            trains = None if share < MATTERS else self._trained(start, length, until, share)
            if trains is None:
                continue
            last = start + length - 1
            clearest = Divergence(
                best_step=int(self._steps[last]),
                since=int(self._steps[last + 1]),
                best=best,
                now=now,
                newest=newest,
                train_then=trains[0],
                train_now=trains[1],
                score=min((best - now) / max(allowed, 1e-300), 1e12),
            )
        return clearest

    def _height(self, best: float, end: int, noise: float) -> float:
        """What a fall from the level is a share of: where values are negative, what was gained, since 0 is no floor."""
        lowest = min(self._values[:end])
        return max(best if lowest >= 0.0 else best - lowest, 2.0 * noise, 1e-300)

    def _trained(self, start: int, length: int, until: int, share: float) -> tuple[float, float] | None:
        """Training reward of both levels, where it did as hacking does."""
        then, after = range(start, start + length), range(until, len(self._values))
        train_then, train_now = (fmean(self._trains[place] for place in places) for places in (then, after))
        error = math.sqrt(sum(self._errors[place] / len(places) ** 2 for places in (then, after) for place in places))
        rise, level = train_now - train_then, abs(train_then)
        risen = rise > max(RISEN * error, 0.01 * level)
        kept = share >= LARGE and rise >= -min(error, KEPT * level)
        return (train_then, train_now) if risen or kept else None

    def _noise(self, level: float) -> float:
        """Standard deviation of a validation, by the mean distance of successive ones."""
        apart = [abs(after - before) for before, after in pairwise(self._values)]
        # Two normal numbers are 1.128 standard deviations apart.
        noise = fmean(apart) / 1.128
        noise *= 1.0 + THIN / len(self._values)
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
                found.newest,
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
