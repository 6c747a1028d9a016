"""How the values of a signal are read for a test, and told to a person. Used by the detectors of single signals.

A signal that changes by factors is compared by logarithms of its magnitude, others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LARGEST: Final = 1e30
"""No value is read as more than this, in either direction."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a signal's values are read, how a mean of what was read is told, and what is as far out as that."""

    read: Callable[[float], float]
    tell: Callable[[float], float]
    upto: Callable[[float], tuple[float, float]]
    """The values, from the least to the largest, that are read as no more than this."""


def logarithm(offset: float = 0.0, *, signed: bool = False) -> Scale:
    """Changes by a factor. Values (magnitudes) far below ``offset`` are all the same; with none, far below 1e-12.

    ``signed``: a healthy value may be below 0.

    >>> scale = logarithm(0.01)
    >>> round(scale.tell(scale.read(0.5)), 3), round(scale.read(0.02) - scale.read(0.005), 2)
    (0.5, 0.69)
    >>> [tuple(round(end, 3) for end in one.upto(one.read(0.5))) for one in (scale, logarithm(0.01, signed=True))]
    [(0.0, 0.5), (-0.5, 0.5)]
    """
    small = offset or 1e-12

    def tell(mean: float) -> float:
        return _above(math.exp(mean), small)

    return Scale(
        lambda value: math.log(min(abs(value), LARGEST) + small),
        tell,
        lambda mean: (-tell(mean) if signed else 0.0, tell(mean)),
    )


def _above(value: float, small: float) -> float:
    """What is left without the offset; what rounding leaves of nothing is nothing."""
    left = value - small
    return left if left > 1e-6 * small else 0.0


def linear(least: float = -LARGEST, most: float = LARGEST) -> Scale:
    """Values as they are. ``least``, ``most``: what the signal can be, where it has such an end."""
    return Scale(
        lambda value: min(max(value, -LARGEST), LARGEST), lambda mean: mean, lambda mean: (least, min(mean, most))
    )


LINEAR: Final = linear()


def _below_one(mean: float) -> float:
    return 1.0 - min(max(math.exp(mean) - 0.005, 0.0), 2.0)


TO_ONE: Final = Scale(
    lambda value: math.log(min(max(1.0 - value, 0.0), 2.0) + 0.005), _below_one, lambda mean: (_below_one(mean), 1.0)
)
"""Of a correlation: its distance from 1."""


def _factor(mean: float) -> float:
    """Of two numbers, by the logarithm of that of their logarithms."""
    return math.exp(min(max(math.exp(min(mean, 10.0)) - 0.005, 0.0), math.log(LARGEST)))


AROUND_ONE: Final = Scale(
    lambda value: math.log(abs(math.log(min(max(value, 1.0 / LARGEST), LARGEST))) + 0.005),
    _factor,
    lambda mean: (1.0 / _factor(mean), _factor(mean)),
)
"""Of a ratio that is 1 where both agree."""
