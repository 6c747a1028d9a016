"""What the exporter knows of one run, apart from its incidents. Changed by the core, read by exposition and the API.

Everything in here is made from accepted batches in the order of the journal, with the time of arrival by the exporter's
clock, so it comes out the same after a restart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from exporter.detectors.base import FRESH_SECONDS, GpuView, LiveView
from exporter.detectors.setup import RunSetup
from exporter.protocol import (
    AttemptExited,
    Batch,
    GpuReading,
    HooksReported,
    PhaseReport,
    Role,
    RolloutCounts,
    Run,
    RunFinished,
    RunStarted,
    Scalar,
)
from exporter.recovery.facts import AttemptFacts, Checkpoint
from exporter.service.admission import MAX_INTEGER, MAX_OPEN_PHASES
from exporter.service.course import Course, began_from, described, keep_few_configs
from exporter.service.durations import Durations
from exporter.service.goodput import Goodput
from exporter.service.gradients import Gradients
from exporter.service.in_force import InForce
from exporter.service.known import bounded, gpu_views, setup_of
from exporter.service.phases import PhaseTimes
from exporter.service.recent import RecentSteps
from exporter.service.sequences import Sequences
from exporter.service.tiers import Care

SUPERVISED_SECONDS = 30.0
"""A supervisor that was heard within this time tells how the trainer ended; nobody else's word is taken for it."""

REMEMBERED = 1000
"""Checkpoints and attempts that are remembered for a run."""

MANY_SENDERS = 1000
SILENT_SENDER_SECONDS = 7 * 86_400.0
"""Where a run has many senders, those that were silent for this long are forgotten; their totals stay. What they sent
does not come again, so neither are their sequence numbers kept."""

TIDY_SECONDS = 3600.0
"""Between two looks for them."""


@dataclass(slots=True)
class SenderState:
    """One process that pushes."""

    role: Role
    attempt: int
    highest_seq: int = 0
    last_heard: float = 0.0
    rollout: RolloutCounts = field(default_factory=RolloutCounts)
    phase: PhaseReport | None = None
    phase_at: float = 0.0
    hooks: HooksReported | None = None
    counts_as: int = 0
    """The attempt of a trainer that counts its own from 1 again; 0 for every other sender."""
    logged: Sequences | None = None
    """Training steps that it logged, in whatever order their batches came."""
    forgotten: bool = False
    """It may be one that was forgotten: then what it tells was counted, or nobody knows."""
    said: float = 0.0
    """When it logged the newest of them, by its own clock; 0 where it did not say."""
    first_heard: float = 0.0
    """By the exporter's clock; a trainer that is new after the end of the run is another one."""


