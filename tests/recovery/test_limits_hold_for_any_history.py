"""For any sequence of failures, reports and restarts: budget, cooldown, one recovery a run, and only sound targets."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from recovery_scene import RUN, Scene, alert_of, checkpoint, incident

from exporter.detectors.base import Severity
from exporter.recovery.facts import LIVE_DETECTORS, OpenIncident
from exporter.recovery.policy import DAY_SECONDS, RecoveryPolicy
from exporter.recovery.record import Recovery

DETECTORS = ("non_finite", "surge", "gradient_instability", *sorted(LIVE_DETECTORS))


class AnyHistory(RuleBasedStateMachine):
    """What the outside world may do in any order, and what must never come of it."""

    @initialize(
        mode=st.sampled_from(["auto", "approve", "observe"]),
        trigger=st.sampled_from(["alertmanager", "direct"]),
        budget=st.integers(1, 3),
        cooldown=st.sampled_from([0.0, 600.0, 40_000.0]),
        margin=st.integers(0, 3),
        agreement=st.integers(1, 3),
    )
    def begin(self, *, mode: str, trigger: str, budget: int, cooldown: float, margin: int, agreement: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        policy = RecoveryPolicy(
            mode=mode, trigger=trigger, budget_per_day=budget, cooldown_seconds=cooldown, margin_steps=margin,
            agreement=agreement,
        )  # type: ignore[arg-type]  # fmt: skip
        self.scene = Scene(Path(self.folder.name) / "recovery.sqlite", policy)
        self.numbers = 0

    @rule(detector=st.sampled_from(DETECTORS), signal=st.sampled_from(["kl", "loss"]), age=st.integers(0, 30),
          critical=st.booleans(), sure=st.booleans())  # fmt: skip
    def fail(self, detector: str, signal: str, age: int, critical: bool, sure: bool) -> None:
        self.numbers += 1
        facts = self.scene.facts
        found = incident(
            detector, signal, max(1, facts.step - age), id=f"i{self.numbers}", attempt=facts.attempt,
            confidence=1.0 if sure else 0.5, severity=Severity.CRITICAL if critical else Severity.WARNING,
        )  # fmt: skip
        others = tuple(i for i in facts.incidents if i.pair != found.pair)
        self.scene.facts = replace(facts, incidents=(*others, found))
        self.scene.engine.on_incident(found, self.scene.facts, self.scene.now)

    @rule(onset=st.integers(0, 10), detector=st.sampled_from(["non_finite", "trainer_exited"]))
    def break_down(self, onset: int, detector: str) -> None:
        """A failure that is certain, and its alert."""
        self.fail(detector, "loss", onset, critical=True, sure=True)
        found = self.scene.facts.incidents[-1]
        self.scene.engine.on_alert(alert_of(found, starts_at=found.id), self.scene.facts, self.scene.now)

    @rule()
    def recover(self) -> None:
        """The supervisor and the new attempt do all that is asked, to the end."""
        command = self.scene.engine.pending_command(RUN, self.scene.now)
        if command is None:
            return
        if command.target_step is None:
            self.scene.report(self.scene.recovery(command.id), "accepted", "stopped")
            return
        self.restart_run()
        self.scene.facts = replace(self.scene.facts, incidents=())
        self.train(4, healthy=True)

    @rule(which=st.integers(0, 5), starts=st.integers(0, 3), status=st.sampled_from(["firing", "firing", "resolved"]))
    def alert(self, which: int, starts: int, status: str) -> None:
        incidents = self.scene.facts.incidents
        found: OpenIncident = incidents[which % len(incidents)] if incidents else incident("surge", "nothing")
        alert = alert_of(found, starts_at=str(starts), status=status)
        self.scene.engine.on_alert(alert, self.scene.facts, self.scene.now)

    @rule(steps=st.integers(1, 12), healthy=st.booleans())
    def train(self, steps: int, healthy: bool) -> None:
        for _ in range(steps):
            facts = self.scene.facts
            self.scene.facts = replace(facts, step=facts.step + 1)
            self.scene.steps(facts.attempt, facts.step + 1, healthy=healthy)

    @rule(age=st.integers(0, 5), verified=st.booleans())
    def save(self, age: int, verified: bool) -> None:
        facts = self.scene.facts
        saved = checkpoint(max(1, facts.step - age), verified=verified, attempt=facts.attempt, saved_at=self.scene.now)
        self.scene.facts = replace(facts, checkpoints=(*facts.checkpoints, saved))

    @rule(states=st.lists(st.sampled_from(["accepted", "stopping", "stopped", "starting", "failed"]), max_size=3))
    def report(self, states: list[str]) -> None:
        command = self.scene.engine.pending_command(RUN, self.scene.now)
        if command is not None:
            self.scene.report(self.scene.recovery(command.id), *states, target=command.target_step)

    @rule()
    def restart_run(self) -> None:
        command = self.scene.engine.pending_command(RUN, self.scene.now)
        if command is not None and command.target_step is not None:
            self.scene.start_attempt(self.scene.facts.attempt + 1, command.target_step)
            self.scene.facts = replace(self.scene.facts, step=command.target_step)

    @rule(yes=st.booleans())
    def operate(self, yes: bool) -> None:
        for recovery in self.scene.engine.recoveries():
            if recovery.stage == "awaiting_approval":
                (self.scene.engine.approve if yes else self.scene.engine.refuse)(recovery.id, "ada", self.scene.now)

    @rule(keep=st.integers(0, 3))
    def resolve(self, keep: int) -> None:
        self.scene.facts = replace(self.scene.facts, incidents=self.scene.facts.incidents[:keep])

    @rule(seconds=st.sampled_from([1.0, 300.0, 550.0, 5_000.0, 50_000.0]))
    def wait(self, seconds: float) -> None:
        self.scene.now += max(0.0, seconds - 600.0)
        self.scene.tick(min(seconds, 600.0))

    @rule()
    def kill_exporter(self) -> None:
        self.scene.store.close()
        self.scene.restart()

    def recoveries(self) -> list[Recovery]:
        return self.scene.engine.recoveries(limit=10_000) if hasattr(self, "scene") else []

    @invariant()
    def never_two_active_in_a_run(self) -> None:
        assert sum(recovery.active for recovery in self.recoveries()) <= 1

    @invariant()
    def the_budget_holds_in_every_window_of_a_day(self) -> None:
        commanded = [r.times.commanded for r in self.recoveries() if r.times.commanded is not None]
        for end in commanded:
            assert sum(end - DAY_SECONDS < at <= end for at in commanded) <= self.scene.policy.budget_per_day

    @invariant()
    def the_cooldown_lies_between_two_recoveries(self) -> None:
        ordered = [r for r in reversed(self.recoveries()) if r.stage != "observed"]
        for before, after in itertools.pairwise(ordered):
            assert before.times.finished is not None
            assert after.times.planned is not None
            assert after.times.planned - before.times.finished >= self.scene.policy.cooldown_seconds

    @invariant()
    def nothing_is_commanded_unless_the_mode_allows(self) -> None:
        for recovery in self.recoveries():
            if recovery.times.commanded is not None:
                assert recovery.mode == "auto" or recovery.times.approved is not None

    @invariant()
    def the_target_is_verified_and_before_the_onset_less_the_margin(self) -> None:
        for recovery in self.recoveries():
            target = recovery.planned_target_step
            if target is None:
                continue
            saved = [c for c in self.scene.facts.checkpoints if c.step == target and c.attempt <= recovery.attempt]
            assert any(c.verified for c in saved)
            # The first of the evidence is the incident of the alert; what joined after the plan comes behind it.
            cause = recovery.incidents[0]
            assert recovery.onset is not None
            assert target <= recovery.onset
            if cause["detector"] not in LIVE_DETECTORS:
                assert target < cause["onset"] - self.scene.policy.margin_steps

    @invariant()
    def an_incident_is_answered_once(self) -> None:
        planned = [key for r in self.recoveries() for key in r.incident_keys[:1]]
        assert len(planned) == len(set(planned))

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.scene.store.close()
            self.folder.cleanup()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
