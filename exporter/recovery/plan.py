"""Turns one open incident into a plan or a refusal, stage by stage. Pure: the same facts, history and policy give the
same answer. Called for every alert, and again for those that wait; nothing here is looked up, stored or sent.

    evidence     which findings speak for it, and whether they are enough   exporter.recovery.evidence
    assessment   since when the run is in doubt, and where it could go      exporter.recovery.assessment
    history      what earlier recoveries allow, and where the ladder is     exporter.recovery.history
    policy       what may be done, on which rung, in which mode             exporter.recovery.policy, ladder
    plan         all of it together                                         here

What each considered and refused is in the plan's :attr:`Plan.stages`. Only the engine acts on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from typing import Literal

from msgspec.structs import replace

from exporter.protocol import Changes, Rung
from exporter.recovery.assessment import Assessment, assess, newest_allowed_step
from exporter.recovery.changes import Difference, differences, restarted, worth_keeping
from exporter.recovery.evidence import Evidence, describe, gather, incident_data
from exporter.recovery.facts import Candidate, OpenIncident, RunFacts
from exporter.recovery.history import Standing, cooldown_left, counts, spent_today, standing
from exporter.recovery.ladder import Choice, choose, in_force
from exporter.recovery.policy import Action, Mode, RecoveryPolicy
from exporter.recovery.record import ConsideredRung, Recovery, StageResult
from exporter.recovery.rung_settings import Approvers

RefusalKind = Literal[
    "active", "stale", "no_trigger", "answered", "aborted", "person", "agreement", "cooldown", "budget"
]

WAITING: frozenset[RefusalKind] = frozenset({"aborted", "person", "agreement", "cooldown"})
"""Refusals that hold only for now: the alert is kept and judged again while its incident stays open."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and on what grounds."""

    action: Action
    reason: str
    onset: int
    not_after_step: int
    """Newest step that the evidence leaves unsuspected."""
    target: Candidate | None
    without_target: bool
    """A rollback was due, but there is nothing to go back to: the run is stopped, and a person has to be told."""
    evidence: tuple[OpenIncident, ...]
    candidates: tuple[Candidate, ...]
    step: int
    """Newest step of the attempt at that moment."""
    changes: tuple[Difference, ...] = ()
    rung: Rung = "checkpoint"
    mode: Mode = "observe"
    protocol_changes: Changes = field(default_factory=Changes)
    considered: tuple[ConsideredRung, ...] = ()
    standing: Standing = field(default_factory=lambda: Standing(0))
    stages: tuple[StageResult, ...] = ()
    ends: bool = False
    """The ladder has ended: nothing is begun but what the policy says of that, and a person is told."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no plan; ``recovery_id`` names the recovery that this incident belongs to already."""

    kind: RefusalKind
    reason: str
    recovery_id: str | None = None
    stages: tuple[StageResult, ...] = ()


def make_plan(
    incident: OpenIncident, facts: RunFacts, history: Sequence[Recovery], policy: RecoveryPolicy, now: float
) -> Plan | Refusal:
    """Judge one open incident of ``facts.run_id``; ``history`` holds the run's recoveries, the newest first."""
    refusal = _out_of_question(incident, facts, history, policy)
    if refusal is not None:
        return refusal
    evidence = gather(incident, facts, policy)
    stages = [evidence.result()]
    if not evidence.enough:
        seen = ", ".join(f"{e.detector} on {e.signal}" for e in evidence.incidents)
        reason = f"{evidence.needed} signals have to agree or one be certain; so far it is {evidence.witnesses}: {seen}"
        return Refusal("agreement", reason, stages=tuple(stages))
    found = assess(evidence.incidents, facts, policy)
    stand = standing(evidence.incidents, facts, history, policy.ladder_for(incident), policy)
    found = _where_it_first_was(found, stand, evidence, facts, policy)
    stages.append(found.result())
    stages.append(stand.result(spent_today(history, policy, now), policy))
    refusal = _held_back(stand, history, policy, now)
    if refusal is not None:
        return Refusal(refusal.kind, refusal.reason, refusal.recovery_id, tuple(stages))
    return plan_for(incident, evidence, found, stand, facts, policy, tuple(stages))


def _where_it_first_was(
    found: Assessment, stand: Standing, evidence: Evidence, facts: RunFacts, policy: RecoveryPolicy
) -> Assessment:
    """A failure of the training that is back began where it was found first, not where it shows again.

    What was saved in between is of an attempt that had the same cause in it. Where nothing else is left, it is taken.
    """
    first = None if stand.previous is None else stand.previous.not_after_step
    if not stand.came_back or first is None or not found.spoilt or first >= found.not_after_step:
        return found
    earlier = assess(evidence.incidents, facts, policy, not_after=first)
    return found if earlier.target is None else earlier


