"""For any history of alerts, reports, proofs, ticks, restarts and clocks that are set: budget and cooldown hold, at
most one recovery a run is active, every target is verified and before the onset less the margin, the ladder is only
climbed within an episode, and a person is told at its end."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ladder_scene import LR, prove, with_every_rung
from recovery_scene import RUN, Scene, alert_of, checkpoint, incident

from exporter.detectors.base import Severity
from exporter.protocol import CommandProgress, Rung
from exporter.recovery.engine import WrongStage
from exporter.recovery.facts import LIVE_DETECTORS
from exporter.recovery.policy import DAY_SECONDS, RecoveryPolicy, Trigger
from exporter.recovery.record import COMMANDED, Recovery
from exporter.recovery.rung_settings import Approvers

DETECTORS = ("non_finite", "surge", "memory", *sorted(LIVE_DETECTORS))
LADDERS: list[tuple[Rung, ...]] = [
    ("checkpoint", "config", "version", "infra"),
    ("checkpoint",),
    ("infra", "checkpoint"),
    ("checkpoint", "version", "config"),
]
REPORTS = ["accepted", "stopping", "stopped", "starting", "failed"]
MODES: list[dict[str, str]] = [
    {},
    {"config": "observe"},
    {"config": "approve", "version": "approve"},
    {"checkpoint": "observe"},
    {"checkpoint": "auto"},
]


class AnyLadder(RuleBasedStateMachine):
    """One run with something to do on every rung."""

    @initialize(
        mode=st.sampled_from(["auto", "auto", "approve", "observe"]),
        modes=st.sampled_from(MODES),
        ladder=st.sampled_from(LADDERS),
        budget=st.integers(1, 6),
        cooldown=st.sampled_from([0.0, 600.0]),
        climb=st.sampled_from([0.0, 40.0]),
        margin=st.integers(0, 3),
        guard=st.sampled_from([0, 10, 1000]),
        tries=st.integers(1, 3),
        at_end=st.sampled_from(["leave", "stop"]),
        approvals=st.integers(1, 2),
    )
    def begin(self, **given: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()
        approvals = Approvers(approvals=given["approvals"])
        restart = Trigger(detectors=("memory",), action="restart", agreement=1)
        policy = RecoveryPolicy(
            mode=given["mode"],
            modes=given["modes"],
            ladder=given["ladder"],
            budget_per_day=given["budget"],
            cooldown_seconds=given["cooldown"],
            climb_seconds=given["climb"],
            margin_steps=given["margin"],
            margins={"surge": 5},
            no_progress_steps=given["guard"],
            tries_per_rung=given["tries"],
            at_end=given["at_end"],
            approval={rung: approvals for rung in given["ladder"]},
            triggers=(restart, Trigger(detectors=tuple(name for name in DETECTORS if name != "memory"))),
        )
        self.scene = with_every_rung(Scene(Path(self.folder.name) / "recovery.sqlite", policy))
        self.numbers = 0
        self.set_back = False
        """The clock was set back: what lies between two times says nothing then."""

    @rule(detector=st.sampled_from(DETECTORS), age=st.integers(0, 20), sure=st.booleans())
    def fail(self, detector: str, age: int, sure: bool) -> None:
        """A finding of the attempt that runs, and its alert."""
        self.numbers += 1
        facts = self.scene.facts
        onset = max(1, facts.step - (0 if detector in LIVE_DETECTORS else age))
        found = incident(
            detector, "host_memory" if detector == "memory" else "loss", onset, id=f"i{self.numbers}", step=facts.step,
            attempt=facts.attempt, confidence=1.0 if sure else 0.5, severity=Severity.CRITICAL, opened_at=self.numbers,
        )  # fmt: skip
        others = tuple(one for one in facts.incidents if one.pair != found.pair)
        self.scene.facts = replace(facts, incidents=(*others, found))
        self.scene.engine.on_incident(found, self.scene.facts, self.scene.now)
        self.scene.engine.on_alert(alert_of(found, starts_at=found.id), self.scene.facts, self.scene.now)

    @rule()
    def restart_run(self) -> None:
        """The supervisor carries the command out; the new attempt has what it changes."""
        command = self.scene.engine.pending_command(RUN, self.scene.now)
        if command is None:
            return
        recovery = self.scene.recovery(command.id)
        if command.action == "stop":
            self.scene.facts = replace(self.scene.facts, running=False)
            self.scene.report(recovery, "accepted", "stopped", "succeeded")
            return
        facts = self.scene.facts
        target = facts.step if command.action == "restart" else command.target_step or 0
        self.scene.report(recovery, "accepted", "stopping", "stopped", "starting", target=target)
        self.scene.facts = replace(self.scene.facts, incidents=(), step=target, running=True)
        self.scene.start_attempt(facts.attempt + 1, target)
        newest = replace(self.scene.facts.attempts[-1], changes=command.changes, executor="ray")
        config = {**facts.config, **command.changes.settings}
        version = command.changes.verl_version or facts.verl_version
        newest = replace(newest, config=config, verl_version=version)
        attempts = (*self.scene.facts.attempts[:-1], newest)
        self.scene.facts = replace(
            self.scene.facts, attempts=attempts, config=config, verl_version=version, step=target
        )
        self.scene.report(recovery, "started", "succeeded", target=target)

    @rule(steps=st.integers(1, 6), healthy=st.booleans())
    def train(self, steps: int, healthy: bool) -> None:
        for _ in range(steps):
            facts = self.scene.facts
            self.scene.facts = replace(facts, step=facts.step + 1)
            self.scene.steps(facts.attempt, facts.step + 1, healthy=healthy)

    @rule(ok=st.booleans(), wanted=st.sampled_from([1e-6, 1e-6, 1e-2]))
    def prove_rate(self, ok: bool, wanted: float) -> None:
        prove(self.scene, LR, wanted, ok=ok, reason="no")

    @rule(code=st.sampled_from([0, 1]))
    def die(self, code: int) -> None:
        self.scene.facts = replace(self.scene.facts, running=False)
        self.scene.exit_attempt(self.scene.facts.attempt, code, expected=code == 0)

    @rule(
        state=st.sampled_from(["accepted", "stopping", "stopped", "starting", "failed"]),
        code=st.sampled_from([1, 4, 6]),
    )
    def report(self, state: Any, code: int) -> None:
        command = self.scene.engine.pending_command(RUN, self.scene.now)
        if command is not None:
            said = CommandProgress(
                time=0.0, command_id=command.id, state=state, code=code, target_step=command.target_step
            )
            self.scene.engine.on_progress(RUN, said, self.scene.now, self.scene.known)

    @rule(age=st.integers(0, 5), verified=st.booleans())
    def save(self, age: int, verified: bool) -> None:
        facts = self.scene.facts
        saved = checkpoint(max(1, facts.step - age), verified=verified, attempt=facts.attempt, saved_at=self.scene.now)
        self.scene.facts = replace(facts, checkpoints=(*facts.checkpoints, saved))

    @rule(what=st.sampled_from(["approve", "approve", "refuse", "abort", "acknowledge"]), who=st.sampled_from("ab"))
    def operate(self, what: str, who: str) -> None:
        for recovery in self.scene.engine.recoveries(3):
            try:
                getattr(self.scene.engine, what)(recovery.id, who, self.scene.now)
            except WrongStage:
                continue

    @rule()
    def start_by_hand(self) -> None:
        facts = self.scene.facts
        self.scene.facts = replace(facts, incidents=(), running=True)
        self.scene.start_attempt(facts.attempt + 1, facts.step)
        self.scene.facts = replace(self.scene.facts, step=facts.step)

    @rule(seconds=st.sampled_from([1.0, 45.0, 300.0, 650.0, 5_000.0, 50_000.0]))
    def wait(self, seconds: float) -> None:
        self.scene.now += max(0.0, seconds - 300.0)
        self.scene.tick(min(seconds, 300.0))

    @rule(seconds=st.sampled_from([-3_000.0, 3_000.0, 100_000.0]))
    def set_clock(self, seconds: float) -> None:
        self.set_back = self.set_back or seconds < 0
        self.scene.now += seconds
        self.scene.tick()

    @rule()
    def kill_exporter(self) -> None:
        self.scene.store.close()
        self.scene.restart()

    def recoveries(self) -> list[Recovery]:
        """Oldest first."""
        return self.scene.engine.recoveries(10_000)[::-1] if hasattr(self, "scene") else []

    @invariant()
    def never_two_active_in_a_run(self) -> None:
        assert sum(recovery.active for recovery in self.recoveries()) <= 1

    @invariant()
    def the_budget_holds_in_every_window_of_a_day(self) -> None:
        spent = [one for one in self.recoveries() if one.stage != "aborted" or one.times.command_delivered is not None]
        commanded = [one.times.commanded for one in spent if one.times.commanded is not None]
        for end in () if getattr(self, "set_back", True) else commanded:
            assert sum(end - DAY_SECONDS < at <= end for at in commanded) <= self.scene.policy.budget_per_day

    @invariant()
    def between_two_recoveries_lies_the_cooldown_or_the_wait_before_a_climb(self) -> None:
        ordered = [one for one in self.recoveries() if one.stage != "observed"]
        for before, after in () if getattr(self, "set_back", True) else itertools.pairwise(ordered):
            assert before.times.finished is not None
            assert after.times.planned is not None
            # One that another alert has led to goes on above the one before as well, and has waited for the cooldown.
            same_alert = after.starts_at == before.starts_at
            if after.climbed_from == before.id and before.stage == "failed" and same_alert:
                if after.times.commanded is not None:
                    assert after.times.commanded - before.times.finished >= self.scene.policy.climb_seconds * (
                        after.mode == "auto"
                    )
            elif not after.refused_by_policy:
                assert after.times.planned - before.times.finished >= self.scene.policy.cooldown_seconds

    @invariant()
    def what_is_commanded_was_allowed_on_its_rung(self) -> None:
        for one in self.recoveries():
            if one.times.commanded is not None:
                policy = self.scene.policy
                stops = one.action == "stop"
                mode = policy.mode_off_the_ladder(policy.ladder) if stops else policy.mode_of(one.rung)
                assert mode != "observe"
                enough = len({it.who for it in one.approvals}) >= one.approvals_needed
                assert (mode == one.mode == "auto") or (enough and one.times.approved is not None)

    @invariant()
    def the_target_is_verified_and_before_the_onset_less_the_margin(self) -> None:
        for one in self.recoveries():
            target = one.planned_target_step
            if target is None or one.action != "rollback":
                continue
            saved = [c for c in self.scene.facts.checkpoints if c.step == target and c.attempt <= one.attempt]
            assert any(c.verified for c in saved)
            assert one.not_after_step is not None
            assert target <= one.not_after_step
            # The first of the evidence led to the first plan of the episode; what joined after the plan comes behind.
            cause = one.incidents[0]
            if cause["detector"] not in (*LIVE_DETECTORS, "memory"):
                margin = {"surge": 5}.get(cause["detector"], self.scene.policy.margin_steps)
                assert target < cause["onset"] - margin

    @invariant()
    def within_an_episode_the_ladder_is_only_climbed(self) -> None:
        ladder = self.scene.policy.ladder if hasattr(self, "scene") else ()
        place = {rung: index for index, rung in enumerate(ladder)}
        by_id = {one.id: one for one in self.recoveries()}
        begun = [one for one in by_id.values() if one.stage != "refused" and one.action != "stop"]
        for one in begun:
            same = [other for other in begun if (other.episode or other.id) == (one.episode or one.id)]
            rungs = [place[other.rung] for other in same]
            assert rungs == sorted(rungs)
            assert sum(other.rung == one.rung for other in same if other.stage != "aborted") <= max(
                self.scene.policy.tries_per_rung, 1
            )
            before = by_id.get(one.climbed_from)
            if before is not None:
                restarted = before.action == "restart" and one.action == "rollback"
                assert place[one.rung] > place[before.rung] - restarted
                assert before.climbed_to == one.id

    @invariant()
    def what_failed_is_followed_by_a_climb_or_a_person_is_told(self) -> None:
        every = self.recoveries()
        for one in every:
            if one.stage == "failed" and one.action != "stop":
                assert one.climbed_to or one.considered[-1].rung == "person"
        told = [one for one in every if one.has_result]
        if told and told[-1].stage == "failed":
            expected = not told[-1].climbed_to and not told[-1].acknowledged_by
            assert self.scene.engine.state_of(RUN).failed is expected

    @invariant()
    def a_climb_that_was_begun_has_an_end_of_its_own(self) -> None:
        by_id = {one.id: one for one in self.recoveries()}
        for one in by_id.values():
            if one.climbed_to:
                after = by_id[one.climbed_to]
                assert after.active or after.outcome

    @invariant()
    def success_with_a_changed_rate_has_its_proof(self) -> None:
        for one in self.recoveries():
            changed = {it.name for it in one.changes if it.kind == "setting"}
            if one.stage == "succeeded" and LR in changed:
                proof = next(it for it in one.proofs if it.name == LR)
                assert proof.ok
                assert proof.attempt == one.new_attempt

    @invariant()
    def a_command_is_only_handed_out_for_the_attempt_it_is_meant_for(self) -> None:
        for one in self.recoveries():
            if one.stage in COMMANDED:
                assert one.attempt <= self.scene.facts.attempt

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.scene.store.close()
            self.folder.cleanup()


TestAnyLadder = AnyLadder.TestCase
TestAnyLadder.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
