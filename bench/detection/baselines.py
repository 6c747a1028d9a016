"""Two rules that need no package: the operations manual's fixed thresholds, and mean + 6 sigma.

Called by the benchmark. Both are written here anew, as somebody would put them into an alert rule, and not with the
code that they are compared with.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from bench.detection.contenders import Said, Watch, whole_take
from bench.detection.runs import HealthyRun, Metrics
from exporter.detectors.base import Severity
from exporter.detectors.setup import RunSetup
from exporter.signals import SIGNALS, canonical

PAGE: Final = Severity.CRITICAL


class Manual:
    """P95 of the step time above 120 s, KL above 0.3 or below 0.01, memory above 95 %, three steps above 30 s, loss NaN
    or 10 times up. The manual does not grade them: each pages. Its KL is that against the reference; a run without one
    is not judged by it.
    """

    name = "the manual's thresholds"
    package = ""
    slow = False

    def start(self, setup: RunSetup) -> Watch:
        """Begin; the memory's size is known where the run's is."""
        return _ManualWatch(setup)

    def microseconds(self, run: HealthyRun) -> float:
        """With the reading of the signals."""
        return whole_take(self, run)


class _ManualWatch:
    def __init__(self, setup: RunSetup) -> None:
        self._memory = setup.gpu_memory_bytes
        self._times: deque[float] = deque(maxlen=100)
        self._losses: deque[float] = deque(maxlen=100)

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        signals = canonical(metrics)
        found = []
        if "step_time" in signals:
            self._times.append(signals["step_time"])
            times = list(self._times)
            if len(times) >= 20 and sorted(times)[math.ceil(0.95 * len(times)) - 1] > 120.0:
                found.append("P95 of the step time")
            if len(times) >= 3 and min(times[-3:]) > 30.0:
                found.append("three slow steps")
        if not 0.01 <= signals.get("kl", 0.1) <= 0.3:  # NaN is neither
            found.append("KL")
        if self._memory and signals.get("gpu_memory", 0.0) > 0.95 * self._memory:
            found.append("memory")
        loss = abs(signals.get("loss", 0.0))
        if math.isnan(loss) or (len(self._losses) >= 10 and loss > 10.0 * statistics.median(self._losses) > 0.0):
            found.append("loss")
        if "loss" in signals and math.isfinite(loss):
            self._losses.append(loss)
        return [Said(PAGE, rule) for rule in found]

    def fork(self) -> Watch:
        return copy.deepcopy(self)

    def faults(self) -> dict[str, int]:
        return {}


class SixSigma:
    """Above mean + 6 sigma of the last 128 values, of every canonical signal by itself; each pages."""

    name = "mean + 6 sigma"
    package = ""
    slow = False

    def start(self, setup: RunSetup) -> Watch:
        """Begin; nothing is known."""
        return _SixSigmaWatch()

    def microseconds(self, run: HealthyRun) -> float:
        """With the reading of the signals."""
        return whole_take(self, run)


WINDOW: Final = 128
LEAST: Final = 30
_NAMES: Final = tuple(SIGNALS)


class _SixSigmaWatch:
    def __init__(self) -> None:
        self._past = np.full((len(_NAMES), WINDOW), np.nan)
        self._count = 0

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        signals = canonical(metrics)
        now = np.array([signals.get(name, math.nan) for name in _NAMES])
        past = self._past
        known = np.isfinite(past)
        count = known.sum(axis=1)
        with np.errstate(all="ignore"):
            filled = np.where(known, past, 0.0)
            mean = filled.sum(axis=1) / count
            sigma = np.sqrt(np.where(known, (past - mean[:, None]) ** 2, 0.0).sum(axis=1) / count)
            above = (count >= LEAST) & (sigma > 1e-12 * np.abs(mean)) & (now > mean + 6.0 * sigma)
        past[:, self._count % WINDOW] = now
        self._count += 1
        return [Said(PAGE, _NAMES[index]) for index in np.flatnonzero(above)]

    def fork(self) -> Watch:
        return copy.deepcopy(self)

    def faults(self) -> dict[str, int]:
        return {}
