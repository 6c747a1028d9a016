"""A run that trains, its facts, and an engine whose clock is the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter.detectors.base import Severity
from exporter.protocol import AttemptExited, AttemptStarted, CommandProgress
from exporter.recovery.engine import BLIND_SECONDS, RecoveryEngine
from exporter.recovery.facts import Alert, AttemptFacts, Checkpoint, OpenIncident, RunFacts
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import Decision, Recovery
from exporter.recovery.store import RecoveryStore

RUN = "toy-grpo-1"


def incident(detector: str = "non_finite", signal: str = "loss", onset: int = 50, **fields: object) -> OpenIncident:
    known: dict[str, object] = {
        "id": f"{detector}-{signal}",
        "run_id": RUN,
        "detector": detector,
        "signal": signal,
        "severity": Severity.CRITICAL,
        "attempt": 1,
        "onset": onset,
        "step": onset,
        "confidence": 1.0 if detector == "non_finite" else 0.8,
        "score": 9.0,
        "threshold": 6.0,
        "summary": f"{signal} is bad since step {onset}.",
        "opened_at": 900.0,
    }
    return OpenIncident(**{**known, **fields})  # type: ignore[arg-type]


def checkpoint(step: int, *, verified: bool = True, attempt: int = 1, saved_at: float = 0.0) -> Checkpoint:
    return Checkpoint(
        step=step, path=f"/ckpt/global_step_{step}", attempt=attempt, verified=verified, saved_at=saved_at or step
    )


def alert_of(incident: OpenIncident, *, starts_at: str = "2026-01-01T00:00:00Z", status: str = "firing") -> Alert:
    labels = {
        "alertname": "Verl",
        "run": incident.run_id,
        "detector": incident.detector,
        "signal": incident.signal,
        "severity": "critical",
        "action": "rollback",
    }
    fingerprint = f"fp-{incident.detector}-{incident.signal}"
    return Alert(fingerprint=fingerprint, starts_at=starts_at, status=status, labels=labels)  # type: ignore[arg-type]


@dataclass
class Scene:
    """The engine with a clock that only the test moves, and the facts of one run."""

    path: Path
    policy: RecoveryPolicy
    now: float = 1000.0
    facts: RunFacts = field(
        default_factory=lambda: RunFacts(
            run_id=RUN,
            attempt=1,
            step=50,
            running=True,
            checkpoints=tuple(checkpoint(step) for step in (20, 40, 48)),
            attempts=(AttemptFacts(1),),
        )
    )

    def __post_init__(self) -> None:
        self.store = RecoveryStore(self.path)
        self.engine = RecoveryEngine(self.store, self.policy)

    def known(self) -> RunFacts:
        """The facts at the moment that something is reported."""
        return self.facts

    def restart(self) -> None:
        """As after SIGKILL: nothing is closed in order, and a new engine opens the same file."""
        self.store = RecoveryStore(self.path)
        self.engine = RecoveryEngine(self.store, self.policy)

    def open(self, *incidents: OpenIncident) -> None:
        self.facts = replace(self.facts, incidents=(*self.facts.incidents, *incidents))

    def alert(self, incident: OpenIncident, **how: str) -> Decision:
        return self.engine.on_alert(alert_of(incident, **how), self.facts, self.now)

    def fail_with(self, *incidents: OpenIncident) -> Recovery:
        """Open the incidents and let the first one's alert arrive; the recovery that comes of it."""
        self.open(*incidents)
        decision = self.alert(incidents[0])
        assert decision.recovery_id is not None, decision.reason
        return self.recovery(decision.recovery_id)

    def recovery(self, recovery_id: str) -> Recovery:
        found = self.engine.get(recovery_id)
        assert found is not None
        return found

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes, and the engine is asked so often that it is never blind."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + BLIND_SECONDS / 2)
            self.engine.tick({self.facts.run_id: self.facts}, self.now)

    def report(
        self,
        recovery: Recovery,
        *states: str,
        target: int | None = None,
        detail: str = "",
        code: int | None = None,
        output: Sequence[str] = (),
    ) -> Recovery:
        for state in states:
            self.now += 1
            progress = CommandProgress(
                time=self.now,
                command_id=recovery.id,
                state=state,  # type: ignore[arg-type]
                detail=detail,
                code=code,
                output=list(output),
                target_step=target,
                target_path="" if target is None else f"/ckpt/global_step_{target}",
            )
            self.engine.on_progress(RUN, progress, self.now, self.known)
        return self.recovery(recovery.id)

    def start_attempt(self, number: int, resume_step: int) -> None:
        self.now += 1
        event = AttemptStarted(time=self.now, pid=1, resume_step=resume_step)
        self.engine.on_attempt(RUN, event, number, self.now, self.known)
        attempts = (*self.facts.attempts, AttemptFacts(number, resume_step))
        self.facts = replace(self.facts, attempt=number, step=0, attempts=attempts)

    def exit_attempt(
        self, number: int, exit_code: int, *, expected: bool = False, said: list[str] | None = None
    ) -> None:
        self.now += 1
        event = AttemptExited(time=self.now, exit_code=exit_code, expected=expected, last_output=said or [])
        self.engine.on_attempt(RUN, event, number, self.now, self.known)

    def steps(self, attempt: int, *steps: int, healthy: bool = True) -> None:
        for step in steps:
            self.now += 1
            self.engine.on_step(RUN, attempt, step, healthy, self.now, self.known)

    def carry_out(self, recovery: Recovery, *, attempt: int = 2, steps: int = 3) -> Recovery:
        """All that a supervisor and a healthy new attempt report, to the end."""
        target = recovery.planned_target_step or 0
        self.engine.pending_command(RUN, self.now)
        self.report(recovery, "accepted", "stopping", "stopped", "starting", target=target)
        self.start_attempt(attempt, target)
        self.report(recovery, "started", "succeeded", target=target)
        self.steps(attempt, *range(target + 1, target + 1 + steps))
        return self.recovery(recovery.id)

    def kinds(self) -> list[str]:
        """Kinds of the audit lines, oldest first."""
        return [entry.kind for entry in reversed(self.engine.audit(10_000))]
