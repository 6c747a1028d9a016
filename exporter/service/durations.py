"""A histogram of seconds: how long the steps of a run take. Part of the run's state; shown by ``/metrics``."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf

DURATION_BUCKETS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
"""Upper bounds in seconds: from a toy model's step to a large model's."""


@dataclass
class Durations:
    """A histogram of seconds. What is no number, is negative or without end is no duration, and left out."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        if 0.0 <= seconds < inf:
            self.counts[bisect_left(DURATION_BUCKETS, seconds)] += 1
            self.total += seconds
