"""A reward that no longer gains while the policy has no entropy left to explore with. Used by ``reward`` only.

Steps are put together in blocks, and the means of the newest blocks are what is judged: their least-squares line has to
bring less than its own error and less than a small share of the level, or of the span of the rewards where they are
negative. A reward near 1 that never was above it is a task that is solved, and no finding.

Reference: entropy as what a policy pays for reward with, and the plateau when it is spent: G. Cui et al., The Entropy
Mechanism of Reinforcement Learning for Reasoning Language Models, 2025.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

BLOCK: Final = 20
GAIN: Final = 0.02
"""Gain over the window, as a share of the level or span, that is none."""
SOLVED: Final = 0.9
NEWEST: Final = 5
"""Blocks whose mean is the level of now."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """What was seen of a plateau."""

    since: int
    steps: int
    reward: float
    gain: float
    """Over the window, by its line."""
    entropy: float
    entropy_at_most: float
    """The highest that a block had."""


class Plateau:
    """Reward and entropy of one run, in blocks.

    ``steps``: the window. ``floor``: share of the highest entropy that counts as none.
    """

    def __init__(self, *, steps: int, floor: float) -> None:
        self._blocks, self._floor = max(steps // BLOCK, 2 * NEWEST), floor
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._rewards, self._entropies, self._firsts = array("d"), array("d"), array("d")  # of the blocks
        self._highest_entropy = self._highest_reward = 0.0
        self._lowest_reward = 0.0
        self._sums = [0.0, 0.0]
        self._count = 0
        self._first = 0
        self.found: Standstill | None = None

    def push(self, step: int, reward: float, entropy: float) -> None:
        """Take a step that has both. ``found`` is judged at the end of a block and holds until the next."""
        if self._count == 0:
            self._first = step
        self._sums[0] += reward
        self._sums[1] += entropy
        self._count += 1
        if self._count < BLOCK:
            return
        for series, total in ((self._rewards, self._sums[0]), (self._entropies, self._sums[1])):
            series.append(total / BLOCK)
        self._firsts.append(self._first)
        self._highest_reward = max(self._highest_reward, self._rewards[-1])
        self._lowest_reward = min(self._lowest_reward, self._rewards[-1])
        self._highest_entropy = max(self._highest_entropy, self._entropies[-1])
        self._sums, self._count = [0.0, 0.0], 0
        if len(self._rewards) > self._blocks:
            del self._rewards[0], self._entropies[0], self._firsts[0]
        self.found = self._judge() if len(self._rewards) == self._blocks else None

    def _judge(self) -> Standstill | None:
        entropy, reward = fmean(self._entropies[-NEWEST:]), fmean(self._rewards[-NEWEST:])
        spent = max(self._entropies) <= self._floor * self._highest_entropy
        if not (spent and math.isfinite(reward) and self._highest_entropy > 0.0):
            return None
        # Scores are taken for ones of 0 to 1, or of -1 to 1, as long as none was outside.
        least = 0.0 if self._lowest_reward >= 0.0 else -1.0
        scored = self._lowest_reward >= least and self._highest_reward <= 1.0
        if scored and reward >= least + SOLVED * (1.0 - least):
            return None
        gain, error = _gain(self._rewards)
        whole = abs(reward) if self._lowest_reward >= 0.0 else self._highest_reward - self._lowest_reward
        if not (gain <= error and gain <= GAIN * whole):
            return None
        return Standstill(
            since=int(self._firsts[0]),
            steps=self._blocks * BLOCK,
            reward=reward,
            gain=gain,
            entropy=entropy,
            entropy_at_most=self._highest_entropy,
        )

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        found = self.found
        return {
            "rewards": list(self._rewards),
            "entropies": list(self._entropies),
            "firsts": list(self._firsts),
            "extremes": [self._highest_entropy, self._highest_reward, self._lowest_reward],
            "block": [*self._sums, self._count, self._first],
            "found": None
            if found is None
            else [found.since, found.steps, found.reward, found.gain, found.entropy, found.entropy_at_most],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self._rewards, self._entropies = array("d", state["rewards"]), array("d", state["entropies"])
        self._firsts = array("d", state["firsts"])
        self._highest_entropy, self._highest_reward, self._lowest_reward = map(float, state["extremes"])
        self._sums = [float(state["block"][0]), float(state["block"][1])]
        self._count, self._first = state["block"][2:]
        self.found = None if state["found"] is None else Standstill(*state["found"])


def _gain(values: array[float]) -> tuple[float, float]:
    """What the least-squares line through equally spaced values brings from end to end, and its standard error.

    >>> gain, error = _gain(array("d", [1.0, 2.1, 2.9, 4.0]))
    >>> round(gain, 2), round(error, 2)
    (2.94, 0.13)
    """
    count = len(values)
    middle, mean = (count - 1) / 2.0, fmean(values)
    squares = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / squares
    rest = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return slope * (count - 1), math.sqrt(rest / (count - 2) / squares) * (count - 1)
