"""What becomes of an alert: planned, attached, kept waiting or refused, and said once in the audit log.

Called by the engine inside its lock and transaction. The alert is only a reason to look: what is decided on is the
exporter's own open incident, so a forged or stale alert finds nothing to act on.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from exporter.recovery.changes import MOST_CANDIDATES
from exporter.recovery.climbing import Climb
from exporter.recovery.evidence import describe, evidence_for, incident_data
from exporter.recovery.facts import Alert, OpenIncident, RunFacts
from exporter.recovery.history import counts
from exporter.recovery.plan import WAITING, Plan, Refusal, make_plan, with_plan
from exporter.recovery.policies import Policies
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import Decision, Outcome, Recovery, Timeline
from exporter.recovery.rung_settings import Approvers
from exporter.recovery.store import RecoveryStore, SeenAlert


class AlertJudge:
    """Writes to the store; the caller holds the transaction."""

    def __init__(self, store: RecoveryStore, policies: Policies) -> None:
        self._store = store
        self._policies = policies

    def judge(self, alert: Alert, facts: RunFacts | None, now: float) -> Decision:
        """One alert, for the first time or again."""
        seen = self._store.seen(alert)
        if seen is not None and seen.state == "decided" and not self._has_moved_on(alert, seen, facts):
            kind = seen.kind if alert.status == "firing" else "resolved"
            if kind != seen.kind:
                self._note(alert, seen.recovery_id, kind, "The alert is resolved.", now, data={})
            self._store.mark(alert, "decided", kind, seen.recovery_id, now)
            if alert.status == "resolved":
                return Decision("resolved", "The alert is resolved; nothing is done on that.", seen.recovery_id)
            return Decision("duplicate", "This alert was decided on before.", seen.recovery_id or None)
        if alert.status == "resolved":
            return self._answer(alert, "resolved", "resolved", "The alert is resolved; nothing is done on that.", now)
        if facts is None:
            return self._answer(alert, "refused", "unknown_run", f"Run {alert.run_id!r} is not known here.", now)
        if alert.action != "rollback":
            reason = f'The alert has action {alert.action!r}, and only "rollback" triggers anything.'
            return self._answer(alert, "refused", "no_action", reason, now)
        incident = self._incident_of(alert, facts)
        if incident is None:
            reason = f"No incident of {alert.detector!r} on {alert.signal!r} is open in run {facts.run_id!r}."
            return self._answer(alert, "refused", "no_incident", reason, now)
        policy = self._policies.of(facts)
        answer = make_plan(incident, facts, self._store.history(facts.run_id), policy, now)
        received = seen.first_at if seen is not None and seen.state == "pending" else now
        if isinstance(answer, Plan):
            if answer.ends and not answer.without_target:
                return self._refuse_at_the_end(alert, facts, answer, now, received=received)
            return self._start(alert, facts, answer, now, received=received)
        if answer.kind == "budget":
            return self._refuse_for_budget(alert, incident, facts, answer, now, received=received)
        if answer.kind == "active":
            return self._attach(alert, incident, answer, now)
        data = {"incident": incident_data(incident), "stages": msgspec.to_builtins(answer.stages)}
        if answer.kind == "answered":
            return self._answer(
                alert, "attached", "answered", answer.reason, now, recovery_id=answer.recovery_id or "", data=data
            )
        if answer.kind in WAITING:
            return self._answer(alert, "pending", answer.kind, answer.reason, now, data=data)
        return self._answer(alert, "refused", answer.kind, answer.reason, now, data=data)

    def judge_pending(self, facts: RunFacts, now: float) -> None:
        """Alerts of a run that wait for a second signal or the end of the cooldown."""
        for seen in self._store.pending(facts.run_id):
            self.judge(seen.alert, facts, now)

    def _has_moved_on(self, alert: Alert, seen: SeenAlert, facts: RunFacts | None) -> bool:
        """Whether the alert, which never stopped firing, has to be judged afresh.

        It may stand for a newer incident: one that comes back within one scrape leaves Prometheus no gap, so startsAt
        stays what it was, and a situation that grows keeps its alert. Or it was only observed, and the mode is another
        since.
        """
        incident = self._incident_of(alert, facts) if facts is not None and alert.status == "firing" else None
        recovery = self._store.get(seen.recovery_id)
        if incident is None or recovery is None:
            return False
        newer = incident.attempt >= recovery.attempt and incident.key not in recovery.incident_keys
        return newer or not counts(recovery, self._policies.of(recovery))

    def _incident_of(self, alert: Alert, facts: RunFacts) -> OpenIncident | None:
        """The open incident that the alert is about.

        The labels name one, or the finding that was said first in a situation; the alert then stands for all of that
        situation, whether that finding is still open or not. Of several it is one of the newest attempt that may
        trigger something, that no recovery has answered, and that is most severe.
        """
        if alert.run_id != facts.run_id:
            return None
        pair, situation = (alert.detector, alert.signal), f"{alert.detector}/{alert.signal}"
        named = [i for i in facts.incidents if i.pair == pair or i.situation == situation]
        if len(named) < 2:
            return named[0] if named else None
        policy = self._policies.of(facts)
        history = [r for r in self._store.history(facts.run_id) if counts(r, policy)]
        answered = {key for recovery in history for key in recovery.incident_keys}

        def weight(incident: OpenIncident) -> tuple[int, bool, bool, int, bool]:
            triggers = policy.action_for(incident) is not None
            news = incident.key not in answered
            return (incident.attempt, triggers, news, incident.severity, incident.pair == pair)

        return max(named, key=weight)

    def _answer(
        self,
        alert: Alert,
        outcome: Outcome,
        kind: str,
        reason: str,
        now: float,
        *,
        recovery_id: str = "",
        data: dict[str, Any] | None = None,
    ) -> Decision:
        """Record the answer; an answer that is the same as the last one is not audited again."""
        seen = self._store.seen(alert)
        state = "decided" if outcome == "attached" else outcome
        if seen is None or seen.kind != kind:
            self._note(alert, recovery_id, kind, reason, now, data=data or {})
        if seen is None or seen.kind != kind or outcome != "pending":
            self._store.mark(alert, state, kind, recovery_id, now)
        return Decision(outcome, reason, recovery_id or None)

    def _note(
        self, alert: Alert, recovery_id: str, kind: str, reason: str, now: float, *, data: dict[str, Any]
    ) -> None:
        evidence = {"alert": asdict(alert), **data}
        self._store.note(now, alert.run_id, recovery_id, f"alert_{kind}", reason, data=evidence)

    def _attach(self, alert: Alert, incident: OpenIncident, refusal: Refusal, now: float) -> Decision:
        recovery = self._store.active(incident.run_id)
        if recovery is None:  # the plan was made from this very transaction's history
            raise AssertionError("an active recovery vanished inside a transaction")
        if incident.key not in recovery.incident_keys:
            joined = replace(
                recovery,
                incidents=(*recovery.incidents, incident_data(incident)),
                incident_keys=(*recovery.incident_keys, incident.key),
            )
            self._store.save(joined)
        data = {"incident": incident_data(incident)}
        return self._answer(alert, "attached", "attached", refusal.reason, now, recovery_id=recovery.id, data=data)

    def _start(self, alert: Alert, facts: RunFacts, plan: Plan, now: float, *, received: float) -> Decision:
        recovery = self._record(alert, facts, plan.evidence, now, received=received)
        recovery = begun(
            replace(with_plan(recovery, plan), episode=plan.standing.episode), self._policies.of(facts), now
        )
        recovery = self._link_back(recovery, plan, now)
        self._store.save(recovery)
        self._note(alert, recovery.id, "planned", recovery.reason, now, data=plan_data(recovery, plan))
        self._store.mark(alert, "decided", "planned", recovery.id, now)
        observed = recovery.stage == "observed"
        return Decision("observed" if observed else "planned", recovery.reason, recovery.id)

    def _link_back(self, recovery: Recovery, plan: Plan, now: float) -> Recovery:
        """One that goes on above a recovery which had seemed to succeed is linked with it, both ways."""
        previous = plan.standing.previous
        if previous is None or recovery.stage == "observed" or recovery.rung == previous.rung:
            return recovery
        self._store.save(replace(previous, climbed_to=recovery.id))
        said = f"Recovery {recovery.id} goes on from it, on the {recovery.rung} rung."
        self._store.note(now, recovery.run_id, previous.id, "followed", said, data={"climbed_to": recovery.id})
        return replace(recovery, climbed_from=previous.id)

    def start_climb(self, failed: Recovery, facts: RunFacts, step: Climb, now: float) -> Recovery:
        """The recovery that follows a failed one; the caller has stored that one, with the link to this."""
        policy = self._policies.of(facts)
        alert = Alert(fingerprint=failed.fingerprint, starts_at=failed.starts_at, status="firing")
        recovery = replace(
            self._record(alert, facts, (), now, received=now),
            id=self.climb_id(failed, facts),
            incidents=step.incidents,
            incident_keys=step.incident_keys,
            episode=failed.episode or failed.id,
            climbed_from=failed.id,
        )
        recovery = begun(with_plan(recovery, step.plan), policy, now, wait=policy.climb_seconds)
        self._store.save(recovery)
        data = plan_data(recovery, step.plan)
        self._store.note(now, recovery.run_id, recovery.id, "climbed", recovery.reason, data=data)
        return recovery

    def climb_id(self, failed: Recovery, facts: RunFacts) -> str:
        """The id that :meth:`start_climb` gives, known before so that the failed one can name it."""
        alert = Alert(
            fingerprint=failed.fingerprint, starts_at=f"{failed.starts_at} after {failed.id}", status="firing"
        )
        return _recovery_id(alert, facts, len(self._store.history(failed.run_id)))

    def _refuse_at_the_end(self, alert: Alert, facts: RunFacts, plan: Plan, now: float, *, received: float) -> Decision:
        """The ladder has no rung left: that is a record of its own, so that a person is told."""
        recovery = with_plan(self._record(alert, facts, plan.evidence, now, received=received), plan)
        outcome = f"Refused: {next(it.reason for it in plan.considered if it.rung == 'person')}."
        return self._refuse_and_tell(alert, replace(recovery, episode=plan.standing.episode), "ladder", outcome, now)

    def _refuse_for_budget(
        self, alert: Alert, incident: OpenIncident, facts: RunFacts, refusal: Refusal, now: float, *, received: float
    ) -> Decision:
        """A recovery was due and is not allowed: that is a record of its own, so that a person is told."""
        evidence = evidence_for(incident, facts, self._policies.of(facts))
        recovery = replace(self._record(alert, facts, evidence, now, received=received), stages=refusal.stages)
        return self._refuse_and_tell(alert, recovery, "budget", f"Refused: {refusal.reason}.", now)

    def _refuse_and_tell(
        self, alert: Alert, recovery: Recovery, kind: Literal["ladder", "budget"], outcome: str, now: float
    ) -> Decision:
        recovery = replace(
            recovery,
            stage="refused",
            refused_by_policy=recovery.mode != "observe",
            failed_by="ladder" if kind == "ladder" else "",
            outcome=outcome,
            times=replace(recovery.times, finished=now),
        )
        self._store.save(recovery)
        evidence = {"incidents": list(recovery.incidents), **_decided(recovery)}
        self._note(alert, recovery.id, kind, recovery.outcome, now, data=evidence)
        self._store.mark(alert, "decided", kind, recovery.id, now)
        return Decision("refused", recovery.outcome, recovery.id)

    def _record(
        self, alert: Alert, facts: RunFacts, evidence: tuple[OpenIncident, ...], now: float, *, received: float
    ) -> Recovery:
        policy = self._policies.of(facts)
        return Recovery(
            id=_recovery_id(alert, facts, len(self._store.history(facts.run_id))),
            run_id=facts.run_id,
            attempt=facts.attempt,
            mode=policy.mode_off_the_ladder(),
            action="rollback",
            stage="planned",
            stage_since=now,
            reason=describe(evidence),
            rule=self._policies.rule_of(facts),
            project=facts.project,
            cohort=facts.cohort,
            fingerprint=alert.fingerprint,
            starts_at=alert.starts_at,
            incidents=tuple(incident_data(incident) for incident in evidence),
            incident_keys=tuple(incident.key for incident in evidence),
            times=Timeline(alert_received=received, planned=now),
        )


def begun(recovery: Recovery, policy: RecoveryPolicy, now: float, *, wait: float = 0.0) -> Recovery:
    """A planned recovery in the stage that its mode asks for; one that is to ``wait`` stays planned for as long."""
    if recovery.mode == "observe":
        outcome = "Observed only: the mode is observe, so nothing is done."
        return replace(recovery, stage="observed", outcome=outcome, times=replace(recovery.times, finished=now))
    if recovery.mode == "approve":
        who = policy.approval.get(recovery.rung, Approvers())
        return replace(recovery, stage="awaiting_approval", approvals_needed=who.approvals, approvers=who.names)
    if wait > 0:
        return replace(recovery, not_before=now + wait)
    return replace(recovery, stage="commanded", times=replace(recovery.times, commanded=now))


def plan_data(recovery: Recovery, plan: Plan) -> dict[str, Any]:
    """What the audit log keeps of a plan: everything that was weighed."""
    return {
        "mode": recovery.mode,
        "stage": recovery.stage,
        "action": recovery.action,
        "episode": recovery.episode,
        "climbed_from": recovery.climbed_from,
        "incidents": list(recovery.incidents),
        "not_after_step": plan.not_after_step,
        "candidates": [asdict(candidate) for candidate in plan.candidates[:MOST_CANDIDATES]],
        "changes": msgspec.to_builtins(recovery.changes),
        **_decided(recovery),
    }


def _decided(recovery: Recovery) -> dict[str, Any]:
    return {
        "rung": recovery.rung,
        "rule": recovery.rule,
        "considered": msgspec.to_builtins(recovery.considered),
        "stages": msgspec.to_builtins(recovery.stages),
    }


def _recovery_id(alert: Alert, facts: RunFacts, before: int) -> str:
    """Made from the alert's identity, so that it needs no random source; hexadecimal, so that it may name a file."""
    identity = "\0".join((facts.run_id, str(before), str(facts.attempt), alert.fingerprint, alert.starts_at))
    return "r" + hashlib.sha256(identity.encode()).hexdigest()[:15]
