"""What follows a recovery that did not hold: one on the next rung that has something to do, or a person. Pure; called
by the engine in the transaction in which the recovery fails, so that no crash can come between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from exporter.detectors.base import Severity
from exporter.recovery.assessment import Assessment, assess
from exporter.recovery.evidence import Evidence, gather, incident_data
from exporter.recovery.facts import OpenIncident, RunFacts
from exporter.recovery.history import Standing, next_rung, spent_today, tries
from exporter.recovery.plan import Plan, plan_for
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import ConsideredRung, Recovery

CLIMBS: Final = ("died", "unhealthy", "relapse", "unproved")
"""Ends that another rung may be an answer to, whatever rung it was on."""

NOT_MENDABLE: Final = frozenset({4, 5, 7, 8})
"""Reasons of the supervisor's (its exit codes) that no other rung mends: no checkpoint is left, the old trainer is not
gone, nothing runs that could start it, or the command was refused."""


@dataclass(frozen=True, slots=True)
class Climb:
    """The next recovery of the episode."""

    plan: Plan
    incidents: tuple[dict[str, Any], ...]
    incident_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Nothing follows; what was considered is kept with the recovery that failed."""

    considered: tuple[ConsideredRung, ...]


def climb(
    failed: Recovery, facts: RunFacts | None, history: Sequence[Recovery], policy: RecoveryPolicy, now: float
) -> Climb | End:
    """``failed`` has just failed, and is the first of ``history``."""
    why_not = _no_climb(failed, facts, history, policy, now)
    if why_not or facts is None:
        return _end(failed, why_not)
    new = tuple(
        incident
        for incident in facts.incidents
        if incident.attempt == facts.attempt
        and (policy.action_for(incident) is not None or incident.key in failed.incident_keys)
    )
    known = {incident.id: incident for data in failed.incidents if (incident := _read(data)) is not None}
    old = tuple(incident for incident in known.values() if incident.id not in {one.id for one in new})
    every = (*old, *new)
    if not every:
        return _end(failed, "nothing is left of its evidence")
    gathered = Evidence(every, len(every), 1, certain=True)
    # What is open now is judged by its onset in the new attempt; what led to the first recovery keeps its own limit.
    found = assess(every, facts, policy, not_after=failed.not_after_step)
    if found.target is None:
        found = _from_the_same(failed, facts, policy) or found
    stops = [one for one in new if one.attempt > failed.attempt and policy.action_for(one) == "stop"]
    trigger = next((one for one in stops if gather(one, facts, policy).enough), None)
    if trigger is None:
        trigger = next((one for one in every if policy.action_for(one) not in (None, "stop")), None)
    ladder = policy.ladder_for(trigger)
    why = f"recovery {failed.id} has failed on the {failed.rung} rung"
    # A restart that did not help has not tried the checkpoint that its rung stands for.
    again = failed.action == "restart" and tries(failed, history) < policy.tries_per_rung
    stand = Standing(next_rung(failed, history, ladder, again=again), why, failed)
    spent = spent_today(history, policy, now)
    stages = (gathered.result(), found.result(), stand.result(spent, policy))
    plan = plan_for(trigger, gathered, found, stand, facts, policy, stages, climbing=True)
    if plan.ends and not plan.without_target:
        return End(plan.considered)
    if plan.action == "stop" and not facts.running:
        return End(plan.considered)  # there is nothing to stop
    if plan.mode == "observe":
        only = _end(failed, f"the policy asks for a {plan.action}, and only observes it")
        return End(plan.considered) if plan.considered else only
    return Climb(plan, _joined(failed, new), tuple({*failed.incident_keys, *(one.key for one in new)}))


def _from_the_same(failed: Recovery, facts: RunFacts, policy: RecoveryPolicy) -> Assessment | None:
    """The checkpoint that was restored, once more, where nothing older is known.

    A failure right behind it puts it within the margin. But the new attempt cannot have gone wrong before its own first
    step, and what was found on the attempt before had left that checkpoint unsuspected.
    """
    first = [one for one in map(_read, failed.incidents) if one is not None and one.attempt <= failed.attempt]
    restored, limit = failed.resumed_from, failed.not_after_step
    if not first or restored is None or limit is None or restored > limit:
        return None
    found = assess(first, facts, policy, not_after=restored)
    if found.target is None:
        return None
    return with_fields(found, note=", the one that was restored before, for nothing older is known")


def _no_climb(
    failed: Recovery, facts: RunFacts | None, history: Sequence[Recovery], policy: RecoveryPolicy, now: float
) -> str:
    """Why it ends here, before the rungs are looked at; empty where they are worth a look."""
    if failed.action == "stop" or failed.failed_by == "ladder":
        return "the run was to be stopped for good"
    if failed.failed_by == "not_carried_out":
        code = failed.failure_code
        if code in NOT_MENDABLE or (code is None and failed.rung == "checkpoint"):
            return "the supervisor could not carry it out, and no other rung mends that"
    elif failed.failed_by == "overdue":
        if failed.times.started is None:
            return "what the supervisor does is not known, so nothing else is asked of it"
    elif failed.failed_by not in CLIMBS:
        return "it did not end in a way that another rung mends"
    if facts is None:
        return "nothing is known of the run at this moment"
    if facts.attempt > failed.newest_attempt:
        return f"attempt {facts.attempt} was started meanwhile"
    spent = spent_today(history, policy, now)
    if spent >= policy.budget_per_day:
        return f"{spent} recoveries in 24 hours use up the budget of {policy.budget_per_day}"
    return ""


def _end(failed: Recovery, reason: str) -> End:
    return End((ConsideredRung(rung="person", taken=True, reason=reason),))


def with_end(failed: Recovery, end: End) -> Recovery:
    """The failed record with what was considered after it; its own rung is in there with what became of it."""
    own = tuple(it for it in failed.considered if it.rung != "person")
    names = {it.rung for it in own}
    later = tuple(it for it in end.considered if it.rung not in names or it.rung == "person")
    return replace(failed, considered=(*own, *later))


def _joined(failed: Recovery, new: Sequence[OpenIncident]) -> tuple[dict[str, Any], ...]:
    fresh = {incident.id: incident_data(incident) for incident in new}
    kept = [fresh.pop(data["id"], data) for data in failed.incidents]
    return (*kept, *fresh.values())


def _read(data: dict[str, Any]) -> OpenIncident | None:
    """An incident as a record has it; None where an older record lacks something."""
    fields = {name: data[name] for name in OpenIncident.__dataclass_fields__ if name in data}
    try:
        severity = Severity[str(fields.get("severity", "")).upper()]
        return msgspec.convert({**fields, "severity": severity}, OpenIncident, strict=False)
    except (KeyError, msgspec.ValidationError):
        return None
