"""Which checkpoint a rollback goes to, and what happens when there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recovery_scene import RUN, Scene, checkpoint, incident

from exporter.recovery.facts import AttemptFacts, Checkpoint, RunFacts
from exporter.recovery.plan import Plan, make_plan
from exporter.recovery.policy import RecoveryPolicy, Trigger

POLICY = RecoveryPolicy(mode="auto", margin_steps=2)


def plan_for(*checkpoints: Checkpoint, onset: int = 50, detector: str = "non_finite", **facts: object) -> Plan:
    found = incident(detector, "loss", onset, attempt=facts.get("attempt", 1))
    known: dict[str, object] = {"run_id": RUN, "attempt": 1, "step": onset, "running": True, "incidents": (found,)}
    plan = make_plan(found, RunFacts(**{**known, "checkpoints": checkpoints, **facts}), [], POLICY, 1000.0)  # type: ignore[arg-type]
    assert isinstance(plan, Plan)
    return plan


def target_of(plan: Plan) -> int | None:
    return None if plan.target is None else plan.target.step


def test_the_newest_checkpoint_before_the_onset_less_the_margin_is_taken() -> None:
    plan = plan_for(*(checkpoint(step) for step in (40, 46, 47, 48, 49, 50, 55)))
    assert (target_of(plan), plan.not_after_step) == (47, 47)


def test_an_unverified_checkpoint_is_passed_over_and_the_reason_is_kept() -> None:
    bad = replace(checkpoint(44, verified=False), reason="model.safetensors is 3 bytes short")
    plan = plan_for(checkpoint(40), bad)
    assert target_of(plan) == 40
    assert "3 bytes short" in plan.candidates[0].reason


def test_the_earliest_onset_of_all_critical_findings_counts() -> None:
    late, early = incident(onset=50), incident("surge", "kl", onset=31)
    facts = RunFacts(
        run_id=RUN, attempt=1, step=50, running=True, checkpoints=(checkpoint(30), checkpoint(28), checkpoint(45)),
        incidents=(late, early),
    )  # fmt: skip
    plan = make_plan(late, facts, [], POLICY, 1000.0)
    assert isinstance(plan, Plan)
    assert (target_of(plan), plan.onset) == (28, 31)


@pytest.mark.parametrize("detector", ["stalled_phase", "trainer_exited", "silent_run", "rollout_failures"])
def test_a_live_failure_does_not_spoil_the_weights_so_the_newest_verified_counts(detector: str) -> None:
    assert target_of(plan_for(checkpoint(40), checkpoint(49), checkpoint(50), onset=50, detector=detector)) == 50


@pytest.mark.parametrize(("detector", "signal"), [("memory", "gpu_memory"), ("step_time", "step_time")])
def test_a_run_that_has_been_slow_or_filling_up_for_long_loses_no_sound_checkpoint(detector: str, signal: str) -> None:
    policy = RecoveryPolicy(mode="auto", triggers=(Trigger(detectors=(detector,)),))
    found = incident(detector, signal, onset=20, step=50, confidence=1.0)
    saved = (checkpoint(10), checkpoint(40), checkpoint(50), checkpoint(51))
    facts = RunFacts(run_id=RUN, attempt=1, step=50, running=True, checkpoints=saved, incidents=(found,))
    plan = make_plan(found, facts, [], policy, 1000.0)
    assert isinstance(plan, Plan)
    assert (target_of(plan), plan.onset) == (50, 20)


def test_a_live_failure_beside_a_step_finding_keeps_the_stricter_limit() -> None:
    crash, nan = incident("trainer_exited", "process", onset=51), incident(onset=49)
    facts = RunFacts(
        run_id=RUN, attempt=1, step=50, running=False, checkpoints=(checkpoint(45), checkpoint(50)),
        incidents=(crash, nan),
    )  # fmt: skip
    plan = make_plan(crash, facts, [], POLICY, 1000.0)
    assert isinstance(plan, Plan)
    assert target_of(plan) == 45


def test_a_step_saved_again_after_a_resume_replaces_the_old_report() -> None:
    old, again = checkpoint(40), checkpoint(40, attempt=2, verified=False)
    attempts = (AttemptFacts(1), AttemptFacts(2, 30))
    plan = plan_for(again, checkpoint(30), old, attempt=2, attempts=attempts)
    assert target_of(plan) == 30


def test_what_a_former_attempt_saved_after_the_step_it_was_left_at_is_never_a_target() -> None:
    attempts = (AttemptFacts(1), AttemptFacts(2, 20))
    plan = plan_for(checkpoint(20), checkpoint(40), checkpoint(25, attempt=2), attempt=2, attempts=attempts)
    assert target_of(plan) == 25
    assert "left at step 20" in next(c.reason for c in plan.candidates if c.step == 40)


def test_what_an_attempt_after_the_onset_saved_never_counts() -> None:
    plan = plan_for(checkpoint(20), checkpoint(40, attempt=2))
    assert target_of(plan) == 20


def test_without_an_eligible_checkpoint_the_run_is_stopped_and_a_person_is_told(scene: Scene) -> None:
    scene.facts = replace(scene.facts, checkpoints=(checkpoint(49), checkpoint(20, verified=False)))
    recovery = scene.fail_with(incident(onset=50))
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert (command.action, command.target_step) == ("stop", None)
    recovery = scene.report(recovery, "accepted", "stopping", "stopped", "succeeded")
    assert recovery.stage == "failed"
    assert "no verified checkpoint" in recovery.outcome
    assert scene.engine.pending_command(RUN, scene.now) is None
    assert scene.engine.state_of(RUN).failed


def test_a_trigger_that_asks_for_a_stop_succeeds_with_the_stop(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(triggers=(Trigger(detectors=("non_finite",), action="stop"),))
    recovery = scene.report(scene.fail_with(incident()), "accepted", "stopping", "stopped")
    assert (recovery.stage, recovery.action) == ("succeeded", "stop")
    assert not scene.engine.state_of(RUN).failed


def test_the_command_names_the_detectors_for_the_supervisor(scene: Scene) -> None:
    scene.fail_with(incident("stalled_phase", "gen", onset=51))
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert command.reason.startswith("stalled_phase on gen: ")


def test_the_supervisor_may_not_go_beyond_the_target(scene: Scene) -> None:
    recovery = scene.fail_with(incident(onset=45))
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert (command.target_step, command.not_after_step) == (40, 40)
    assert recovery.not_after_step == 43


@given(
    saved=st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(1, 3)), max_size=8),
    onsets=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    margin=st.integers(0, 3),
    resumed=st.integers(0, 10),
)
def test_for_any_past_the_target_is_verified_on_the_course_and_before_every_onset_less_the_margin(
    saved: list[tuple[int, bool, int]], onsets: list[int], margin: int, resumed: int
) -> None:
    checkpoints = tuple(
        checkpoint(step, verified=verified, attempt=attempt, saved_at=float(index))
        for index, (step, verified, attempt) in enumerate(saved, 1)
    )
    incidents = tuple(incident("non_finite", f"signal-{index}", onset, attempt=2) for index, onset in enumerate(onsets))
    attempts = (AttemptFacts(1), AttemptFacts(2, resumed))
    facts = RunFacts(
        run_id=RUN, attempt=2, step=60, running=True, checkpoints=checkpoints, attempts=attempts, incidents=incidents
    )
    plan = make_plan(incidents[0], facts, [], RecoveryPolicy(margin_steps=margin), 1000.0)
    assert isinstance(plan, Plan)

    def sound(candidate: Checkpoint) -> bool:
        newest = max((c for c in checkpoints if c.step == candidate.step), key=lambda c: (c.attempt, c.saved_at))
        on_course = candidate.attempt == 2 or (candidate.attempt == 1 and candidate.step <= resumed)
        before = 1 <= candidate.step < min(onsets) - margin
        return newest is candidate and candidate.verified and on_course and before

    assert target_of(plan) == max((c.step for c in checkpoints if sound(c)), default=None)
    assert plan.without_target == (plan.target is None)
