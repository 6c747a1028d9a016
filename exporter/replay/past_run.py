"""A past run under the eyes of the code that watches live ones, without a journal and without a clock. Called by the
replay for each run.

What a push of a row would have changed is what changes here: the same :class:`~exporter.service.watch.WatchedRun` reads
the signals, puts the parts of a step together, has the detectors judge it and keeps the incidents. The detectors that
look at a run between its steps (a hang, silence, the end of the process) have nothing to look at in a file.

In a file nobody says where the trainer was started again. As ``follow`` does in a console log, another writing process
is taken for another start, and where rows do not name one, so is a step that was logged before, or that lies before the
first of this start. A step that comes late but was not there yet is only late, and judged by nobody, as in a live run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exporter.detectors.base import LiveDetector, Severity, StepDetector, StepSample, Verdict
from exporter.detectors.registry import build_detectors
from exporter.incidents import Change, Rules
from exporter.protocol import PROTOCOL_VERSION, Batch, Number, Run, Sender, Step
from exporter.replay.rows import Row
from exporter.service.sequences import Sequences
from exporter.service.watch import WatchedRun
from exporter.signals import SIGNALS

STEP_TIMES: Final = tuple(spelling.key for spelling in SIGNALS["step_time"].spellings)
LONGEST_STEP: Final = 86_400.0
UNKNOWN_STEP_SECONDS: Final = 1.0
"""Between two steps of which nothing says how long they took."""


class _Heard:
    """A step detector whose verdicts are also kept in ``verdicts``."""

    def __init__(self, detector: StepDetector, verdicts: list[Verdict]) -> None:
        self.name = detector.name
        self._detector = detector
        self._verdicts = verdicts

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        found = self._detector.observe(sample)
        if found:
            self._verdicts += found
        return found

    def resumed(self, step: int, attempt: int) -> None:
        self._detector.resumed(step, attempt)

    def state_dict(self) -> dict[str, Any]:
        return self._detector.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._detector.load_state_dict(state)


@dataclass(frozen=True, slots=True)
class _Heeding:
    """The detectors of a past run."""

    step: Sequence[StepDetector]
    live: Sequence[LiveDetector] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a row led to."""

    attempt: int
    verdicts: tuple[Verdict, ...]
    """Every verdict, in the order of the detectors."""
    news: tuple[Verdict, ...]
    """Those that a person would have been told of: the first of an episode, and each that was worse."""


class PastRun:
    """One run, fed row by row.

    ``options``: of detectors, by name. ``rules``: when an episode is over.

    >>> run = PastRun({}, Rules())
    >>> said = [run.take(Row(step, {"actor/loss": float("nan") if step > 1 else 0.5})) for step in (1, 2, 3, 4)]
    >>> [(len(one.verdicts), len(one.news)) for one in said]
    [(0, 0), (1, 1), (1, 0), (1, 0)]
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]], rules: Rules) -> None:
        self._verdicts: list[Verdict] = []
        detectors = _Heeding([_Heard(detector, self._verdicts) for detector in build_detectors(options).step])
        self._identity = Run(run_id="replay")
        self._watched = WatchedRun.new(self._identity, detectors, rules, 0.0)
        self._rules = rules
        self._at = 0.0
        self._sequence = 0
        self._writer = ""
        self._newest = -1
        self._oldest = 0
        self._logged = Sequences()
        self._noted: dict[tuple[str, str], int] = {}
        self.attempts = 0

    @property
    def steps(self) -> int:
        """Training steps, each start's own."""
        return self._watched.state.steps_total

    @property
    def faults(self) -> dict[str, int]:
        """How often each detector failed; empty where none did."""
        return dict(self._watched.detector_faults)

    def take(self, row: Row) -> Said:
        """The next row of the file."""
        self._place(row)
        self._tell_time(row)
        metrics: dict[str, Number] = row.metrics  # type: ignore[assignment]
        self._sequence += 1
        batch = Batch(
            protocol=PROTOCOL_VERSION,
            run=Run(run_id="replay", attempt=self.attempts),
            sender=Sender(id=f"replay-{self.attempts}"),
            seq=self._sequence,
            steps=[Step(step=row.step, metrics=metrics, time=row.time)],
        )
        self._verdicts.clear()
        changes = self._watched.apply_batch(batch, self._at)
        verdicts = tuple(self._verdicts)
        return Said(self.attempts, verdicts, tuple(self._news(verdicts, changes)) if verdicts else ())

    def _place(self, row: Row) -> None:
        """Find the start of the trainer that the row belongs to."""
        named = bool(row.writer and self._writer)
        again = row.step < self._newest and (row.step in self._logged or row.step < self._oldest)
        if not self.attempts or (row.writer != self._writer if named else again):
            self.attempts += 1
            self._logged = Sequences()
            self._oldest = self._newest = row.step
        self._logged.add(row.step)
        self._newest = max(self._newest, row.step)
        self._writer = row.writer or self._writer

    def _tell_time(self, row: Row) -> None:
        """When the row would have arrived: when the file says, else after the time that the step took."""
        if row.time > 0.0 and math.isfinite(row.time):
            self._at = max(self._at, row.time)
            return
        seconds = next((row.metrics[name] for name in STEP_TIMES if name in row.metrics), math.nan)
        self._at += seconds if 0.0 < seconds < LONGEST_STEP else UNKNOWN_STEP_SECONDS

    def _news(self, verdicts: Sequence[Verdict], changes: Sequence[object]) -> list[Verdict]:
        told = {
            (change.after.detector, change.after.signal)
            for change in changes
            if isinstance(change, Change) and change.what in ("opened", "escalated", "reopened")
        }
        news = []
        for verdict in verdicts:
            key = (verdict.detector, verdict.signal)
            if verdict.severity > Severity.INFO:
                if key in told:
                    news.append(verdict)
            else:
                before = self._noted.get(key)
                if before is None or not 0 <= verdict.step - before <= self._rules.resolve_after_steps:
                    news.append(verdict)
                self._noted[key] = verdict.step
        return news
