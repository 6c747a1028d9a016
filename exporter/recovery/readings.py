"""What can be asked of the recovery engine: recoveries, audit log, policy, the state of a run. Nothing in here changes
anything. The base of :class:`exporter.recovery.engine.RecoveryEngine`.
"""

from __future__ import annotations

import threading

from exporter.recovery.explaining import RunExplained, explain_run
from exporter.recovery.facts import RunFacts
from exporter.recovery.history import spent_times
from exporter.recovery.policies import Named, Policies
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import AuditEntry, Recovery, RunState
from exporter.recovery.store import RecoveryStore


class Readings:
    """Of one store, under the lock that the engine takes for its changes."""

    def __init__(self, store: RecoveryStore, policy: RecoveryPolicy) -> None:
        self._store = store
        self._policies = Policies(policy)
        self._lock = threading.RLock()

    @property
    def policy(self) -> RecoveryPolicy:
        """The policy as a whole, with its rules."""
        return self._policies.whole

    @property
    def policies(self) -> Policies:
        return self._policies

    def policy_of(self, run: Named) -> RecoveryPolicy:
        """The policy of one run, by its facts or by one of its recoveries."""
        return self._policies.of(run)

    def recoveries(self, limit: int = 100) -> list[Recovery]:
        """Newest first."""
        with self._lock:
            return self._store.newest(limit)

    def get(self, recovery_id: str) -> Recovery | None:
        with self._lock:
            return self._store.get(recovery_id)

    def history(self, run_id: str) -> list[Recovery]:
        """All recoveries of a run, newest first."""
        with self._lock:
            return self._store.history(run_id)

    def audit(
        self,
        limit: int = 100,
        *,
        run_id: str = "",
        recovery_id: str = "",
        kind: str = "",
        before: int | None = None,
    ) -> list[AuditEntry]:
        """Newest first; of one run, recovery or kind where that is given, and older than the line ``before``."""
        with self._lock:
            return self._store.audit(limit, run_id=run_id, recovery_id=recovery_id, kind=kind, before=before)

    def audit_counts(self) -> dict[str, int]:
        """Lines of the audit log by kind, for ``/metrics``. Raises ``sqlite3.Error``."""
        with self._lock:
            return self._store.audit_counts()

    def spent_times(self, run_id: str, policy: RecoveryPolicy | None = None) -> tuple[float, ...]:
        """When the run's recoveries were taken from its budget; ``policy``: of the run. Raises ``sqlite3.Error``."""
        with self._lock:
            history = self._store.history(run_id)
            if policy is None:
                policy = self._policies.of(history[0]) if history else self._policies.whole
            return spent_times(history, policy)

    def explain(self, facts: RunFacts, now: float) -> RunExplained:
        """What would be done now about every open finding of a run, and why. Raises ``sqlite3.Error``."""
        with self._lock:
            return explain_run(self._policies, facts, self._store.history(facts.run_id), now)

    @property
    def changes(self) -> int:
        """Grows with every write to the store: while it stays, so does every answer of :meth:`state_of`."""
        return self._store.changes

    def concerned(self) -> frozenset[str]:
        """Runs of which :meth:`tick` needs the facts: with a recovery under way, or an alert that waits.

        Raises ``sqlite3.Error``.
        """
        with self._lock:
            return self._store.concerned()

    def runs_with_recoveries(self) -> frozenset[str]:
        """For ``/metrics``, which then need not ask for the others. Raises ``sqlite3.Error``."""
        with self._lock:
            return frozenset(self._store.run_ids())

    def state_of(self, run_id: str) -> RunState:
        """For ``/metrics`` and the run's page."""
        with self._lock:
            active = self._store.active(run_id)
            last = self._store.last(run_id)
            result = self._store.last_with_result(run_id)
            outcomes = self._store.outcomes(run_id)
        return RunState(
            active=active,
            last=last,
            failed=result is not None and result.needs_a_person,
            awaiting_approval=active is not None and active.stage == "awaiting_approval",
            in_progress=active is not None and active.stage != "awaiting_approval",
            outcomes=outcomes,
            failed_attempt=result.newest_attempt if result is not None and result.needs_a_person else 0,
        )
