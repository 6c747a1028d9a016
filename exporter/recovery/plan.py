"""Turns one open incident into a plan or a refusal. Pure: the same facts, history and policy give the same answer.

Called by the engine for every alert, and again for those that wait. Nothing here is looked up, stored or sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from msgspec.structs import replace

from exporter.coupling import spoils_weights, witnesses
from exporter.recovery.changes import Difference, differences, worth_keeping
from exporter.recovery.facts import LIVE_DETECTORS, Candidate, Checkpoint, OpenIncident, RunFacts
from exporter.recovery.policy import DAY_SECONDS, Action, RecoveryPolicy
from exporter.recovery.record import Recovery, spell_numbers

RefusalKind = Literal["active", "stale", "no_trigger", "answered", "aborted", "agreement", "cooldown", "budget"]

WAITING: frozenset[RefusalKind] = frozenset({"aborted", "agreement", "cooldown"})
"""Refusals that hold only for now: the alert is kept and judged again while its incident stays open."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and on what grounds."""

    action: Action
    reason: str
    onset: int
    not_after_step: int
    """Newest step that the evidence leaves unsuspected."""
    target: Checkpoint | None
    without_target: bool
    """A rollback was due, but there is nothing to go back to: the run is stopped, and a person has to be told."""
    evidence: tuple[OpenIncident, ...]
    candidates: tuple[Candidate, ...]
    step: int
    """Newest step of the attempt at that moment."""
    changes: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no plan; ``recovery_id`` names the recovery that this incident belongs to already."""

    kind: RefusalKind
    reason: str
    recovery_id: str | None = None


def evidence_for(incident: OpenIncident, facts: RunFacts, policy: RecoveryPolicy) -> tuple[OpenIncident, ...]:
    """The incident and all others of its attempt that the policy lets trigger, one for each (detector, signal)."""
    by_pair = {incident.pair: incident}
    for other in facts.incidents:
        if other.attempt == incident.attempt and policy.action_for(other) is not None:
            by_pair.setdefault(other.pair, other)
    return tuple(by_pair.values())


def is_enough(evidence: Sequence[OpenIncident], policy: RecoveryPolicy) -> bool:
    """Two signals that agree, or one that is certain. One signal seen by two detectors is one."""
    return witnesses(evidence) >= policy.agreement or any(policy.is_certain(incident) for incident in evidence)


def describe(evidence: Sequence[OpenIncident]) -> str:
    """The findings as a person reads them. The detectors' names are in it: the supervisor looks for them there."""
    return "; ".join(f"{incident.detector} on {incident.signal}: {incident.summary}" for incident in evidence)


def newest_allowed_step(evidence: Sequence[OpenIncident], policy: RecoveryPolicy) -> int:
    """The newest step whose checkpoint none of the incidents puts under suspicion.

    A step detector's onset is the first bad step, so what was saved at it or within the margin before it is out. A live
    detector's onset is the step in progress: the weights are sound, and verl may have saved in that very step. So are
    those of a run that has been slow, or whose memory has grown, for hundreds of steps.
    """
    return min(_newest_sound_step(incident, policy) for incident in evidence)


def _newest_sound_step(incident: OpenIncident, policy: RecoveryPolicy) -> int:
    if incident.detector in LIVE_DETECTORS:
        return incident.onset
    return incident.onset - policy.margin_steps - 1 if spoils_weights(incident) else incident.step


def judge_checkpoints(facts: RunFacts, not_after_step: int) -> tuple[Candidate, ...]:
    """Every checkpoint, newest step first, with why it is or is not eligible. The first eligible one is the target."""
    latest: dict[int, Checkpoint] = {}
    for checkpoint in facts.checkpoints:
        known = latest.get(checkpoint.step)
        if known is None or (checkpoint.attempt, checkpoint.saved_at) >= (known.attempt, known.saved_at):
            latest[checkpoint.step] = checkpoint
    return tuple(_judge(latest[step], facts, not_after_step) for step in sorted(latest, reverse=True))


