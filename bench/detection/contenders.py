"""Who is asked about a run, by name; and verl-sentinel itself.

Called by the benchmark. A contender starts one watch for a run, which takes the steps in order and says what it finds.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.detection.runs import HealthyRun, Metrics
from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.registry import build_detectors
from exporter.detectors.setup import RunSetup
from exporter.incidents import Rules
from exporter.replay.past_run import PastRun
from exporter.replay.rows import Row
from exporter.signals import canonical

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Said:
    """One finding on one step."""

    severity: Severity
    source: str
    """What said it of what: a detector and a signal, or a rule."""
    verdict: Verdict | None = None
    """Of ours."""


class Watch(Protocol):
    """One run under watch."""

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        """The next step, in the order of the log."""

    def fork(self) -> Watch:
        """A copy that goes its own way."""

    def faults(self) -> dict[str, int]:
        """Exceptions so far, by whose they were, as far as the watch goes on after them."""


class Contender(Protocol):
    """One who watches."""

    name: str
    package: str
    """The module that has to be installed; empty: none."""
    slow: bool
    """Takes so long that it is given fewer cases."""

    def start(self, setup: RunSetup) -> Watch:
        """Begin a run of which ``setup`` is known."""

    def microseconds(self, run: HealthyRun) -> float:
        """What judging a step takes, by the processor time of one core."""


class Ours:
    """The very code that watches live runs and replays past ones, in its default configuration."""

    name = "verl-sentinel"
    package = ""
    slow = False

    def start(self, setup: RunSetup) -> Watch:
        """Begin as a replay begins."""
        return _OurWatch(setup)

    def microseconds(self, run: HealthyRun) -> float:
        """The detectors alone, on signals that are ready: the best of some rounds."""
        samples = [
            StepSample(step, 1, float(index), canonical(metrics), run.setup)
            for index, (step, metrics) in enumerate(run.steps)
        ]
        best = float("inf")
        for _ in range(ROUNDS):
            detectors = build_detectors().step
            began = time.thread_time()
            for sample in samples:
                for detector in detectors:
                    detector.observe(sample)
            best = min(best, time.thread_time() - began)
        return 1e6 * best / len(samples)


class _OurWatch:
    def __init__(self, setup: RunSetup) -> None:
        self._run = PastRun(build_detectors, Rules(), setup)

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        said = self._run.take(Row(step, metrics))
        return [Said(v.severity, f"{v.detector}/{v.signal}", v) for v in said.verdicts]

    def fork(self) -> Watch:
        return copy.deepcopy(self)

    def faults(self) -> dict[str, int]:
        return self._run.faults


def whole_take(contender: Contender, run: HealthyRun) -> float:
    """Microseconds a step of :meth:`Watch.take`, for contenders of which nothing more is known."""
    watch = contender.start(run.setup)
    began = time.thread_time()
    for step, metrics in run.steps:
        watch.take(step, metrics)
    return 1e6 * (time.thread_time() - began) / len(run.steps)
