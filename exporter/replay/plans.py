"""What recovery would have decided over a past run: the engine of :mod:`exporter.recovery`, told what it would have
been told. Called by ``verl-sentinel replay --policy``.

The engine works in mode ``auto`` and is told of incidents directly, as without Alertmanager. Its plans are carried out
in name only: the past run just goes on. So a recovery is taken to last for as long as what it answers, or what joined
it, is still found in the log; until then further findings belong to it, as they do live. Then it is reported to the
engine as a success, and the cooldown begins. Budget and cooldown count by the run's own time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from exporter.detectors.base import Severity
from exporter.protocol import CommandProgress
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.facts import OpenIncident, RunFacts
from exporter.recovery.plan import Refusal, make_plan
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import AuditEntry, Recovery
from exporter.recovery.store import RecoveryStore
from exporter.replay.past_run import PastRun, Said
from exporter.service.watch import open_incident

WORSE: Final = ("opened", "escalated", "reopened")
NEWEST: Final = 100
"""Lines of the audit log that one row can add, and more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the engine decided on one finding."""

    what: str
    """``planned``, ``attached`` (to the recovery under way), ``agreement`` or ``cooldown`` (it waits), ``budget``,
    ``no_trigger`` or ``answered`` (refused)."""
    reason: str
    step: int
    attempt: int
    at: float
    incident: OpenIncident
    recovery: str = ""
    """Number of the plan that it is, or belongs to, from 1; empty where there is none."""
    action: str = ""
    """Of a plan: ``rollback`` or ``stop``."""
    target_step: int | None = None
    """Of a rollback: the checkpoint."""
    not_after_step: int | None = None
    """Of a plan: the newest step that the findings leave unsuspected."""
    evidence: tuple[OpenIncident, ...] = ()
    """Of a plan: every finding that it rests on."""


class PastPlans:
    """Of one run. ``policy``: its mode and its trigger do not matter here."""

    def __init__(self, policy: RecoveryPolicy) -> None:
        rules = tuple(replace(rule, mode=None, modes=None) for rule in policy.rules)
        acting = replace(policy, mode="auto", trigger="direct", modes={}, rules=rules)
        self._engine = RecoveryEngine(RecoveryStore(":memory:"), acting)
        self._told = self._engine.changes
        self._heard = 0
        """The newest line of the audit log that was told of."""
        self._numbers: dict[str, str] = {}
        self.decisions = 0
        self.plans = 0

    def take(self, run: PastRun, said: Said) -> list[Decision]:
        """What is decided once a row has been judged."""
        worse = [open_incident(change.after) for change in said.changes if change.what in WORSE]
        concerned = bool(self._engine.concerned())
        if not worse and not concerned:
            return []
        facts = run.facts()
        self._end_what_is_over(facts, said.at)
        decisions: list[Decision] = []
        for incident in worse:
            if self._engine.policy_of(facts).action_for(incident) is None:
                decisions += self._no_trigger(incident, facts, said)
            else:
                self._engine.on_incident(incident, facts, said.at)
                decisions += self._heard_of(facts, said, incident)
        if self._engine.state_of(facts.run_id).active is None and self._engine.concerned():
            self._engine.tick({facts.run_id: facts}, said.at)
            decisions += self._heard_of(facts, said, None)
        self.decisions += len(decisions)
        return decisions

    def _no_trigger(self, incident: OpenIncident, facts: RunFacts, said: Said) -> list[Decision]:
        """Why a page triggers nothing; of what is less severe nobody expects that it does."""
        if incident.severity < Severity.CRITICAL:
            return []
        refusal = make_plan(incident, facts, (), self._engine.policy_of(facts), said.at)
        reason = refusal.reason if isinstance(refusal, Refusal) else ""
        return [Decision("no_trigger", reason, said.step, said.attempt, said.at, incident)]

    def _heard_of(self, facts: RunFacts, said: Said, about: OpenIncident | None) -> list[Decision]:
        """What the engine wrote into its audit log since it was last asked."""
        if self._engine.changes == self._told:
            return []
        entries = [entry for entry in self._engine.audit(NEWEST) if entry.id > self._heard]
        self._heard = max([self._heard, *(entry.id for entry in entries)])
        decisions = []
        for entry in sorted(entries, key=lambda entry: entry.id):
            kind = entry.kind.removeprefix("alert_")
            incident = self._incident_of(entry, facts) or about
            if kind == entry.kind or kind in ("resolved", "no_incident", "stale") or incident is None:
                continue  # how far a plan is, and what nobody waits for any more
            recovery = self._engine.get(entry.recovery_id) if entry.recovery_id else None
            if kind == "planned" and recovery is not None:
                decisions.append(self._planned(recovery, facts, said, incident))
            else:
                number = self._numbers.get(entry.recovery_id, "")
                reason = self._spelled(entry.summary)
                decisions.append(Decision(kind, reason, said.step, said.attempt, said.at, incident, number))
        self._told = self._engine.changes
        return decisions

    def _planned(self, recovery: Recovery, facts: RunFacts, said: Said, incident: OpenIncident) -> Decision:
        self.plans += 1
        self._numbers[recovery.id] = str(self.plans)
        self._engine.pending_command(facts.run_id, said.at)  # a supervisor is there and is handed it
        return Decision(
            "planned",
            recovery.reason,
            said.step,
            said.attempt,
            said.at,
            incident,
            recovery=self._numbers[recovery.id],
            action=recovery.action,
            target_step=recovery.planned_target_step,
            not_after_step=recovery.not_after_step,
            evidence=tuple(one for one in facts.incidents if one.key in recovery.incident_keys),
        )

    def _incident_of(self, entry: AuditEntry, facts: RunFacts) -> OpenIncident | None:
        """The finding that a line of the audit log is about."""
        labels: dict[str, Any] = entry.data.get("alert", {}).get("labels", {})
        pair = (labels.get("detector"), labels.get("signal"))
        return next((incident for incident in facts.incidents if incident.pair == pair), None)

    def _spelled(self, text: str) -> str:
        """With the plans' numbers in place of the engine's ids."""
        for recovery_id, number in self._numbers.items():
            text = text.replace(f"recovery {recovery_id}", f"plan {number}")
        return text

    def _end_what_is_over(self, facts: RunFacts, now: float) -> None:
        """A recovery whose findings have gone, or whose trainer was started again, has succeeded."""
        active = self._engine.state_of(facts.run_id).active
        if active is None:
            return
        if facts.attempt == active.attempt and any(one.key in active.incident_keys for one in facts.incidents):
            return
        state: Any = "stopped" if active.action == "stop" else "succeeded"
        told = CommandProgress(time=now, command_id=active.id, state=state, target_step=active.planned_target_step)
        self._engine.on_progress(facts.run_id, told, now)
        first = (active.planned_target_step or 0) + 1
        for step in range(first, first + self._engine.policy_of(facts).success_steps):
            self._engine.on_step(facts.run_id, active.attempt + 1, step, True, now)

    def sentence(self, run: PastRun, name: str) -> str:
        """How many plans there would have been, and of which checkpoints, for a person, at the end."""
        plans = f"{self.plans or 'no'} plan{'' if self.plans == 1 else 's'}"
        others = self.decisions - self.plans
        if run.saves_logged:
            source = f"{run.saves} checkpoints, by the save_checkpoint times in the log"
        elif run.saves:
            source = f"{run.saves} checkpoints, assumed by --save-freq: the log does not say when one was saved"
        else:
            source = "no checkpoint: the log does not say when one was saved, nor does --save-freq"
        decisions = f"{others} other decision{'' if others == 1 else 's'}"
        return f"{name}: in mode auto {plans}, and {decisions}. Taken to be whole: {source}."
