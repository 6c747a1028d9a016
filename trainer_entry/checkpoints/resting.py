"""Rests between pieces of work beside training, on machines so small that it would be felt.

Idle priority yields a core, and neither memory bandwidth nor caches nor the kernel's own work for disk and network: on
two cores, a process that hashes and copies on one slows a training loop on the other by some per cent. Of many cores
one more is nothing. So the work takes :func:`share` of one core's time, and all of it from :data:`CORES` cores on. For
processes beside training only: what somebody waits for, and what is done once a run is over, does not rest.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

CORES = 16
"""From so many cores on nothing rests."""
LONGEST_SECONDS = 2.0
"""Of one rest: a piece of work that is that large is seldom, and whoever stops it is not to wait for long."""


def share(cores: int | None = None) -> float:
    """Share of one core's time that work beside training takes.

    >>> share(2), share(64)
    (0.125, 1.0)
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(1.0, cores / CORES)


class Rest:
    """Of one process. ``cpu``: seconds of CPU that it has used, of all its threads."""

    def __init__(
        self,
        of_time: float,
        *,
        sleep: Callable[[float], object] | None = None,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._rests = 1.0 / of_time - 1.0
        self._over = threading.Event()
        self._sleep = sleep or self._over.wait
        self._cpu = cpu
        self._used = cpu()

    def after_a_piece(self) -> None:
        """Rest for as long as the CPU time since the last rest asks for; time spent waiting asks for none."""
        used = self._cpu()
        seconds = min((used - self._used) * self._rests, LONGEST_SECONDS)
        self._used = used
        if seconds > 0.0 and not self._over.is_set():
            self._sleep(seconds)

    def end(self) -> None:
        """Nothing trains beside it any more: no rest from here on, nor the rest of this one."""
        self._over.set()
