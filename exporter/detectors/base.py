"""What a detector is: small, streaming, without I/O and without a clock.

Two kinds. A *step detector* sees every step of one run as canonical signals (see :mod:`exporter.signals`). A *live
detector* sees the run as it is between steps (open phases, rollout counters, last push) and is asked once a second,
because a trainer that hangs logs nothing. Time, step and attempt come in with what they see, so the same code runs
live, on replay and after a restart, and a test of an hour takes none.

State goes in and out as plain data (``state_dict``), and both kinds warm up again after a resume: a resume shifts
metrics, and a detector that keeps its old baseline makes the rollback trigger the next rollback.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from exporter.detectors.setup import UNKNOWN, RunSetup


class Severity(enum.IntEnum):
    """``INFO`` is noted, ``WARNING`` is a ticket, ``CRITICAL`` is a page and may trigger a recovery."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        """The word used in metrics, logs and JSON: ``info``, ``warning`` or ``critical``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a limit will be reached if nothing changes; the interval is (early, late), in the same unit."""

    limit: float
    steps: float | None = None
    seconds: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one detector says of one step, or of the moment."""

    detector: str
    signal: str
    severity: Severity
    step: int
    onset: int
    """First step that belongs to the failure, estimated; the rollback target lies before it."""
    score: float
    threshold: float
    """``score`` beyond ``threshold`` is a finding; both in the detector's own unit, which its docstring names."""
    confidence: float
    """0 to 1; 1 is certainty (a loss that is NaN)."""
    summary: str
    """One sentence for a person, with the numbers."""
    meaning: str = ""
    advice: tuple[str, ...] = ()
    """What to try, in order, with configuration keys by verl's own names."""
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class StepSample:
    """One finished step of one run, as canonical signals (NaN means the trainer logged NaN, a missing key nothing)."""

    step: int
    attempt: int
    time: float
    """Unix seconds, by the exporter's clock, when the step arrived."""
    signals: Mapping[str, float]
    setup: RunSetup = UNKNOWN
    """What is known of the run's configuration and of its machine, as of this step."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as it was last read. None: the device does not tell."""

    node: str
    index: int
    read_at: float
    """When its reading arrived: Unix seconds of the exporter's clock."""
    utilization: float | None = None
    """0 to 1."""
    memory_used: float | None = None
    memory_total: float | None = None
    """Bytes."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    lost: bool = False


FRESH_SECONDS = 5.0
"""Senders not heard for this long, five heartbeats: the open phases are hearsay. An exporter that was paused, or whose
clock was set, would otherwise take that for the trainer's; the next heartbeat tells the phase's true age."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """One run between steps, at the moment ``now`` (Unix seconds of the exporter's clock)."""

    now: float
    step: int
    """The step in progress, as far as the trainer said; else the newest that was logged."""
    attempt: int
    steps_this_attempt: int
    """Steps logged since this attempt started; 0 while it is still starting."""
    running: bool
    """An attempt has started and neither finished nor exited."""
    last_push: float
    """When any sender of the trainer (not the supervisor) was last heard."""
    open_phases: Mapping[str, float] = field(default_factory=dict)
    """Phase name to its age in seconds at ``now``, growing unheard for at most :data:`FRESH_SECONDS`."""
    rollouts_succeeded: int = 0
    rollouts_failed: int = 0
    """Requests over all senders and attempts; monotonic."""
    exit_code: int | None = None
    exited_unexpectedly: bool = False
    exit_summary: str = ""
    gpus: tuple[GpuView, ...] = ()
    """Readings of all GPUs of the run, in the order of node and index."""
    setup: RunSetup = UNKNOWN
    logged: int = 0
    """The newest step that this attempt has logged; 0 while there is none."""


@runtime_checkable
class Detector(Protocol):
    """Common part of both kinds."""

    name: str
    """Snake case, unique; it is a label value in ``/metrics`` and in alerts."""

    def resumed(self, step: int, attempt: int) -> None:
        """A new attempt has started from checkpoint ``step``: warm up again."""

    def state_dict(self) -> dict[str, Any]:
        """State as JSON-like data (no arrays, no objects)."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""


@runtime_checkable
class StepDetector(Detector, Protocol):
    """Judges finished steps."""

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; every verdict that holds is said again at every step while it holds."""


class Expectation(NamedTuple):
    """What a detector expects of the next value of one signal, in the signal's unit."""

    expected: float
    lower: float
    upper: float
    """A value outside is unusual; whether it is a finding is for the detector to say."""


@runtime_checkable
class Expecting(Protocol):
    """A step detector that can say what it expects, so that a chart can show the band beside the line."""

    def expected(self) -> Mapping[str, Expectation]:
        """By signal; none for a signal of which not enough was seen."""


@runtime_checkable
class LiveDetector(Detector, Protocol):
    """Judges the step that has not ended."""

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """A phase ended after ``seconds``: what is normal for it is learned here."""

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the moment; every verdict that holds is said again at every look while it holds."""