def _judge(checkpoint: Checkpoint, facts: RunFacts, not_after_step: int) -> Candidate:
    def verdict(eligible: bool, reason: str) -> Candidate:
        return Candidate(checkpoint.step, checkpoint.path, checkpoint.attempt, eligible, reason)

    if not checkpoint.verified:
        return verdict(False, f"not verified: {checkpoint.reason or 'its manifest was not written'}")
    if checkpoint.step < 1:
        return verdict(False, f"step {checkpoint.step} is not a training step")
    if checkpoint.step > not_after_step:
        return verdict(False, f"newer than step {not_after_step}, the last that the findings leave unsuspected")
    if checkpoint.attempt > facts.attempt:
        return verdict(False, f"saved by attempt {checkpoint.attempt}, after the failure of attempt {facts.attempt}")
    for attempt in facts.attempts:
        left_at = attempt.resume_step
        if checkpoint.attempt < attempt.number <= facts.attempt and left_at is not None and checkpoint.step > left_at:
            return verdict(
                False,
                f"saved by attempt {checkpoint.attempt}, whose course attempt {attempt.number} left at step {left_at}",
            )
    return verdict(True, "verified, and saved before the onset less the margin")


def make_plan(
    incident: OpenIncident, facts: RunFacts, history: Sequence[Recovery], policy: RecoveryPolicy, now: float
) -> Plan | Refusal:
    """Judge one open incident of ``facts.run_id``; ``history`` holds the run's recoveries, in any order."""
    for recovery in history:
        if recovery.active:
            return Refusal("active", f"recovery {recovery.id} of this run is in progress", recovery.id)
    if incident.attempt != facts.attempt:
        return Refusal(
            "stale", f"the incident is of attempt {incident.attempt}, and attempt {facts.attempt} is the current one"
        )
    action = policy.action_for(incident)
    if action is None:
        return Refusal(
            "no_trigger", f"the policy lets {incident.detector} with severity {incident.severity.label} trigger nothing"
        )
    for recovery in history:
        if incident.key in recovery.incident_keys and counts(recovery, policy):
            return Refusal("answered", f"recovery {recovery.id} ({recovery.stage}) answered this incident", recovery.id)
    for recovery in history:
        if recovery.holds_back and incident.attempt in (recovery.attempt, recovery.new_attempt):
            return Refusal(
                "aborted",
                f"{recovery.aborted_by} aborted recovery {recovery.id}; until that is acknowledged, "
                f"attempt {incident.attempt} is left to people",
                recovery.id,
            )
    evidence = evidence_for(incident, facts, policy)
    if not is_enough(evidence, policy):
        seen = ", ".join(f"{e.detector} on {e.signal}" for e in evidence)
        return Refusal(
            "agreement",
            f"{policy.agreement} signals have to agree or one be certain; so far it is {witnesses(evidence)}: {seen}",
        )
    held = _held_back(history, policy, now)
    return held or _plan(action, evidence, facts, policy)


def _held_back(history: Sequence[Recovery], policy: RecoveryPolicy, now: float) -> Refusal | None:
    """Cooldown, then budget."""
    for recovery in history:
        if not counts(recovery, policy):
            continue
        # An end that lies further ahead than the cooldown is long was written before the clock was set back.
        if recovery.times.finished is not None and abs(now - recovery.times.finished) < policy.cooldown_seconds:
            left = recovery.times.finished + policy.cooldown_seconds - now
            return Refusal("cooldown", f"recovery {recovery.id} has ended, and {left:.0f} s of the cooldown are left")
    spent = _spent_in_a_day(spent_times(history, policy), now)
    if spent >= policy.budget_per_day:
        return Refusal("budget", f"{spent} recoveries in 24 hours use up the budget of {policy.budget_per_day}")
    return None


def spent_times(history: Sequence[Recovery], policy: RecoveryPolicy) -> tuple[float, ...]:
    """When each recovery of a run was taken from its budget."""
    return tuple(at for recovery in history if counts(recovery, policy) and (at := spent_at(recovery)) is not None)


