"""Who is asked about a run: verl-sentinel, and rules that need no package. The packages are in :mod:`~.peers`.

Called by the benchmark. A contender starts one watch for a run; a watch takes the steps in order and says what it finds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.detection.runs import Metrics
from exporter.detectors.base import Severity, Verdict
from exporter.detectors.registry import build_detectors
from exporter.detectors.setup import RunSetup
from exporter.incidents import Rules
from exporter.replay.past_run import PastRun
from exporter.replay.rows import Row


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

    @property
    def seconds(self) -> float:
        """What the detectors took so far, on one core, by the watch's own clock."""

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        """The next step, in the order of the log."""

    def fork(self) -> Watch:
        """A copy that goes its own way."""


class Contender(Protocol):
    """One who watches."""

    name: str

    def start(self, setup: RunSetup) -> Watch:
        """Begin a run of which ``setup`` is known."""


class Ours:
    """The very code that watches live runs and replays past ones, in its default configuration."""

    name = "verl-sentinel"

    def start(self, setup: RunSetup) -> Watch:
        return _OurWatch(setup)


class _OurWatch:
    def __init__(self, setup: RunSetup) -> None:
        self._run = PastRun(build_detectors, Rules(), setup)

    @property
    def seconds(self) -> float:
        """Time in the detectors alone."""
        return sum(timed.seconds for timed in self._run._watched.times.by_name.values())

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        said = self._run.take(Row(step, metrics))
        return [Said(v.severity, f"{v.detector}/{v.signal}", v) for v in said.verdicts]

    def fork(self) -> Watch:
        return copy.deepcopy(self)


CONTENDERS: dict[str, type[Contender]] = {"ours": Ours}