def _out_of_question(
    incident: OpenIncident, facts: RunFacts, history: Sequence[Recovery], policy: RecoveryPolicy
) -> Refusal | None:
    """What is seen without looking at the findings."""
    for recovery in history:
        if recovery.active:
            return Refusal("active", f"recovery {recovery.id} of this run is in progress", recovery.id)
    if incident.attempt != facts.attempt:
        return Refusal(
            "stale", f"the incident is of attempt {incident.attempt}, and attempt {facts.attempt} is the current one"
        )
    if policy.action_for(incident) is None:
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
    return None


def _held_back(stand: Standing, history: Sequence[Recovery], policy: RecoveryPolicy, now: float) -> Refusal | None:
    """A ladder that has ended, cooldown, budget."""
    if stand.previous is not None and stand.previous.failed_by == "ladder":
        reason = (
            f"the ladder has ended with recovery {stand.previous.id}; until that is acknowledged, it is for a person"
        )
        return Refusal("person", reason, stand.previous.id)
    cooling = cooldown_left(history, policy, now)
    if cooling is not None:
        recovery, left = cooling
        return Refusal("cooldown", f"recovery {recovery.id} has ended, and {left:.0f} s of the cooldown are left")
    spent = spent_today(history, policy, now)
    if spent >= policy.budget_per_day:
        return Refusal("budget", f"{spent} recoveries in 24 hours use up the budget of {policy.budget_per_day}")
    return None


def plan_for(
    incident: OpenIncident | None,
    evidence: Evidence,
    found: Assessment,
    stand: Standing,
    facts: RunFacts,
    policy: RecoveryPolicy,
    stages: tuple[StageResult, ...],
    *,
    climbing: bool = False,
) -> Plan:
    """The last two stages. ``incident``: what triggers it, for its action and its ladder; ``climbing``: what
    is not to be stopped is rolled back."""
    action = "rollback" if incident is None else policy.action_for(incident)
    assert action is not None, "what triggers nothing is refused before"
    if action == "restart" and (climbing or found.spoilt):
        action = "rollback"  # a restart has not helped, or what it would save is what is in doubt
    ladder = policy.ladder_for(incident)
    made = _Made(evidence, found, stand, facts, policy, ladder, stages, describe(evidence.incidents))
    if action == "stop":
        return made.stop(f"{made.findings}. The policy asks for a stop.", Choice(()))
    if action == "restart" and stand.above == 0:
        return made.restart(ladder[0])
    if found.target is None:
        reason = (
            f"{made.findings}. No verified checkpoint up to step {found.not_after_step} is known, so the run is "
            "stopped and not started again."
        )
        end = ConsideredRung(rung="person", taken=True, reason="no verified checkpoint from before the onset is known")
        return made.stop(reason, Choice((end,)), without_target=True)
    choice = choose(ladder, stand.above, facts, found, policy, why_above=stand.why, previous=stand.previous)
    if choice.rung is None:
        return made.end(choice)
    return made.rollback(choice, found.target)


@dataclass(frozen=True, slots=True)
class _Made:
    """What every plan has in common."""

    evidence: Evidence
    found: Assessment
    stand: Standing
    facts: RunFacts
    policy: RecoveryPolicy
    ladder: tuple[Rung, ...]
    """The one in use: what triggers it may have its own."""
    stages: tuple[StageResult, ...]
    findings: str

    def rollback(self, choice: Choice, target: Candidate) -> Plan:
        assert choice.rung is not None
        assert choice.step is not None
        assert choice.step.changes is not None
        back = f"Back to step {target.step}, the newest verified checkpoint up to step {self.found.not_after_step}"
        how = "" if choice.rung == "checkpoint" else f", on the {choice.rung} rung: {choice.step.reason}"
        return self._plan(
            "rollback",
            f"{self.findings}. {back}{how}.",
            choice,
            mode=self.policy.mode_of(choice.rung),
            rung=choice.rung,
            target=target,
            changes=(*differences(self.facts, target), *choice.step.differences),
            protocol_changes=choice.step.changes,
        )

    def restart(self, rung: Rung) -> Plan:
        reason = (
            f"{self.findings}. What is trained so far is saved, and training goes on from there in a fresh process."
        )
        taken = ConsideredRung(rung=rung, taken=True, reason="the policy asks for a restart that saves first")
        return self._plan(
            "restart",
            reason,
            Choice((taken,)),
            mode=self.policy.mode_of(rung),
            rung=rung,
            target=self.found.target,
            changes=restarted(self.facts),
            protocol_changes=in_force(self.facts),
        )

    def stop(self, reason: str, choice: Choice, *, without_target: bool = False) -> Plan:
        mode = self.policy.mode_off_the_ladder(self.ladder)
        return self._plan("stop", reason, choice, mode=mode, rung=self.ladder[0], without_target=without_target)

    def end(self, choice: Choice) -> Plan:
        """The ladder ends: a run that still trains is left so, or stopped, as the policy says."""
        rung = self.stand.previous.rung if self.stand.previous is not None else self.ladder[-1]
        mode = self.policy.mode_off_the_ladder(self.ladder)
        stops = self.policy.at_end == "stop" and self.facts.running
        reason = f"{self.findings}. {self.stand.why or 'Nothing'}, and no rung of the ladder is left that would help"
        after = "the run is stopped, and a person has to look at it." if stops else "a person has to look at it."
        return self._plan("stop", f"{reason}: {after}", choice, mode=mode, rung=rung, ends=True, without_target=stops)

    def _plan(self, action: Action, reason: str, choice: Choice, *, mode: Mode, rung: Rung, **more: object) -> Plan:
        passed = tuple(f"The {it.rung} rung: {it.reason}." for it in choice.considered if not it.taken)
        what = "nothing is begun" if more.get("ends") and not more.get("without_target") else f"{action} on {rung}"
        said = StageResult(stage="policy", result=f"It allows {what}, in mode {mode}.", refused=passed)
        planned = StageResult(stage="plan", result=reason)
        return Plan(
            action=action,
            reason=reason,
            onset=self.found.onset,
            not_after_step=self.found.not_after_step,
            evidence=self.evidence.incidents,
            candidates=self.found.candidates,
            step=self.facts.step,
            rung=rung,
            mode=mode,
            considered=choice.considered,
            standing=self.stand,
            stages=(*self.stages, said, planned),
            **{"target": None, "without_target": False, **more},  # type: ignore[arg-type]
        )


