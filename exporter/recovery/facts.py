"""What recovery knows when it decides: plain, frozen data, made by the service from its own state.

The service builds a :class:`RunFacts` for a run whenever it calls the engine; nothing in here is looked up later, so a
decision can be repeated from its audit record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exporter.detectors.base import Severity
from exporter.protocol import Changes, Excluded, Scalar

LIVE_DETECTORS = frozenset({"stalled_phase", "trainer_exited", "silent_run", "rollout_failures"})
"""Detectors that judge the step in progress. Their findings are certain when critical, and do not spoil the weights."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One ``CheckpointSaved`` as the exporter got it."""

    step: int
    path: str
    attempt: int
    """The attempt that saved it."""
    verified: bool
    """The manifest was written after the save. Only these are ever targets."""
    saved_at: float = 0.0
    """Unix seconds of the exporter's clock at arrival; of two reports of one step the later counts."""
    reason: str = ""
    """Why it is not verified."""
    bytes: int = 0
    """On disk, and how long saving took; 0 where the trainer does not tell."""
    save_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One checkpoint that was considered as the target, and the verdict on it."""

    step: int
    path: str
    attempt: int
    eligible: bool
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One start of the run, as far as the exporter was told."""

    number: int
    resume_step: int | None = None
    """Step it was resumed from; 0 for a start from scratch; None where nobody said."""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    """Its resolved configuration, keys joined with dots; empty where it is not known, or not kept any more."""
    verl_version: str = ""
    healthy_steps: int = 0
    """Steps that it logged before the onset of the first critical finding on it."""
    changes: Changes | None = None
    """What was in force in it beyond the run's own command line; None where its supervisor did not say."""
    executor: str = ""
    """Who held its processes: ``local``, ``ray``, ``slurm``; empty where its supervisor did not say."""
    started_at: float = 0.0
    """Unix seconds of the exporter's clock; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class StableConfig:
    """A configuration that somebody keeps on a branch of a git repository."""

    settings: Mapping[str, Scalar] = field(default_factory=dict)
    origin: str = ""
    """Repository, branch, file and commit, for a person."""
    error: str = ""
    """Why there is none, a sentence; empty where there is one."""


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """View of an incident that is open (not resolved)."""

    id: str
    run_id: str
    detector: str
    signal: str
    severity: Severity
    attempt: int
    """Attempt of its newest verdict. An incident of an attempt that is over triggers nothing."""
    onset: int
    """First step that belongs to the failure; for live detectors the step in progress."""
    step: int
    """Step of its newest verdict."""
    confidence: float
    score: float
    threshold: float
    summary: str
    opened_at: float = 0.0
    situation: str = ""
    """Name of the situation that it belongs to: detector and signal of the finding that was said first in it."""

    @property
    def pair(self) -> tuple[str, str]:
        return (self.detector, self.signal)

    @property
    def key(self) -> str:
        """Identity for "one recovery answers one incident": the incident in one attempt.

        With the time it was opened, for its number starts at 1 again where the journal has forgotten the run.
        """
        return f"{self.id}@{self.attempt}@{self.opened_at}"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run at the moment of a decision."""

    run_id: str
    attempt: int
    step: int
    """Newest step logged by the current attempt (0 before its first)."""
    running: bool
    checkpoints: tuple[Checkpoint, ...] = ()
    """All that were reported, in any order, repeated reports of one step included."""
    attempts: tuple[AttemptFacts, ...] = ()
    incidents: tuple[OpenIncident, ...] = ()
    """Every open incident of the run, of any severity."""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    """Resolved configuration of the attempt, keys joined with dots; empty where its trainer did not tell."""
    project: str = ""
    cohort: str = ""
    verl_version: str = ""
    nodes_at_fault: tuple[Excluded, ...] = ()
    """Machines or GPUs whose readings say that they are broken, the one that was found last first."""
    stable_config: StableConfig | None = None
    """None where the policy of the run names no git repository."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a webhook, or the exporter's own in direct mode. Labels come from outside and are not believed."""

    fingerprint: str
    starts_at: str
    """As Alertmanager spells it; with the fingerprint it is the alert's identity."""
    status: Literal["firing", "resolved"]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return self.labels.get("run", "")

    @property
    def detector(self) -> str:
        return self.labels.get("detector", "")

    @property
    def signal(self) -> str:
        return self.labels.get("signal", "")

    @property
    def action(self) -> str:
        return self.labels.get("action", "")
