"""What was usual in a run while it was healthy, to tell whether a resumed attempt is anywhere near. Part of its state.

Detectors warm up again after a resume, since a resume may shift every level, so they have nothing against an attempt
that comes back a thousand times off. For a recovery that is no healthy step: it is measured by the largest magnitudes
of the attempt before its failure, times a factor that no resume of the same command explains. Nobody is paged for it;
the recovery does not count the step, and climbs on where no healthy ones follow, and what the attempt ran with does not
count as healthy. An attempt that somebody started by hand, with another unit say, is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from exporter.detectors.watches import WATCHES
from exporter.service.recent import RecentStep

FACTOR: Final = 20.0
LEAST_STEPS: Final = 10
"""Fewer healthy steps say too little; what was known before them is kept."""
FLOORS: Final[Mapping[str, float]] = {watch.signal: watch.floor for watch in WATCHES if not watch.falls}
"""Signals that are compared, and the magnitude from which on that has a meaning (in the signal's unit)."""


@dataclass(slots=True)
class Usual:
    """Of one run.

    >>> usual = Usual()
    >>> usual.learn([RecentStep(step, 1, 0.0, {"grad_norm": 0.5 + step % 2}) for step in range(30, 50)], None)
    >>> usual.outside(36, {"grad_norm": 7e5})
    'grad_norm is 7e+05, and was at most 1.5 before'
    >>> usual.outside(36, {"grad_norm": 20.0, "loss": 1e9}), usual.outside(9, {"grad_norm": 7e5})
    ('', '')
    """

    sizes: dict[str, float] = field(default_factory=dict)
    """Signal -> its largest magnitude."""
    since: int = 0
    """The first of the steps that this tells of. In steps long before it a run that learns may have been another."""

    def learn(self, steps: Iterable[RecentStep], broken_at: int | None) -> None:
        """An attempt is over: its newest steps, without those from ``broken_at`` on."""
        healthy = [one for one in steps if broken_at is None or one.step < broken_at]
        if len(healthy) < LEAST_STEPS:
            return
        self.sizes, self.since = {}, min(one.step for one in healthy)
        for one in healthy:
            for signal in FLOORS.keys() & one.signals.keys():
                size = abs(one.signals[signal])
                if math.isfinite(size):
                    self.sizes[signal] = max(size, self.sizes.get(signal, 0.0))

    def outside(self, step: int, signals: Mapping[str, float]) -> str:
        """Which signal of a step is far beyond all that was usual, as a sentence without its stop; else empty."""
        if step < self.since:
            return ""
        for signal, largest in self.sizes.items():
            value = signals.get(signal, 0.0)
            if math.isfinite(value) and abs(value) > FACTOR * max(largest, FLOORS[signal]):
                return f"{signal} is {value:.4g}, and was at most {largest:.4g} before"
        return ""