@dataclass
class RunState:
    """One run. Times are Unix seconds of the exporter's clock."""

    run_id: str
    first_seen: float
    identity: Run
    attempt: int = 0
    """0 until the first attempt is known to have begun."""
    running: bool = False
    ended_in_step: int = 0
    """The step that was in progress when the attempt ended; 0 while it runs."""
    ended_at: float | None = None
    exit_code: int | None = None
    exited_unexpectedly: bool = False
    """The supervisor said so."""
    finished_only: bool = False
    """verl itself said that it ended, and no supervisor has said how."""
    exit_summary: str = ""
    last_push: float = 0.0
    """Newest push of the trainer itself in this attempt, or the attempt's beginning; 0 before the first."""
    supervisor_heard: float | None = None
    current: int | None = None
    """Newest step logged by this attempt."""
    current_sender: str = ""
    steps_this_attempt: int = 0
    steps_total: int = 0
    late_steps: int = 0
    """Parts of steps that came after a newer step of the same process, or after a newer attempt had begun: a step that
    was not known yet is counted in every total, but judged by nobody and never the current one."""
    signals: dict[str, float] = field(default_factory=dict)
    """Newest value of each signal in this attempt."""
    step_signals: set[str] = field(default_factory=set)
    """Signals of the current step that were judged already."""
    recent: RecentSteps = field(default_factory=RecentSteps)
    durations: Durations = field(default_factory=Durations)
    phase_times: PhaseTimes = field(default_factory=PhaseTimes)
    goodput: Goodput = field(default_factory=Goodput)
    rollouts_succeeded: int = 0
    rollouts_failed: int = 0
    rollouts_cancelled: int = 0
    """Requests over all senders there were."""
    senders: dict[str, SenderState] = field(default_factory=dict)
    gpus: dict[tuple[str, int], tuple[GpuReading, float]] = field(default_factory=dict)
    checkpoints: deque[Checkpoint] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    care: Care = field(default_factory=Care)
    """Copies and checks of the checkpoints."""
    gradients: Gradients = field(default_factory=Gradients)
    weight_sync_seconds: float | None = None
    attempts: deque[AttemptFacts] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    config: Mapping[str, Scalar] = field(default_factory=dict)
    configured_by: str = ""
    in_force: InForce = field(default_factory=InForce)
    course: Course = field(default_factory=Course)
    setup_override: RunSetup | None = None
    """What is known of configuration and machine where the run itself does not tell: it comes from the options of a
    replay, and nothing else counts then."""
    forgotten_attempt: int = 0
    """The newest attempt that had a sender which was forgotten. An unknown sender of it, or of an older one, may be one
    of those, and what it tells is not counted again."""
    tidied: float = 0.0
    """When silent senders were last looked for."""

    def __post_init__(self) -> None:
        # Derived, and made anew when what they are made of has changed. They are no fields, so no snapshot has them.
        self._setup: RunSetup | None = None
        self._views: tuple[GpuView, ...] | None = None

    @property
    def setup(self) -> RunSetup:
        """What is known of the configuration and of the machine."""
        if self.setup_override is not None:
            return self.setup_override
        if self._setup is None:
            self._setup = setup_of(self.config, self.gpus)
        return self._setup

    @property
    def _gpu_views(self) -> tuple[GpuView, ...]:
        if self._views is None:
            self._views = gpu_views(self.gpus)
        return self._views

    def read_gpu(self, reading: GpuReading, at: float) -> None:
        """Take in a reading of a GPU."""
        key = (reading.node, reading.index)
        before = self.gpus.get(key)
        if before is None or before[0].memory_total_bytes != reading.memory_total_bytes:
            self._setup = None
        self.gpus[key] = (reading, at)
        self._views = None
        self.course.read(reading, self.attempt, at)

    def _no_gpus(self) -> None:
        self.gpus = {}
        self._views = None
        self._setup = None

    def hear(self, batch: Batch, at: float) -> SenderState:
        """Note who is speaking, and what the run is called."""
        sender = self.senders.get(batch.sender.id)
        if sender is None:
            if len(self.senders) >= MANY_SENDERS and not 0.0 <= at - self.tidied < TIDY_SECONDS:
                self._forget_silent_senders(at)
            sender = self.senders[batch.sender.id] = SenderState(batch.sender.role, batch.run.attempt, first_heard=at)
            sender.forgotten = batch.run.attempt <= self.forgotten_attempt and batch.run.attempt < self.attempt
        sender.last_heard = at
        sender.attempt = max(sender.attempt, batch.run.attempt)
        sender.highest_seq = max(sender.highest_seq, batch.seq)
        if batch.sender.role == "supervisor":
            self.supervisor_heard = at
        elif batch.sender.role == "trainer" and batch.run.attempt >= self.attempt:
            # A GPU sampler, or what is left of an attempt that is over, may outlive a trainer that hangs.
            self.last_push = at
        known, said = self.identity, batch.run
        merged = Run(
            run_id=self.run_id,
            attempt=self.attempt,
            project=said.project or known.project,
            experiment=said.experiment or known.experiment,
            trainer=said.trainer or known.trainer,
            verl_version=said.verl_version or known.verl_version,
            cohort=said.cohort or known.cohort,
        )
        if merged != known:
            self.identity = merged
        return sender

    def _forget_silent_senders(self, at: float) -> None:
        gone = [name for name, one in self.senders.items() if at - one.last_heard >= SILENT_SENDER_SECONDS]
        for name in gone:
            self.forgotten_attempt = max(self.forgotten_attempt, self.senders.pop(name).attempt)
        self.tidied = at

    def begin_attempt(self, number: int, resume_step: int | None, at: float) -> None:
        """A new attempt."""
        if self.attempts:
            self.attempts[-1] = self.attempts_now()[-1]
            keep_few_configs(self.attempts)
        self.course.began(one for one in self.recent if one.attempt == self.attempt)
        self.attempt = number
        self.attempts.append(AttemptFacts(number, resume_step, started_at=at))
        self.in_force = InForce()
        self.new_trainer(at)

    def new_trainer(self, at: float) -> None:
        """Another process trains now: what described the old one is gone, and silence counts from here."""
        self.goodput.began(at)
        self.phase_times.new_trainer()
        self.last_push = at
        self.current = None
        self.current_sender = ""
        self.steps_this_attempt = 0
        self.configured_by = ""
        self.signals = {}
        self.step_signals = set()
        self._no_gpus()
        self._forget_senders()
        self.set_running()

    def set_running(self) -> None:
        self.running = True
        self.ended_in_step = 0
        self.ended_at = None
        self.exit_code = None
        self.exited_unexpectedly = False
        self.finished_only = False
        self.exit_summary = ""

    def started(self, event: RunStarted, sender_id: str) -> None:
        """The trainer opened its tracking."""
        self.config = bounded(event.config)
        self._setup = None
        self.configured_by = sender_id
        self.set_running()

    def resume_known(self, resume_step: int | None) -> None:
        """The supervisor says from which step the current attempt was resumed."""
        if self.attempts and resume_step is not None:
            self.attempts[-1] = replace(self.attempts[-1], resume_step=resume_step)

    def attempts_now(self) -> tuple[AttemptFacts, ...]:
        """All attempts, the newest with what is known of it now."""
        if not self.attempts:
            return ()
        told = bool(self.configured_by)
        version = self.identity.verl_version
        newest = described(self.attempts[-1], self.course, self.config, version, self.in_force, told=told)
        return (*tuple(self.attempts)[:-1], newest)

    def finished(self, event: RunFinished, at: float) -> None:
        """verl closed its tracking. Where a supervisor watches, only it knows whether that was expected."""
        self.goodput.ended(at, said=event.time, clean=not event.exit_code)
        self._end(event.exit_code, at, False, f"verl ended with exit code {event.exit_code}" if event.exit_code else "")
        self.finished_only = True

    def exited(self, event: AttemptExited, at: float) -> None:
        """The supervisor saw the trainer end."""
        how = f"by signal {event.signal}" if event.signal is not None else f"with exit code {event.exit_code}"
        summary = f"The trainer ended {how} after {event.seconds:.0f} s"
        if event.last_output and not event.expected:
            summary += f"; its last line was: {event.last_output[-1].strip()[:300]}"
        code = event.exit_code if event.signal is None else -event.signal
        self.goodput.ended(at, said=event.time, clean=event.expected and code == 0)
        self._end(code, at, not event.expected, summary)

    def _end(self, code: int | None, at: float, unexpected: bool, summary: str) -> None:
        self.ended_in_step = self.step_in_progress()
        self.running = False
        self.ended_at = at
        self.exit_code = code
        self.exited_unexpectedly = unexpected
        self.finished_only = False
        self.exit_summary = summary
        self._no_gpus()
        for sender in self.senders.values():
            sender.phase = None

    def _forget_senders(self) -> None:
        """Drop the phases and hooks of processes that are gone; their request counts stay, for those are totals."""
        for sender in self.senders.values():
            if sender.attempt < self.attempt and sender.role != "supervisor":
                sender.phase = None
                sender.hooks = None

    def count_rollouts(self, sender: SenderState, counts: RolloutCounts) -> None:
        """Take over a sender's totals; a total never shrinks, so an old report changes nothing."""
        was = sender.rollout
        if counts.succeeded + counts.failed + counts.cancelled < was.succeeded + was.failed + was.cancelled:
            return
        now = sender.rollout = RolloutCounts(
            succeeded=max(was.succeeded, counts.succeeded),
            failed=max(was.failed, counts.failed),
            cancelled=max(was.cancelled, counts.cancelled),
            in_flight=counts.in_flight,
        )
        # Many senders may each say the most that is accepted: a total beyond 64 bits could not be written down.
        self.rollouts_succeeded = min(MAX_INTEGER, self.rollouts_succeeded + now.succeeded - was.succeeded)
        self.rollouts_failed = min(MAX_INTEGER, self.rollouts_failed + now.failed - was.failed)
        self.rollouts_cancelled = min(MAX_INTEGER, self.rollouts_cancelled + now.cancelled - was.cancelled)

    def rollouts(self) -> RolloutCounts:
        """Requests over all senders and attempts; in flight only those of the attempt that runs."""
        of_this = (s.rollout.in_flight for s in self.senders.values() if s.attempt == self.attempt)
        return RolloutCounts(
            succeeded=self.rollouts_succeeded,
            failed=self.rollouts_failed,
            cancelled=self.rollouts_cancelled,
            in_flight=min(MAX_INTEGER, sum(of_this)) if self.running else 0,
        )

    def open_phases(self, now: float, most: float = math.inf) -> dict[str, float]:
        """Phases that are open, with their age in seconds at ``now``; of several senders the oldest counts.

        ``most``: seconds by which an age grows after the sender has told it last.
        """
        ages: dict[str, float] = {}
        for sender in self.senders.values():
            if sender.phase is None or sender.attempt != self.attempt:
                continue
            for phase in sender.phase.open:
                age = phase.seconds + min(most, max(0.0, now - sender.phase_at))
                ages[phase.name] = max(age, ages.get(phase.name, 0.0))
        return dict(sorted(ages.items(), key=lambda item: -item[1])[:MAX_OPEN_PHASES])

    def step_in_progress(self) -> int:
        """The step that the trainer works on, as far as it said; else the newest that it logged, or began from."""
        reported = [s.phase.step for s in self.senders.values() if s.phase is not None and s.attempt == self.attempt]
        known = self.current or began_from(self.attempts, self.last_verified())
        return max([known, self.ended_in_step, *reported])

    def hooks(self) -> tuple[list[str], dict[str, str]]:
        """Hooks in place and hooks missing (with the reason), over the processes of this attempt."""
        missing: dict[str, str] = {}
        seen: set[str] = set()
        for sender in self.senders.values():
            if sender.hooks is not None and sender.attempt == self.attempt:
                seen.update(sender.hooks.installed)
                missing.update({hook.name: hook.reason for hook in sender.hooks.missing})
        return sorted(seen - missing.keys()), missing

    def ended_badly(self, now: float) -> bool:
        """Whether the trainer ended unexpectedly: by the supervisor's word; by verl's own where none watches any more.

        Asked anew at each look: a supervisor that dies right after verl has ended leaves nobody else to say it.
        """
        supervised = self.supervisor_heard is not None and now - self.supervisor_heard < SUPERVISED_SECONDS
        return self.exited_unexpectedly or (self.finished_only and bool(self.exit_code) and not supervised)

    def last_saved(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def last_verified(self) -> Checkpoint | None:
        return next((c for c in reversed(self.checkpoints) if c.verified), None)

    def view(self, now: float) -> LiveView:
        """The run as live detectors see it."""
        return LiveView(
            now=now,
            step=self.step_in_progress(),
            attempt=self.attempt,
            steps_this_attempt=self.steps_this_attempt,
            running=self.running,
            last_push=self.last_push or self.first_seen,
            open_phases=self.open_phases(now, most=FRESH_SECONDS),
            rollouts_succeeded=self.rollouts_succeeded,
            rollouts_failed=self.rollouts_failed,
            exit_code=self.exit_code,
            exited_unexpectedly=self.ended_badly(now),
            exit_summary=self.exit_summary,
            gpus=self._gpu_views,
            setup=self.setup,
            logged=self.current or 0,
        )
