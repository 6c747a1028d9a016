"""Whether other signals move with the one that is judged: cheap, and never a finding of its own. Used by ``reward``.

Of each signal the logarithm of its magnitude is followed by two exponentially weighted means, a fast one of some steps
and a slow one of some dozens. It moves where they are further apart than noise explains, and far enough to matter.

:mod:`exporter.detectors.beside` answers another question: which way a signal drifts over as many steps as the change
that is judged, in units of noise. Here the change is not known yet, it is this answer that decides on it; a signal must
move by a factor that matters, not only by its noise; and a step without a gradient must not count as one.

Reference: exponentially weighted moving averages as control charts: S. W. Roberts, Technometrics 1, 1959.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FAST: Final = 0.25
SLOW: Final = 1.0 / 60.0
RATIO: Final = math.sqrt(FAST / (2.0 - FAST))
"""Standard deviation of the fast mean, in units of the noise."""
CLIP: Final = 4.0
LEAST_SEEN: Final = 15


@dataclass(frozen=True, slots=True)
class Companion:
    """One signal. ``offset``: magnitudes far below it are all the same. ``least``: log of the factor that matters."""

    signal: str
    offset: float
    least: float
    rises: bool = True
    """Whether a rise counts."""
    falls: bool = True


class Companions:
    """Some signals of one run.

    ``noises``: units of noise that a signal must move by.

    >>> beside = Companions((Companion("kl", 1e-4, 0.5, falls=False),), noises=5.0)
    >>> for step in range(100):
    ...     beside.push({"kl": 1e-3 * (1 + step % 3) * (20.0 if step > 92 else 1.0)})
    >>> [(signal, round(factor, 1)) for signal, factor in beside.moving()]
    [('kl', 9.1)]
    """

    def __init__(self, table: tuple[Companion, ...], *, noises: float) -> None:
        self._table, self._noises = table, noises
        self.restart()

    def restart(self) -> None:
        """Forget all levels."""
        self._states = [[0.0, 0.0, 0.0, 0.0] for _ in self._table]  # seen, fast mean, slow mean, variance

    def push(self, signals: Mapping[str, float]) -> None:
        """Take the next step. What is exactly 0 was not there: a gradient of a batch without advantages, say."""
        for one, state in zip(self._table, self._states, strict=True):
            value = signals.get(one.signal)
            if not value or not -math.inf < value < math.inf:
                continue
            value = math.log(abs(value) + one.offset)
            seen, fast, slow, variance = state
            if not seen:
                state[:] = 1.0, value, value, 0.0
                continue
            rate = max(SLOW, 1.0 / (seen + 1.0))
            away = value - slow
            if seen > LEAST_SEEN:
                # What is far off now must not become the measure of what is far off.
                reach = CLIP * math.sqrt(variance)
                away = min(max(away, -reach), reach)
            state[0] = seen + 1.0
            state[1] = fast + FAST * (value - fast)
            state[2] = slow + rate * away
            state[3] = (1.0 - rate) * (variance + rate * away * away)

    def moving(self) -> list[tuple[str, float]]:
        """Signals that move, with the factor by which they have."""
        found = []
        for one, (seen, fast, slow, variance) in zip(self._table, self._states, strict=True):
            away = fast - slow
            asked = max(one.least, self._noises * RATIO * math.sqrt(variance))
            if seen > LEAST_SEEN and ((one.rises and away > asked) or (one.falls and away < -asked)):
                found.append((one.signal, math.exp(min(away, 300.0))))
        return found

    def state(self) -> list[list[float]]:
        """Plain data, for :meth:`load`."""
        return [list(state) for state in self._states]

    def load(self, states: list[list[float]]) -> None:
        """Take over what :meth:`state` gave."""
        if len(states) == len(self._table):
            self._states = [[float(number) for number in state] for state in states]
