"""What a policy means for one run, and what would be done about it now and why, stage by stage. Pure; called by the
engine for ``GET /api/v1/recovery/policy`` and by ``verl-sentinel policy explain``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from exporter.detectors.base import Severity
from exporter.protocol import Changes, Rung
from exporter.recovery.changes import Difference
from exporter.recovery.facts import OpenIncident, RunFacts
from exporter.recovery.history import budget_left, cooldown_left, spent_times
from exporter.recovery.plan import Plan, make_plan
from exporter.recovery.policies import Named, Policies
from exporter.recovery.policy import Action, Mode, RecoveryPolicy
from exporter.recovery.record import ConsideredRung, Recovery, StageResult
from exporter.recovery.rung_settings import Approvers


class RungExplained(msgspec.Struct, frozen=True, kw_only=True):
    """One rung, as the policy has it."""

    rung: Rung
    mode: Mode
    approvals: int
    """People who have to approve; 0 where nobody has to."""
    approvers: tuple[str, ...]
    changes: str
    """What it would change, a sentence."""


class PolicyExplained(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of one run."""

    run_id: str
    project: str
    cohort: str
    rule: str
    """Empty for the policy as a whole."""
    rules_passed_over: tuple[str, ...]
    """Rules before it that do not match."""
    ladder: tuple[RungExplained, ...]
    policy: RecoveryPolicy
    """As the rule leaves it."""


class TriggerExplained(msgspec.Struct, frozen=True, kw_only=True):
    """What one finding may trigger."""

    detector: str
    signal: str
    severity: str
    triggers: bool
    action: Action | None
    agreement: int
    """Distinct signals that have to agree, itself included; one that is certain needs no other."""
    margin_steps: int
    ladder: tuple[Rung, ...]


class FindingExplained(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done about one open finding now."""

    incident: str
    detector: str
    signal: str
    severity: str
    answer: str
    """``planned``, or why not: ``agreement``, ``cooldown``, ``budget``, ``no_trigger`` …"""
    reason: str
    rung: Rung | None = None
    mode: Mode | None = None
    action: Action | None = None
    target_step: int | None = None
    changes: tuple[Difference, ...] = ()
    command: Changes | None = None
    considered: tuple[ConsideredRung, ...] = ()
    stages: tuple[StageResult, ...] = ()


class RunExplained(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a run that the exporter knows, and what it comes to at this moment."""

    policy: PolicyExplained
    active: str
    """Id of the recovery that is under way; empty where none is."""
    budget_left: int
    cooldown_seconds_left: float
    findings: tuple[FindingExplained, ...]


def explain_policy(policies: Policies, run: Named) -> PolicyExplained:
    """Which rule applies to a run, and what it says."""
    whole, policy = policies.whole, policies.of(run)
    applies = whole.rule_for(run.run_id, run.project, run.cohort)
    passed = range(len(whole.rules) if applies is None else applies)
    return PolicyExplained(
        run_id=run.run_id,
        project=run.project,
        cohort=run.cohort,
        rule=whole.rule_name(applies),
        rules_passed_over=tuple(whole.rule_name(index) for index in passed),
        ladder=tuple(_rung(rung, policy) for rung in policy.ladder),
        policy=policy,
    )


def _rung(rung: Rung, policy: RecoveryPolicy) -> RungExplained:
    mode = policy.mode_of(rung)
    who = policy.approval.get(rung, Approvers())
    return RungExplained(
        rung=rung,
        mode=mode,
        approvals=who.approvals if mode == "approve" else 0,
        approvers=who.names if mode == "approve" else (),
        changes=_changes(rung, policy),
    )


def _changes(rung: Rung, policy: RecoveryPolicy) -> str:
    if rung == "checkpoint":
        return "back to the newest verified checkpoint from before the onset"
    if rung == "config":
        return (
            f"that, and another configuration ({', then '.join(_source(it, policy) for it in policy.config.sources)})"
        )
    if rung == "version":
        pinned = policy.version.version
        return f"that, and verl {pinned}" if pinned else "that, and the last verl version that ran healthy in this run"
    return f"that, without the nodes or GPUs at fault ({', '.join(policy.infra.executors)} only)"


def _source(source: str, policy: RecoveryPolicy) -> str:
    if source == "git" and policy.config.git is not None:
        git = policy.config.git
        return f"{git.file} on {git.branch} of {git.repository}"
    if source == "adjust":
        return f"adjusted: {', '.join(policy.config.adjust)}"
    return "the last one that ran healthy"


def explain_trigger(policy: RecoveryPolicy, detector: str, signal: str, severity: Severity) -> TriggerExplained:
    """What a finding of this kind may trigger."""
    finding = OpenIncident(
        id="", run_id="", detector=detector, signal=signal, severity=severity, attempt=1, onset=0, step=0,
        confidence=0.0, score=0.0, threshold=0.0, summary="",
    )  # fmt: skip
    action = policy.action_for(finding)
    return TriggerExplained(
        detector=detector,
        signal=signal,
        severity=severity.label,
        triggers=action is not None,
        action=action,
        agreement=policy.agreement_for(finding),
        margin_steps=policy.margin_for(finding),
        ladder=policy.ladder_for(finding),
    )


def explain_run(policies: Policies, facts: RunFacts, history: Sequence[Recovery], now: float) -> RunExplained:
    """What would be done now about every open finding of a run; nothing is done. ``history``: newest first."""
    policy = policies.of(facts)
    cooling = cooldown_left(history, policy, now)
    return RunExplained(
        policy=explain_policy(policies, facts),
        active=next((one.id for one in history if one.active), ""),
        budget_left=budget_left(spent_times(history, policy), policy, now),
        cooldown_seconds_left=0.0 if cooling is None else cooling[1],
        findings=tuple(_finding(incident, facts, history, policy, now) for incident in facts.incidents),
    )


def _as_decided(named: FindingExplained, recovery: Recovery) -> FindingExplained:
    """A finding that a recovery has taken up: what was decided then is what there is to explain."""
    return msgspec.structs.replace(
        named,
        rung=recovery.rung,
        mode=recovery.mode,
        action=recovery.action,
        target_step=recovery.planned_target_step,
        changes=recovery.changes,
        command=recovery.protocol_changes,
        considered=recovery.considered,
        stages=recovery.stages,
    )


def _finding(
    incident: OpenIncident, facts: RunFacts, history: Sequence[Recovery], policy: RecoveryPolicy, now: float
) -> FindingExplained:
    answer = make_plan(incident, facts, history, policy, now)
    named = FindingExplained(
        incident=incident.id,
        detector=incident.detector,
        signal=incident.signal,
        severity=incident.severity.label,
        answer="planned" if isinstance(answer, Plan) else answer.kind,
        reason=answer.reason,
        stages=answer.stages,
    )
    if not isinstance(answer, Plan):
        of = next((one for one in history if one.id == answer.recovery_id), None)
        return named if of is None or answer.stages else _as_decided(named, of)
    return msgspec.structs.replace(
        named,
        answer="person" if answer.ends else "planned",
        rung=answer.rung,
        mode=answer.mode,
        action=answer.action,
        target_step=None if answer.target is None else answer.target.step,
        changes=answer.changes,
        command=answer.protocol_changes,
        considered=answer.considered,
    )
