"""The counters of the exporter's HTTP face, for ``/metrics``. Filled by the app."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Ingest:
    """What came in, and what was not taken."""

    rejected: dict[str, int] = field(default_factory=dict)
    """Refused requests by reason."""
    seconds: float = 0.0
    """Time from a push's arrival to its answer, summed over ``answered``."""
    answered: int = 0
    reload_failures: dict[str, int] = field(default_factory=lambda: {"tokens": 0, "certificate": 0})
    """Times that a changed file could not be taken over, so that what was read before stays in force."""

    notifications: dict[tuple[str, Literal["delivered", "failed"]], int] = field(default_factory=dict)
    """Messages handed to targets of ``POST /api/v1/notify``, by target and what became of it."""

    def notifies(self, target: str) -> None:
        """There is such a target: its counters begin at 0."""
        self.notifications |= {(target, "delivered"): 0, (target, "failed"): 0}

    def notified(self, target: str, outcome: Literal["delivered", "failed"]) -> None:
        self.notifications[target, outcome] += 1

    def reload_failed(self, what: str) -> None:
        self.reload_failures[what] += 1

    def reject(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
