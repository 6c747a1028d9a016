"""One run under watch: its state, its detectors, its incidents, and how a batch changes them. Called by the core.

Everything happens in the order of the journal and with the times in it. What the recovery engine has to hear is not
told from here but handed back as :class:`Report`, because on replay most of it was told before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Protocol

from msgspec.structs import replace

from exporter.agreement import Group, grouped
from exporter.detectors.base import Detector, LiveDetector, Severity, StepDetector, StepSample, Verdict
from exporter.incidents import Incident, IncidentBook, Rules
from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    Batch,
    CheckpointChecked,
    CheckpointCopied,
    CheckpointPruned,
    CheckpointSaved,
    CommandProgress,
    GradientHistogram,
    HooksReported,
    Run,
    RunFinished,
    RunStarted,
    SettingApplied,
    Step,
    WeightsSynced,
)
from exporter.recovery.facts import Checkpoint, OpenIncident, RunFacts
from exporter.service import parts
from exporter.service.detector_times import DetectorTimes
from exporter.service.entries import Look, Mark
from exporter.service.known import cut
from exporter.service.parts import Part
from exporter.service.reports import AttemptReport, Report, StepDone
from exporter.service.sequences import Sequences
from exporter.service.state import RunState, SenderState

log = logging.getLogger("exporter.watch")

PAUSES = frozenset(("save_checkpoint", "testing"))
"""Phases that make a step long every time."""

LOOK_SECONDS = 1.0
"""On replay the live detectors are asked no more often than the tick asks them."""


class Detectors(Protocol):
    """Fresh detectors of one run (``exporter.detectors.registry.DetectorSet``)."""

    @property
    def step(self) -> Sequence[StepDetector]: ...

    @property
    def live(self) -> Sequence[LiveDetector]: ...


@dataclass
class WatchedRun:
    """``detectors`` belong to this run alone."""

    state: RunState
    detectors: Detectors
    book: IncidentBook
    last_look: float = 0.0
    held: bool | None = None
    """After the end: whether a recovery is under way, or failed and nobody has acknowledged it; None: not asked yet."""
    detector_faults: Counter[str] = field(default_factory=Counter)
    """Exceptions of each detector: it is left out of that step or look, and the others go on."""
    reports: list[Report] = field(default_factory=list)
    seen: dict[str, Sequences] = field(default_factory=dict)
    """Sequence numbers taken, by sender."""
    metrics: set[str] = field(default_factory=set)
    """Names of all metrics that it ever sent."""
    times: DetectorTimes = field(default_factory=DetectorTimes)
    """How long detectors take; the core has all runs share its own."""
    _groups: tuple[tuple[Incident, ...], list[Group]] = ((), [])
    """Incidents, and what was found to belong together of them: asked for at every scrape, and most change nothing."""

    @classmethod
    def new(cls, run: Run, detectors: Detectors, rules: Rules, at: float) -> WatchedRun:
        return cls(RunState(run.run_id, at, run), detectors, IncidentBook(run.run_id, rules))

    def apply_batch(self, batch: Batch, at: float) -> list[Report]:
        """Change the state by one accepted batch: what began, then what was measured, then what ended."""
        self.reports = []
        state = self.state
        known = state.senders.get(batch.sender.id)
        stale_beat = known is not None and batch.seq <= known.highest_seq
        counts_as = self._counts_as(batch, known)
        if counts_as:
            batch = replace(batch, run=replace(batch.run, attempt=counts_as))
        attempt = batch.run.attempt
        sender = state.hear(batch, at)
        if sender.forgotten:
            state.late_steps += len(batch.steps)
            return self.reports
        sender.counts_as = counts_as
        for event in batch.events:
            if isinstance(event, AttemptStarted):
                self._attempt_started(event, attempt, at)
        if batch.sender.role != "supervisor" and attempt > state.attempt:
            self._begin(attempt, None, at)
        for event in batch.events:
            if isinstance(event, RunStarted) and attempt == state.attempt:
                self._run_started(event, sender, batch.sender.id, at)
        if attempt == state.attempt:
            self._measure(batch, sender, stale_beat, at)
        elif batch.rollout is not None:
            state.count_rollouts(sender, batch.rollout)
        for step in batch.steps:
            self._step(step, batch, sender, at)
        for event in batch.events:
            self._other_event(event, sender, attempt, at)
        return self.reports

    def _counts_as(self, batch: Batch, known: SenderState | None) -> int:
        """The attempt of a trainer that was started by hand, without the supervisor that had counted further; else 0.

        Left at its own number it would be taken for what remains of an old attempt, and nobody would watch it.
        """
        if known is not None and known.counts_as:
            return known.counts_as
        started = batch.sender.role == "trainer" and any(isinstance(event, RunStarted) for event in batch.events)
        by_hand = started and not self.state.running and batch.run.attempt < self.state.attempt
        return self.state.attempt if by_hand else 0

    def look(self, now: float) -> list[Verdict]:
        """Ask the live detectors. Changes nothing but their own memory; what they say counts once it is journalled."""
        self.last_look = now
        view = self.state.view(now)
        return [v for d in self.detectors.live for v in self._ask(d, partial(d.look, view))]

    def apply_look(self, look: Look, at: float) -> list[Report]:
        """Take in what the live detectors said, unless a new attempt began while it was being written."""
        if look.attempt != self.state.attempt:
            return []
        return list(self.book.observe_live(look.verdicts, attempt=look.attempt, at=at))

    def apply_mark(self, mark: Mark, at: float) -> list[Report]:
        if mark.action == "acknowledge":
            return [change for i in mark.incidents for change in self.book.acknowledge(i, mark.who, at)]
        if mark.action == "mitigate":
            return list(self.book.mitigate(mark.incidents, mark.who))
        if mark.action == "recovered":
            return list(self.book.recovered(mark.incidents, mark.reason, at))
        return list(self.book.give_back(mark.incidents))

    def facts(self) -> RunFacts:
        """The run as recovery sees it."""
        state = self.state
        names = {incident.key: group.name for group in self.groups() for incident in group.open}
        return RunFacts(
            run_id=state.run_id,
            attempt=state.attempt,
            step=state.current or 0,
            running=state.running,
            checkpoints=state.course.fit(state.checkpoints),
            attempts=state.attempts_now(),
            incidents=tuple(open_incident(incident, names[incident.key]) for incident in self.book),
            config=state.config,
            project=state.identity.project,
            cohort=state.identity.cohort,
            verl_version=state.identity.verl_version,
            nodes_at_fault=state.course.nodes_at_fault(max(state.last_push, state.ended_at or 0.0)),
        )

    def groups(self) -> list[Group]:
        """What belongs together of the incidents of the run, those included that are resolved and remembered."""
        incidents = (*self.book, *self.book.history)
        if incidents != self._groups[0]:
            self._groups = (incidents, grouped(incidents))
        return self._groups[1]

    def _begin(self, attempt: int, resume_step: int | None, at: float) -> None:
        first = self.state.attempt == 0
        step = resume_step if resume_step is not None else (self.state.current or 0)
        self.state.begin_attempt(attempt, resume_step, at)
        if not first:
            self._resumed(step)

    def _resumed(self, step: int) -> None:
        for detector in (*self.detectors.step, *self.detectors.live):
            self._ask(detector, partial(detector.resumed, step, self.state.attempt))

    def _attempt_started(self, event: AttemptStarted, attempt: int, at: float) -> None:
        if attempt > self.state.attempt:
            self._begin(attempt, event.resume_step, at)
        elif attempt == self.state.attempt:
            self.state.resume_known(event.resume_step)
        if attempt == self.state.attempt:
            self.state.in_force.started(event)
        self.reports.append(AttemptReport(attempt, event))

    def _run_started(self, event: RunStarted, sender: SenderState, sender_id: str, at: float) -> None:
        """A second trainer in one attempt is a restart by hand, without a supervisor that counts."""
        state = self.state
        if state.configured_by and state.configured_by != sender_id and sender.role == "trainer":
            step = state.current or 0
            state.new_trainer(at)
            self._resumed(step)
        state.started(event, sender_id)

    def _measure(self, batch: Batch, sender: SenderState, stale: bool, at: float) -> None:
        state = self.state
        if batch.rollout is not None:
            state.count_rollouts(sender, batch.rollout)
        for gpu in batch.gpus:
            state.read_gpu(gpu, at)
        if batch.phase is None:
            return
        if not stale and state.running:
            sender.phase, sender.phase_at = batch.phase, at
        for phase in batch.phase.closed:
            state.phase_times.closed(phase.name, phase.seconds)
            if phase.name in PAUSES:
                state.goodput.pause_ended(phase.seconds)
            for detector in self.detectors.live:
                self._ask(detector, partial(detector.phase_closed, phase.name, phase.seconds, batch.phase.step))
        if not stale and state.running and batch.sender.role == "trainer":
            age = max((phase.seconds for phase in batch.phase.open if phase.name == "step"), default=0.0)
            pause = max((phase.seconds for phase in batch.phase.open if phase.name in PAUSES), default=0.0)
            state.goodput.beat(at, age=age, pause=pause)

    def _step(self, sent: Step, batch: Batch, sender: SenderState, at: float) -> None:
        """A part of a step. It is judged when it arrives; a part that comes later adds what it brings anew."""
        state = self.state
        current, sender_id = state.current, batch.sender.id
        part = parts.read(sent, sender, state.identity.trainer)
        if batch.run.attempt < state.attempt:
            parts.count_late(state, part)
            return
        older = current is not None and part.step < current
        if older and sender_id == state.current_sender:
            parts.count_late(state, part)
            return
        ended_before = state.ended_at is not None and sender.first_heard > state.ended_at
        if older or (ended_before and batch.sender.role == "trainer"):
            # Another process logs an older step, or logs after the end: somebody started the trainer again by hand.
            state.new_trainer(at)
            self._resumed(part.step)
            current = None
        if current is None or part.step > current:
            state.current, state.current_sender = part.step, sender_id
            parts.count_new(state, part, at)
            self._new_step(part, at)
            return
        state.goodput.part(at, said=part.said)
        fresh = {name: value for name, value in part.signals.items() if name not in state.step_signals}
        state.signals.update(part.signals)
        state.step_signals.update(fresh)
        state.recent.update_last(part.signals)
        if "step_time" in fresh:
            state.durations.observe(fresh["step_time"])
        if fresh:
            self._judge(StepSample(part.step, state.attempt, at, fresh, state.setup), at, whole=False)

    def _new_step(self, part: Part, at: float) -> None:
        state = self.state
        state.signals.update(part.signals)
        state.step_signals = set(part.signals)
        state.recent.append(part.step, state.attempt, at, part.signals)
        verdicts = self._judge(
            StepSample(part.step, state.attempt, at, part.signals, state.setup), at, whole=part.training
        )
        if part.training:
            onsets = [verdict.onset for verdict in verdicts if verdict.severity >= Severity.CRITICAL]
            outside = state.course.usual.outside(part.step, part.signals) if state.in_force.by_command else ""
            state.course.step(part.step, min([*onsets, part.step] if outside else onsets, default=None))
            self.reports.append(StepDone(state.attempt, part.step, not (onsets or outside), outside))

    def _judge(self, sample: StepSample, at: float, *, whole: bool) -> list[Verdict]:
        verdicts: list[Verdict] = []
        began = perf_counter()
        for detector in self.detectors.step:
            try:
                verdicts.extend(detector.observe(sample))
            except Exception as error:  # noqa: BLE001 - see _ask, which costs more
                self._failed(detector, error)
            ended = perf_counter()
            self.times.add(detector.name, ended - began)
            began = ended
        self.reports.extend(self.book.observe_step(verdicts, attempt=sample.attempt, at=at, whole_step=whole))
        return verdicts

    def _ask(self, detector: Detector, question: Callable[[], Sequence[Verdict] | None]) -> Sequence[Verdict]:
        """A fault in one detector must neither lose a push that is in the journal nor silence the others."""
        began = perf_counter()
        try:
            return question() or ()
        except Exception as error:  # noqa: BLE001 - any fault of a detector's
            self._failed(detector, error)
            return ()
        finally:
            self.times.add(detector.name, perf_counter() - began)

    def _failed(self, detector: Detector, error: Exception) -> None:
        self.detector_faults[detector.name] += 1
        if self.detector_faults[detector.name] == 1:
            # Once: one that fails at every look would fill the log, and the counter goes on.
            log.error("Detector %s failed on run %s", detector.name, self.state.run_id, exc_info=error)

    def _other_event(self, event: object, sender: SenderState, attempt: int, at: float) -> None:
        state = self.state
        if isinstance(event, HooksReported):
            missing = [replace(hook, reason=cut(hook.reason)) for hook in event.missing]
            sender.hooks = replace(event, missing=missing)
        elif isinstance(event, CheckpointSaved):
            state.course.saved(event.step)
            state.checkpoints.append(
                Checkpoint(
                    step=event.step,
                    path=event.path,
                    attempt=attempt,
                    verified=event.verified,
                    saved_at=at,
                    reason=cut(event.reason),
                    bytes=event.bytes,
                    save_seconds=event.save_seconds,
                )
            )
        elif isinstance(event, CheckpointCopied):
            state.care.copied(event, at)
        elif isinstance(event, CheckpointChecked):
            state.care.checked(event, at)
            state.course.checked(event, at)
        elif isinstance(event, CheckpointPruned):
            state.care.removed(event)
            state.course.removed(event, at)
        elif isinstance(event, GradientHistogram):
            state.gradients.written(event, attempt=attempt, at=at)
        elif isinstance(event, SettingApplied):
            if attempt == state.attempt:
                self.reports.append(state.in_force.applied(event))
        elif isinstance(event, WeightsSynced):
            state.weight_sync_seconds = event.seconds
        elif isinstance(event, RunFinished):
            if attempt == state.attempt and state.running:
                state.finished(event, at)
        elif isinstance(event, AttemptExited):
            if attempt > state.attempt:
                self._begin(attempt, None, at)
            if attempt == state.attempt:
                state.exited(event, at)
            self.reports.append(AttemptReport(attempt, event))
        elif isinstance(event, CommandProgress):
            if event.state == "failed" and attempt > state.attempt:  # a start that failed counts as an attempt
                self._begin(attempt, None, at)
                state.exited(AttemptExited(time=event.time, exit_code=None, last_output=[event.detail]), at)
            self.reports.append(replace(event, detail=cut(event.detail)))


def open_incident(incident: Incident, situation: str = "") -> OpenIncident:
    """An incident as recovery sees it. ``situation``: the name of the one that it belongs to, where it matters."""
    return OpenIncident(
        id=incident.id,
        run_id=incident.run_id,
        detector=incident.detector,
        signal=incident.signal,
        severity=incident.severity,
        attempt=incident.attempt,
        onset=incident.onset,
        step=incident.last_step,
        confidence=incident.confidence,
        score=incident.worst_score,
        threshold=incident.threshold,
        summary=incident.summary,
        opened_at=incident.opened_at,
        situation=situation,
    )
