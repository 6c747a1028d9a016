"""Lines of the audit log as pages show them: the kind in words, and the person who decided. Used by the pages that list
some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.console.languages import N_
from exporter.console.recovery_shown import STAGES
from exporter.recovery.record import AuditEntry

KINDS: Final[Mapping[str, str]] = {
    **STAGES,
    "approved": N_("Approved"),
    "climbed": N_("Next rung"),
    "followed": N_("Followed by another"),
    "late_report": N_("Reported late"),
    "abort_reported": N_("Abort: reported"),
    "abort_overdue": N_("Abort: no answer"),
    "acknowledged": N_("Acknowledged"),
    "forgotten": N_("Run forgotten"),
    "alert_planned": N_("Alert: planned"),
    "alert_attached": N_("Alert: joined a recovery"),
    "alert_answered": N_("Alert: answered before"),
    "alert_aborted": N_("Alert: left to people"),
    "alert_agreement": N_("Alert: waits for a second signal"),
    "alert_cooldown": N_("Alert: waits for the cooldown"),
    "alert_budget": N_("Alert: budget spent"),
    "alert_no_trigger": N_("Alert: triggers nothing"),
    "alert_stale": N_("Alert: of an older attempt"),
    "alert_no_action": N_("Alert: asks for nothing"),
    "alert_no_incident": N_("Alert: nothing is open"),
    "alert_unknown_run": N_("Alert: run not known"),
    "alert_resolved": N_("Alert: over"),
}


def words_of(kind: str) -> str:
    """The kind as a person reads it; its own name where it has no other."""
    return KINDS.get(kind, kind.replace("_", " "))


def person_of(entry: AuditEntry) -> str:
    """Who decided; empty for what the exporter did by itself.

    >>> said = {"resolved_by": "ada"}
    >>> person_of(AuditEntry(id=1, at=0.0, run_id="r", recovery_id="", kind="refused", summary="", data=said))
    'ada'
    """
    for name in ("who", "resolved_by", "aborted_by", "acknowledged_by"):
        found = entry.data.get(name)
        if isinstance(found, str) and found:
            return found
    return ""


def about(entry: AuditEntry) -> tuple[str, str]:
    """Name of the alert that a line is about, or of its detector, and the signal; both empty for other lines."""
    alert = entry.data.get("alert")
    labels = alert.get("labels") if isinstance(alert, dict) else None
    if not isinstance(labels, dict):
        return "", ""
    return str(labels.get("alertname") or labels.get("detector") or ""), str(labels.get("signal") or "")


@dataclass(frozen=True, slots=True)
class Folded:
    """The newest of lines that say the same, and how many they are."""

    line: AuditEntry
    count: int


def folded(lines: Iterable[AuditEntry]) -> list[Folded]:
    """Lines that say the same of the same, each once, at the place of the first."""
    found: dict[tuple[str, ...], Folded] = {}
    for line in lines:
        says = (line.kind, line.recovery_id, person_of(line), line.summary, *about(line))
        known = found.get(says)
        found[says] = replace(known, count=known.count + 1) if known is not None else Folded(line, 1)
    return list(found.values())
