"""What the read API shows of runs and incidents. Called by the routes."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from exporter.agreement import Situation, situation
from exporter.incidents import Incident
from exporter.protocol import Changes, GpuReading, RolloutCounts, Scalar, SettingApplied
from exporter.recovery.facts import AttemptFacts, Checkpoint
from exporter.recovery.record import AuditEntry, Outcome, Recovery
from exporter.service.core import Core
from exporter.service.gradients import Histogram
from exporter.service.snapshot import RunSummary
from exporter.service.tiers import CheckState, TierState
from exporter.service.watch import WatchedRun


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list. Times are Unix seconds of the exporter's clock."""

    run_id: str
    project: str
    experiment: str
    trainer: str
    verl_version: str
    attempt: int
    running: bool
    step: int | None
    """Newest step that this attempt has logged."""
    steps_this_attempt: int
    steps_total: int
    first_seen: float
    last_push: float
    supervisor_heard: float | None
    ended_at: float | None
    exit_code: int | None
    exit_summary: str
    open_incidents: int
    open_phases: dict[str, float]
    """Age in seconds of every phase that is open."""
    signals: dict[str, float]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    attempt: int
    at: float
    signals: dict[str, float]


class IncidentView(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, its severity as a word."""

    severity: str
    id: str
    run_id: str
    detector: str
    signal: str
    kind: str
    state: str
    attempt: int
    onset: int
    first_step: int
    last_step: int
    opened_at: float
    paged_at: float | None
    paged_step: int | None
    updated_at: float
    count: int
    worst_score: float
    score: float
    threshold: float
    confidence: float
    summary: str
    meaning: str
    advice: tuple[str, ...]
    acknowledged_by: str
    acknowledged_at: float | None
    recovery_id: str
    resolved_at: float | None
    resolution: str


class FindingView(msgspec.Struct, frozen=True, kw_only=True):
    """An incident of a situation, in few words."""

    incident: str
    """Its id."""
    detector: str
    signal: str
    severity: str
    state: str
    onset: int
    first_step: int


class SituationView(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents that belong together. Times are Unix seconds of the exporter's clock."""

    id: str
    """Id of the incident that was said first."""
    run_id: str
    attempt: int
    name: str
    """Detector and signal of the finding that names it: the labels of the situation's alert."""
    state: str
    """As of an incident; acknowledged when every open finding is."""
    severity: str
    onset: int
    headline: str
    cause: str
    advice: tuple[str, ...]
    witnesses: int
    """Distinct signals that agree."""
    confidence: float
    findings: list[FindingView]
    """What came first is first."""
    opened_at: float
    resolved_at: float | None


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One run with all that is known of it."""

    run: RunView
    attempts: list[AttemptFacts]
    rollouts: RolloutCounts
    checkpoints: list[Checkpoint]
    tiers: dict[str, TierState]
    """Copies of checkpoints by tier; ``primary`` is where the trainer saved them, and what was removed there."""
    checks: dict[str, CheckState]
    """Verifications by depth."""
    changes: Changes | None
    """What is in force in the newest attempt beyond the run's command line; null where no supervisor said."""
    executor: str
    """Who holds its processes: ``local``, ``ray``, ``slurm``; empty where no supervisor said."""
    settings_applied: list[SettingApplied]
    """Changed settings of the newest attempt that were read back where they act."""
    gradient_histograms: list[Histogram]
    """The newest that were written on the trainer's node, oldest first."""
    hooks_in_place: list[str]
    hooks_missing: dict[str, str]
    """Name to reason."""
    gpus: list[GpuReading]
    incidents: list[IncidentView]
    """Open ones, then resolved ones, newest first."""
    situations: list[SituationView]
    """The newest first."""
    steps: list[StepView]
    """The newest steps, oldest first."""
    config: dict[str, Scalar]
    goodput: dict[str, float]
    """Where the time went, in seconds: productive, replay, restart, stall, other."""


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """All runs."""

    runs: list[RunView]


class IncidentList(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents of every run, the newest first."""

    incidents: list[IncidentView]
    situations: list[SituationView]
    """What belongs together of them, the newest first."""


class RecoveryList(msgspec.Struct, frozen=True, kw_only=True):
    """Recoveries, the newest first."""

    recoveries: list[Recovery]


class AuditLog(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the audit log, the newest first."""

    audit: list[AuditEntry]


class AlertTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one alert of a webhook."""

    fingerprint: str
    outcome: Outcome
    reason: str
    recovery_id: str | None


class AlertsTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the alerts of a webhook, in its order."""

    alerts: list[AlertTaken]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The process answers."""

    status: str
    version: str


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether pushes are taken and kept, and why not."""

    ready: bool
    reasons: list[str]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is not known any more."""

    forgotten: str


def run_view(run: WatchedRun, now: float) -> RunView:
    state, identity = run.state, run.state.identity
    return RunView(
        run_id=state.run_id,
        project=identity.project,
        experiment=identity.experiment,
        trainer=identity.trainer,
        verl_version=identity.verl_version,
        attempt=state.attempt,
        running=state.running,
        step=state.current,
        steps_this_attempt=state.steps_this_attempt,
        steps_total=state.steps_total,
        first_seen=state.first_seen,
        last_push=state.last_push,
        supervisor_heard=state.supervisor_heard,
        ended_at=state.ended_at,
        exit_code=state.exit_code,
        exit_summary=state.exit_summary,
        open_incidents=sum(1 for _ in run.book),
        open_phases=state.open_phases(now),
        signals=dict(state.signals),
    )


def dormant_view(it: RunSummary) -> RunView:
    """A run that is on disk only: it has ended, or nobody has heard of it for a week."""
    return RunView(
        run_id=it.run_id,
        project=it.project,
        experiment=it.experiment,
        trainer=it.trainer,
        verl_version=it.verl_version,
        attempt=it.attempt,
        running=False,
        step=it.step,
        steps_this_attempt=it.steps_this_attempt,
        steps_total=it.steps_total,
        first_seen=it.first_seen,
        last_push=it.last_push,
        supervisor_heard=None,
        ended_at=it.ended_at,
        exit_code=it.exit_code,
        exit_summary=it.exit_summary,
        open_incidents=it.open_incidents,
        open_phases={},
        signals={},
    )


def run_detail(run: WatchedRun, now: float) -> RunDetail:
    state = run.state
    in_place, missing = state.hooks()
    return RunDetail(
        run=run_view(run, now),
        # Without their configurations, which are long; the newest has its own place.
        attempts=[dataclasses.replace(one, config={}) for one in state.attempts_now()],
        rollouts=state.rollouts(),
        checkpoints=list(state.checkpoints),
        tiers=state.care.tiers,
        checks=state.care.checks,
        changes=state.in_force.changes,
        executor=state.in_force.executor,
        settings_applied=state.in_force.settings,
        gradient_histograms=state.gradients.newest,
        hooks_in_place=in_place,
        hooks_missing=missing,
        gpus=[gpu for gpu, _ in state.gpus.values()],
        incidents=incidents_of(run),
        situations=situations_of(run),
        steps=[StepView(step=s.step, attempt=s.attempt, at=s.at, signals=s.signals) for s in state.recent],
        config=dict(state.config),
        goodput=state.goodput.spent(),
    )


def incidents_of(run: WatchedRun) -> list[IncidentView]:
    return [incident_view(incident) for incident in (*run.book, *reversed(run.book.history))]


def all_incidents(core: Core) -> list[IncidentView]:
    """Of every run, the newest first."""
    found = [view for run in core.runs.values() for view in incidents_of(run)]
    return sorted(found, key=lambda view: view.opened_at, reverse=True)


def situations_of(run: WatchedRun) -> list[SituationView]:
    return [situation_view(situation(group)) for group in reversed(run.groups())]


def all_situations(core: Core) -> list[SituationView]:
    """Of every run, the newest first."""
    found = [view for run in core.runs.values() for view in situations_of(run)]
    return sorted(found, key=lambda view: view.opened_at, reverse=True)


def situation_view(it: Situation) -> SituationView:
    fields: dict[str, Any] = {name: getattr(it, name) for name in SituationView.__struct_fields__}
    findings = [
        FindingView(
            incident=found.id,
            detector=found.detector,
            signal=found.signal,
            severity=found.severity.label,
            state=found.state,
            onset=found.onset,
            first_step=found.first_step,
        )
        for found in it.findings
    ]
    return SituationView(**{**fields, "severity": it.severity.label, "findings": findings})


def incident_view(incident: Incident) -> IncidentView:
    fields: dict[str, Any] = {name: getattr(incident, name) for name in IncidentView.__struct_fields__}
    return IncidentView(**{**fields, "severity": incident.severity.label})
