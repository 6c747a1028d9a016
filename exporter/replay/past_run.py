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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from exporter.detectors.base import Expectation, Expecting, LiveDetector, Severity, StepDetector, StepSample, Verdict
from exporter.detectors.registry import DetectorSet
from exporter.detectors.setup import UNKNOWN, RunSetup
from exporter.incidents import Change, Incident, Rules
from exporter.protocol import PROTOCOL_VERSION, AttemptStarted, Batch, CheckpointSaved, Event, Number, Run, Sender, Step
from exporter.recovery.facts import RunFacts
from exporter.replay.rows import Row
from exporter.service.sequences import Sequences
from exporter.service.watch import WatchedRun
from exporter.signals import SIGNALS, plan_of

STEP_TIMES: Final = tuple(spelling.key for spelling in SIGNALS["step_time"].spellings)
SAVED: Final = tuple(spelling.key for spelling in SIGNALS["checkpoint_time"].spellings)
LONGEST_STEP: Final = 86_400.0
MOST_INCIDENTS: Final = 2000
"""That are remembered to say which of them belong together."""
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
    step: int
    at: float
    """When it would have arrived: Unix seconds, or seconds since the first row where the file has no times."""
    judged: bool
    """It did not come too late for that."""
    verdicts: tuple[Verdict, ...]
    """Every verdict, in the order of the detectors."""
    news: tuple[Verdict, ...]
    """Those that a person would have been told of: the first of an episode, and each that was worse."""
    changes: tuple[Change, ...] = ()
    """What became of incidents."""