def budget_left(spent: Sequence[float], policy: RecoveryPolicy, now: float) -> int:
    """Recoveries that the budget still allows; ``spent``: of :func:`spent_times`.

    >>> budget_left((1000.0, 90_000.0), RecoveryPolicy(budget_per_day=3), now=100_000.0)
    2
    """
    return max(0, policy.budget_per_day - _spent_in_a_day(spent, now))


def _spent_in_a_day(spent: Sequence[float], now: float) -> int:
    return sum(now - at < DAY_SECONDS for at in spent)


def counts(recovery: Recovery, policy: RecoveryPolicy) -> bool:
    """Whether the recovery stands in the way of another: what was only observed does not once the mode is another."""
    return recovery.mode != "observe" or policy.mode == "observe"


def spent_at(recovery: Recovery) -> float | None:
    """When the recovery took one from the budget, None if it never did (refused, or still waiting for approval)."""
    if recovery.stage == "aborted" and recovery.times.command_delivered is None:
        return None  # nothing was done
    return recovery.times.planned if recovery.stage == "observed" else recovery.times.commanded


def _plan(action: Action, evidence: tuple[OpenIncident, ...], facts: RunFacts, policy: RecoveryPolicy) -> Plan:
    limit = newest_allowed_step(evidence, policy)
    onset = min(incident.onset for incident in evidence)
    candidates = judge_checkpoints(facts, limit)
    chosen = next((c for c in candidates if c.eligible), None) if action == "rollback" else None
    findings = describe(evidence)
    if chosen is not None:
        target = Checkpoint(step=chosen.step, path=chosen.path, attempt=chosen.attempt, verified=True)
        reason = f"{findings}. Back to step {chosen.step}, the newest verified checkpoint up to step {limit}."
        changes = differences(facts, target)
        return Plan(action, reason, onset, limit, target, False, evidence, candidates, facts.step, changes)
    if action == "stop":
        reason = f"{findings}. The policy asks for a stop."
        return Plan(action, reason, onset, limit, None, False, evidence, candidates, facts.step)
    reason = (
        f"{findings}. No verified checkpoint up to step {limit} is known, so the run is stopped and not started again."
    )
    return Plan("stop", reason, onset, limit, None, True, evidence, candidates, facts.step)


def with_plan(recovery: Recovery, plan: Plan) -> Recovery:
    """The record with what the plan says is to be done."""
    return replace(
        recovery,
        action=plan.action,
        reason=plan.reason,
        without_target=plan.without_target,
        onset=plan.onset,
        not_after_step=plan.not_after_step,
        planned_target_step=None if plan.target is None else plan.target.step,
        planned_target_path="" if plan.target is None else plan.target.path,
        planned_at_step=plan.step,
        changes=plan.changes,
        candidates=worth_keeping(plan.candidates),
    )


def made_anew(recovery: Recovery, facts: RunFacts, policy: RecoveryPolicy) -> Recovery | None:
    """The record of a rollback that nobody has begun, with an older target; None where the planned one is still sound.

    While a plan waits, an earlier onset may be found, and a further signal may break with one: what looked sound when
    the plan was made is then after the onset.
    """
    if recovery.action != "rollback" or recovery.not_after_step is None or facts.attempt != recovery.attempt:
        return None
    evidence = tuple(
        incident
        for incident in facts.incidents
        if incident.attempt == recovery.attempt
        and (incident.key in recovery.incident_keys or policy.action_for(incident) is not None)
    )
    if not evidence or newest_allowed_step(evidence, policy) >= recovery.not_after_step:
        return None
    now = {incident.id: incident_data(incident) for incident in evidence}
    known = [now.pop(data["id"], data) for data in recovery.incidents]
    new_keys = [incident.key for incident in evidence if incident.key not in recovery.incident_keys]
    return replace(
        with_plan(recovery, _plan("rollback", evidence, facts, policy)),
        incidents=(*known, *now.values()),
        incident_keys=(*recovery.incident_keys, *new_keys),
    )


def incident_data(incident: OpenIncident) -> dict[str, Any]:
    """The verdict's numbers as they go into the record and the audit log."""
    data: dict[str, Any] = spell_numbers({**asdict(incident), "severity": incident.severity.label})
    return data
