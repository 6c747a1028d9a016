"""The recovery engine: takes alerts and the supervisor's reports, keeps one durable recovery a run, hands out its command.

Called by ``exporter.service`` (webhook, ingest, push answer, operator API) and by the app's one-second tick. It reads no
clock: every call brings ``now`` in Unix seconds of the exporter's clock. Every call is one transaction, and every call is
idempotent, so the journal may be replayed into it after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.protocol import AttemptExited, AttemptStarted, Command, CommandProgress
from exporter.recovery.facts import Alert, OpenIncident, RunFacts
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import AuditEntry, Decision, Recovery, RunState
from exporter.recovery.store import RecoveryStore


class RecoveryEngine:
    """Thread-safe; no method blocks for longer than one SQLite transaction."""

    def __init__(self, store: RecoveryStore, policy: RecoveryPolicy) -> None: ...

    def on_alert(self, alert: Alert, facts: RunFacts | None, now: float) -> Decision:
        """One alert of a webhook; ``facts`` is None for a run that the exporter does not know. Answer 2xx after it."""
        raise NotImplementedError

    def on_incident(self, incident: OpenIncident, facts: RunFacts, now: float) -> Decision | None:
        """An incident was opened or became worse. In direct mode it triggers; else pending alerts are judged again."""
        raise NotImplementedError

    def on_progress(self, run_id: str, progress: CommandProgress, now: float) -> None:
        """The supervisor says how far it is with a command."""
        raise NotImplementedError

    def on_attempt(self, run_id: str, event: AttemptStarted | AttemptExited, attempt: int, now: float) -> None:
        """The supervisor says that attempt ``attempt`` (of the batch's run) started or exited."""
        raise NotImplementedError

    def on_step(self, run_id: str, attempt: int, step: int, healthy: bool, now: float) -> None:
        """A finished step; ``healthy`` when no step detector's verdict of it is critical. Cheap without a recovery."""
        raise NotImplementedError

    def pending_command(self, run_id: str, now: float) -> Command | None:
        """The command to put into the answer to the supervisor's push (role ``supervisor`` only)."""
        raise NotImplementedError

    def approve(self, recovery_id: str, who: str, now: float) -> Recovery:
        """Raises ``KeyError`` for an unknown id, ``WrongStage`` (a sentence) if it does not wait for approval."""
        raise NotImplementedError

    def refuse(self, recovery_id: str, who: str, now: float) -> Recovery:
        """As :meth:`approve`; nothing is commanded, and the incidents behind it trigger no other recovery."""
        raise NotImplementedError

    def acknowledge(self, recovery_id: str, who: str, now: float) -> Recovery:
        """A person has seen that it failed: ``verl_recovery_failed`` goes back to 0. Same errors."""
        raise NotImplementedError

    def tick(self, facts_by_run: Mapping[str, RunFacts], now: float) -> None:
        """Once a second: deadlines, alerts that wait for agreement or cooldown, plans whose incidents are gone."""
        raise NotImplementedError

    def recoveries(self, limit: int = 100) -> list[Recovery]:
        """Newest first."""
        raise NotImplementedError

    def get(self, recovery_id: str) -> Recovery | None:
        raise NotImplementedError

    def audit(self, limit: int = 100) -> list[AuditEntry]:
        """Newest first."""
        raise NotImplementedError

    def state_of(self, run_id: str) -> RunState:
        raise NotImplementedError
