"""The counters of the exporter's HTTP face, for ``/metrics``. Filled by the app."""

from __future__ import annotations

from dataclasses import dataclass, field


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

    def reload_failed(self, what: str) -> None:
        self.reload_failures[what] += 1

    def reject(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