def with_plan(recovery: Recovery, plan: Plan) -> Recovery:
    """The record with what the plan says is to be done."""
    return replace(
        recovery,
        action=plan.action,
        mode=plan.mode,
        reason=plan.reason,
        without_target=plan.without_target,
        onset=plan.onset,
        not_after_step=plan.not_after_step,
        planned_target_step=None if plan.target is None else plan.target.step,
        planned_target_path="" if plan.target is None else plan.target.path,
        planned_at_step=plan.step,
        changes=plan.changes,
        candidates=worth_keeping(plan.candidates),
        rung=plan.rung,
        protocol_changes=plan.protocol_changes,
        considered=plan.considered,
        stages=plan.stages,
    )


def made_anew(recovery: Recovery, facts: RunFacts, policy: RecoveryPolicy) -> Recovery | None:
    """The record of a rollback that nobody has begun, with an older target; None where the planned one is still sound.

    While a plan waits, an earlier onset may be found, and a further signal may break with one: what looked sound when
    the plan was made is then after the onset. What the plan rests on is judged already, and not again. The rung stays;
    where it has nothing to do from the older checkpoint, the run is stopped.
    """
    if recovery.action != "rollback" or recovery.not_after_step is None or facts.attempt != recovery.attempt:
        return None
    evidence = tuple(
        incident
        for incident in facts.incidents
        if incident.attempt == recovery.attempt
        and (incident.key in recovery.incident_keys or policy.action_for(incident) is not None)
    )
    known_onsets = {data["id"]: data["onset"] for data in recovery.incidents}
    news = tuple(one for one in evidence if one.onset < known_onsets.get(one.id, one.onset + 1))
    if not news or newest_allowed_step(news, policy) >= recovery.not_after_step:
        return None
    now = {incident.id: incident_data(incident) for incident in evidence}
    known = [now.pop(data["id"], data) for data in recovery.incidents]
    new_keys = [incident.key for incident in evidence if incident.key not in recovery.incident_keys]
    gathered = Evidence(evidence, len(evidence), 1, certain=True)
    found = assess(evidence, facts, policy, not_after=recovery.not_after_step)
    stages = (gathered.result(), found.result(), *(it for it in recovery.stages if it.stage == "history"))
    # The one rung that it is on, at the place where it stands.
    only = replace(policy, ladder=(recovery.rung,), triggers=tuple(replace(t, ladder=None) for t in policy.triggers))
    plan = plan_for(None, gathered, found, Standing(0, previous=recovery), facts, only, stages, climbing=True)
    if plan.ends:
        plan = with_fields(plan, without_target=True, ends=False)
    made = replace(with_plan(recovery, plan), mode=recovery.mode)
    if plan.action == "stop" and plan.mode == "approve" and recovery.mode != "approve":
        who = policy.approval.get(plan.rung, Approvers())  # what was to be done by itself, and may not be ended so
        made = replace(made, mode="approve", approvals_needed=who.approvals, approvers=who.names)
    passed = tuple(it for it in recovery.considered if not it.taken)
    return replace(
        made,
        considered=(*passed, *(it for it in plan.considered if it.taken)),
        incidents=(*known, *now.values()),
        incident_keys=(*recovery.incident_keys, *new_keys),
    )
