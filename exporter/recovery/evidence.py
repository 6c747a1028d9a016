"""First stage of a decision: which findings speak for it, and whether they are enough. Pure; called by
:mod:`exporter.recovery.plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from exporter.coupling import witnesses
from exporter.recovery.facts import OpenIncident, RunFacts
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import StageResult, spell_numbers

MOST_SAID: Final = 20
"""Findings or checkpoints that one stage names in the record; there are rarely more than a handful."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a recovery."""

    incidents: tuple[OpenIncident, ...]
    """The one that was asked about is first."""
    witnesses: int
    """Distinct signals that agree."""
    needed: int
    certain: bool
    """One of them needs no second signal."""
    left_out: tuple[str, ...] = ()
    """Open findings of the run that do not count, a sentence each."""

    @property
    def enough(self) -> bool:
        return self.certain or self.witnesses >= self.needed

    def result(self) -> StageResult:
        """What goes into the record."""
        if self.certain:
            how = "one of them is certain"
        else:
            how = f"{self.witnesses} of {self.needed} signals that have to agree"
        said = f"{len(self.incidents)} finding{'' if len(self.incidents) == 1 else 's'}: {how}."
        return StageResult(stage="evidence", result=said, refused=self.left_out[:MOST_SAID])


def gather(incident: OpenIncident, facts: RunFacts, policy: RecoveryPolicy) -> Evidence:
    """The incident and what else is open of its attempt."""
    incidents = evidence_for(incident, facts, policy)
    taken = {one.key for one in incidents}
    left_out = tuple(_why_not(other, incident, policy) for other in facts.incidents if other.key not in taken)
    return Evidence(
        incidents,
        witnesses(incidents),
        policy.agreement_for(incident),
        any(policy.is_certain(one) for one in incidents),
        left_out,
    )


def _why_not(other: OpenIncident, incident: OpenIncident, policy: RecoveryPolicy) -> str:
    name = f"{other.detector} on {other.signal} ({other.severity.label})"
    if other.attempt != incident.attempt:
        return f"{name} is of attempt {other.attempt}."
    if policy.action_for(other) is None:
        return f"{name} may trigger nothing by the policy."
    return f"{name} is one more of a detector and signal that counts already."


def evidence_for(incident: OpenIncident, facts: RunFacts, policy: RecoveryPolicy) -> tuple[OpenIncident, ...]:
    """The incident and all others of its attempt that the policy lets trigger, one for each (detector, signal)."""
    by_pair = {incident.pair: incident}
    for other in facts.incidents:
        if other.attempt == incident.attempt and policy.action_for(other) is not None:
            by_pair.setdefault(other.pair, other)
    return tuple(by_pair.values())


def describe(evidence: Sequence[OpenIncident]) -> str:
    """The findings as a person reads them. The detectors' names are in it: the supervisor looks for them there."""
    return "; ".join(f"{incident.detector} on {incident.signal}: {incident.summary}" for incident in evidence)


def incident_data(incident: OpenIncident) -> dict[str, Any]:
    """The verdict's numbers as they go into the record and the audit log."""
    data: dict[str, Any] = spell_numbers({**asdict(incident), "severity": incident.severity.label})
    return data
