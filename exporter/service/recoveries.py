"""What the recovery engine says of each run, asked again only after its store has changed. Used by ``/metrics`` and the
console, which each keep one: a thousand runs at every scrape are no thousand queries.

    recoveries = Recoveries(core)
    recoveries.refresh()                       # once for each page
    recoveries.of(run_id)                      # as often as wanted
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.protocol import Run
from exporter.recovery.history import budget_left
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import RunState
from exporter.service.core import Core


@dataclass(frozen=True, slots=True)
class RecoveryView:
    """The recoveries of one run."""

    state: RunState
    policy: RecoveryPolicy
    spent: tuple[float, ...] = ()
    """When each was taken from the run's budget."""

    def budget_left(self, now: float) -> int:
        """How many more the policy allows in the 24 hours to ``now``."""
        return budget_left(self.spent, self.policy, now) if self.spent else self.policy.budget_per_day


class Recoveries:
    """Read on the thread that changes the core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changes = -1
        self._with: frozenset[str] | None = frozenset()
        """Runs that have had a recovery; None where the store cannot be read."""
        self._known: dict[str, RecoveryView] = {}
        self._none: dict[int, RecoveryView] = {}
        """Of runs that have had none, by the policy that applies to them."""
        self.audit_counts: Mapping[str, int] = {}
        """Lines of the audit log by kind, as of the newest time that they could be read."""

    def refresh(self) -> None:
        """See whether anything has changed."""
        changes = self._core.engine.changes
        if changes == self._changes and self._with is not None:
            return
        self._known = {}
        try:
            self._with = self._core.engine.runs_with_recoveries()
            self.audit_counts = self._core.engine.audit_counts()
        except sqlite3.Error:
            self._with = None
        self._changes = changes

    def of(self, run_id: str) -> RecoveryView | None:
        """None where the store cannot be read."""
        run = self._core.runs.get(run_id)
        policy = self._core.engine.policy_of(Run(run_id=run_id) if run is None else run.state.identity)
        if self._with is not None and run_id not in self._with:
            return self._none.setdefault(id(policy), RecoveryView(RunState(), policy))
        if run_id not in self._known:
            state = self._core.link.state_of(run_id)
            if state is None:
                return None
            try:
                spent = self._core.engine.spent_times(run_id, policy)
            except sqlite3.Error:
                return None
            self._known[run_id] = RecoveryView(state, policy, spent)
        return self._known[run_id]