class PastRun:
    """One run, fed row by row.

    Args:
        detectors: makes the run's own.
        rules: when an episode is over.
        setup: what a live run would have told beside its metrics.
        save_freq: a checkpoint was saved every so many steps; counts until the log itself says that one was saved.

    >>> from exporter.detectors.registry import build_detectors
    >>> run = PastRun(build_detectors, Rules())
    >>> said = [run.take(Row(step, {"actor/loss": float("nan") if step > 1 else 0.5})) for step in (1, 2, 3, 4)]
    >>> [(len(one.verdicts), len(one.news)) for one in said]
    [(0, 0), (1, 1), (1, 0), (1, 0)]
    """

    def __init__(
        self,
        detectors: Callable[[], DetectorSet],
        rules: Rules,
        setup: RunSetup = UNKNOWN,
        save_freq: int | None = None,
    ) -> None:
        self._verdicts: list[Verdict] = []
        step_detectors = detectors().step
        self._expecting = [detector for detector in step_detectors if isinstance(detector, Expecting)]
        heeding = _Heeding([_Heard(detector, self._verdicts) for detector in step_detectors])
        self._watched = WatchedRun.new(Run(run_id="replay"), heeding, rules, 0.0)
        self._watched.state.setup_override = setup
        self._rules = rules
        self._save_freq = save_freq
        self._at = 0.0
        self._sequence = 0
        self._writer = ""
        self._newest = -1
        self._oldest = 0
        self._logged = Sequences()
        self._noted: dict[tuple[str, str], int] = {}
        self._incidents: dict[str, Incident] = {}
        self.attempts = 0
        self.saves = 0
        """Checkpoints, by what the log says or by ``save_freq``."""
        self.saves_logged = False

    @property
    def steps(self) -> int:
        """Training steps, each start's own."""
        return self._watched.state.steps_total

    @property
    def faults(self) -> dict[str, int]:
        """How often each detector failed; empty where none did."""
        return dict(self._watched.detector_faults)

    def signals(self) -> dict[str, float]:
        """Of the newest step, all its parts together."""
        state = self._watched.state
        return {name: state.signals[name] for name in state.step_signals}

    def incidents(self) -> list[Incident]:
        """Every incident, in the order in which they were opened, as it ended or is now."""
        now = {incident.id: incident for incident in self._watched.book}
        return [now.get(incident.id, incident) for incident in self._incidents.values()]

    def facts(self) -> RunFacts:
        """The run as recovery sees it."""
        return self._watched.facts()

    def told_last_step(self, step: int) -> None:
        """The file says how many steps the training has; what was said of it before goes before that."""
        setup = self._watched.state.setup_override or UNKNOWN
        if setup.total_steps is None:
            self._watched.state.setup_override = replace(setup, total_steps=step)

    def expected(self) -> list[tuple[str, str, Expectation]]:
        """What each detector expects of the next step: detector, signal, expectation."""
        found = []
        for detector in self._expecting:
            try:
                found += [(detector.name, signal, one) for signal, one in detector.expected().items()]
            except Exception:  # noqa: BLE001 - a detector that fails is counted where it judges
                continue
        return found

    def take(self, row: Row) -> Said:
        """The next row of the file."""
        events = self._place(row)
        self._tell_time(row)
        if any(key in row.metrics for key in SAVED):
            self._saved_by_log(row.step)
            events.append(self._save(row.step))
        elif self._save_freq and not self.saves_logged and row.step and row.step % self._save_freq == 0:
            events.append(self._save(row.step))
        if events:
            self._apply(events=events)
        metrics: dict[str, Number] = row.metrics  # type: ignore[assignment]
        self._verdicts.clear()
        changes = self._apply(steps=[Step(step=row.step, metrics=metrics, time=row.time)])
        for change in changes:
            if change.after.id in self._incidents or len(self._incidents) < MOST_INCIDENTS:
                self._incidents[change.after.id] = change.after
        verdicts = tuple(self._verdicts)
        return Said(
            attempt=self.attempts,
            step=row.step,
            at=self._at,
            judged=self._watched.state.current == row.step,
            verdicts=verdicts,
            news=tuple(self._news(verdicts, changes)) if verdicts else (),
            changes=changes,
        )

    def _apply(self, **parts: Any) -> tuple[Change, ...]:
        self._sequence += 1
        batch = Batch(
            protocol=PROTOCOL_VERSION,
            run=Run(run_id="replay", attempt=self.attempts),
            sender=Sender(id=f"replay-{self.attempts}"),
            seq=self._sequence,
            **parts,
        )
        reports = self._watched.apply_batch(batch, self._at)
        return tuple(report for report in reports if isinstance(report, Change))

    def _place(self, row: Row) -> list[Event]:
        """Find the start of the trainer that the row belongs to; what a supervisor would have told of a new one."""
        events: list[Event] = []
        named = bool(row.writer and self._writer)
        again = row.step < self._newest and (row.step in self._logged or row.step < self._oldest)
        if not self.attempts or (row.writer != self._writer if named else again):
            self.attempts += 1
            self._logged = Sequences()
            self._oldest = self._newest = row.step
            if self.attempts > 1:
                # The first step that it logs is the one after the checkpoint, but for a validation before training.
                step = max(0, row.step - 1) if plan_of(row.metrics).training else row.step
                events.append(AttemptStarted(time=row.time, pid=0, resume_step=step))
        self._logged.add(row.step)
        self._newest = max(self._newest, row.step)
        self._writer = row.writer or self._writer
        return events

    def _saved_by_log(self, step: int) -> None:
        if not self.saves_logged:
            # What was assumed until here is not what the trainer did.
            self.saves_logged = True
            self.saves = 0
            self._watched.state.checkpoints.clear()

    def _save(self, step: int) -> CheckpointSaved:
        self.saves += 1
        return CheckpointSaved(time=0.0, step=step, path=f"global_step_{step}", verified=True)

    def _tell_time(self, row: Row) -> None:
        """When the row would have arrived: when the file says, else after the time that the step took."""
        if row.time > 0.0 and math.isfinite(row.time):
            self._at = max(self._at, row.time)
            return
        seconds = next((row.metrics[name] for name in STEP_TIMES if name in row.metrics), math.nan)
        self._at += seconds if 0.0 < seconds < LONGEST_STEP else UNKNOWN_STEP_SECONDS

    def _news(self, verdicts: Sequence[Verdict], changes: Sequence[Change]) -> Iterator[Verdict]:
        told = {
            (change.after.detector, change.after.signal)
            for change in changes
            if change.what in ("opened", "escalated", "reopened")
        }
        for verdict in verdicts:
            key = (verdict.detector, verdict.signal)
            if verdict.severity > Severity.INFO:
                if key in told:
                    yield verdict
            else:
                before = self._noted.get(key)
                if before is None or not 0 <= verdict.step - before <= self._rules.resolve_after_steps:
                    yield verdict
                self._noted[key] = verdict.step
