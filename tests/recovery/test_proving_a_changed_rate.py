"""A recovery with a learning rate has succeeded only when the trainer has shown that it is in effect; what it says did
not take effect is no success either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ladder_scene import LR, failure, next_attempt, prove, with_every_rung
from recovery_scene import RUN, Scene

from exporter.protocol import Rung
from exporter.recovery.record import Recovery
from exporter.recovery.rung_settings import is_rate

CLIP = "actor_rollout_ref.actor.clip_ratio"


@pytest.fixture
def scene(scene_with: Callable[..., Scene]) -> Scene:
    return with_every_rung(scene_with(ladder=("config", "version")))


def started(scene: Scene) -> tuple[Recovery, int]:
    scene.tick()
    recovery = scene.fail_with(failure())
    assert recovery.rung == "config"
    return recovery, next_attempt(scene, recovery)


def test_healthy_steps_and_the_proof_are_success_in_either_order(scene_with: Callable[..., Scene]) -> None:
    for proof_first in (True, False):
        scene = with_every_rung(scene_with(ladder=("config",)))
        recovery, number = started(scene)
        if proof_first:
            prove(scene)
        scene.steps(number, 41, 42, 43)
        if not proof_first:
            assert scene.recovery(recovery.id).stage == "verifying"
            prove(scene)
        done = scene.recovery(recovery.id)
        assert (done.stage, done.proofs[0].restored, done.proofs[0].found) == ("succeeded", 1e-2, 1e-6)
        assert f"{LR} = 1e-06 is in effect" in done.outcome


def test_a_proof_that_comes_before_the_supervisor_names_the_attempt_counts(scene: Scene) -> None:
    recovery = scene.fail_with(failure())
    scene.engine.pending_command(RUN, scene.now)
    scene.report(recovery, "accepted", "stopped", "starting", target=40)
    scene.facts = replace(scene.facts, attempt=3, incidents=())
    prove(scene)
    scene.start_attempt(3, 40)
    scene.steps(3, 41, 42, 43)
    assert scene.recovery(recovery.id).stage == "succeeded"


def test_without_a_proof_it_fails_with_a_sentence_and_climbs(scene: Scene) -> None:
    recovery, number = started(scene)
    scene.steps(number, 41, 42, 43, 44)
    scene.tick(scene.policy.deadlines.proof_seconds - 5)
    assert scene.recovery(recovery.id).active
    scene.tick(10)
    failed = scene.recovery(recovery.id)
    assert (failed.stage, failed.failed_by) == ("failed", "unproved")
    assert f"nothing says that {LR} = 1e-06 is in effect" in failed.outcome
    assert scene.recovery(failed.climbed_to).rung == "version"


def test_a_proof_that_says_no_is_quoted(scene: Scene) -> None:
    recovery, number = started(scene)
    prove(scene, ok=False, reason="the scheduler set it back to 0.01")
    scene.steps(number, 41, 42, 43)
    scene.tick(scene.policy.deadlines.proof_seconds + 10)
    assert "the scheduler set it back to 0.01" in scene.recovery(recovery.id).outcome
    assert "setting_not_applied" in scene.kinds()


def test_a_proof_of_another_value_or_of_an_attempt_before_is_none(scene: Scene) -> None:
    recovery, number = started(scene)
    prove(scene, wanted=5e-3)
    scene.steps(number, 41, 42, 43)
    scene.tick(5)
    assert scene.recovery(recovery.id).active
    prove(scene)
    assert scene.recovery(recovery.id).stage == "succeeded"


def test_a_proof_that_is_told_again_writes_one_line(scene: Scene) -> None:
    recovery, _ = started(scene)
    for _ in range(5):
        prove(scene)
    assert scene.kinds().count("setting_proved") == 1
    assert len(scene.recovery(recovery.id).proofs) == 1


def test_a_run_that_ends_healthy_but_unproved_has_not_recovered(scene: Scene) -> None:
    recovery, number = started(scene)
    scene.steps(number, 41)
    scene.exit_attempt(number, 0, expected=True)
    assert scene.recovery(recovery.id).failed_by == "unproved"


def test_a_setting_that_verl_takes_up_by_itself_needs_no_proof(scene: Scene) -> None:
    first, second = scene.facts.attempts
    good, bad = {**first.config, CLIP: 0.2, LR: 1e-6}, {**second.config, CLIP: 0.9, LR: 1e-6}
    attempts = (replace(first, config=good), replace(second, config=bad))
    scene.facts = replace(scene.facts, config=bad, attempts=attempts)
    recovery, number = started(scene)
    assert recovery.protocol_changes.settings == {CLIP: 0.2}
    scene.steps(number, 41, 42, 43)
    assert scene.recovery(recovery.id).stage == "succeeded"


@pytest.mark.parametrize(
    ("key", "rate"),
    [(LR, True), ("optim.lr", True), ("critic.optim.lr", True), ("optim.lr_scheduler", False), ("algorithm.lr", False)],
)
def test_which_keys_are_learning_rates(key: str, rate: bool) -> None:
    assert is_rate(key) is rate


def test_a_rate_of_an_earlier_rung_is_proved_again_on_the_next(scene: Scene) -> None:
    """Every attempt restores the optimizer anew: what was in effect in the attempt before may not be in this one."""
    first, number = started(scene)
    prove(scene)
    relapse_in(scene, number)
    second = scene.recovery(scene.recovery(first.id).climbed_to)
    assert (second.rung, second.protocol_changes.settings) == ("version", {LR: 1e-6})
    number = next_attempt(scene, second)
    scene.steps(number, 41, 42, 43)
    scene.tick(5)
    assert scene.recovery(second.id).active, "nothing says that the rate is in effect in the new attempt"
    prove(scene)
    assert scene.recovery(second.id).stage == "succeeded"


def relapse_in(scene: Scene, number: int) -> None:
    found = failure(number, onset=42, opened_at=scene.now)
    scene.facts = replace(scene.facts, incidents=(found,), step=found.onset)
    scene.engine.on_incident(found, scene.facts, scene.now)


@pytest.mark.parametrize(
    ("rung", "name", "wanted", "words"),
    [
        ("version", "verl_version", "0.8.0", "verl 0.8.0 does not run: it was not so"),
        ("infra", "exclude", "node-b/GPU-1", "node-b/GPU-1 is not left out: it was not so"),
    ],
)
def test_a_change_that_the_trainer_says_did_not_take_effect_is_no_success(
    scene_with: Callable[..., Scene], rung: Rung, name: str, wanted: str, words: str
) -> None:
    scene = with_every_rung(scene_with(ladder=(rung,)))
    scene.tick()
    recovery = scene.fail_with(failure())
    assert recovery.rung == rung
    number = next_attempt(scene, recovery)
    prove(scene, name, wanted, ok=False, reason="it was not so")
    scene.steps(number, 41, 42, 43)
    scene.tick(scene.policy.deadlines.proof_seconds + 10)
    failed = scene.recovery(recovery.id)
    assert (failed.stage, failed.failed_by) == ("failed", "unproved")
    assert words in failed.outcome


def test_of_a_version_no_word_is_needed(scene_with: Callable[..., Scene]) -> None:
    scene = with_every_rung(scene_with(ladder=("version",)))
    recovery = scene.fail_with(failure())
    scene.steps(next_attempt(scene, recovery), 41, 42, 43)
    assert scene.recovery(recovery.id).stage == "succeeded"


def test_a_setting_that_the_trainer_says_is_another_is_no_success(scene: Scene) -> None:
    first, second = scene.facts.attempts
    good, bad = {**first.config, CLIP: 0.2, LR: 1e-6}, {**second.config, CLIP: 0.9, LR: 1e-6}
    attempts = (replace(first, config=good), replace(second, config=bad))
    scene.facts = replace(scene.facts, config=bad, attempts=attempts)
    recovery, number = started(scene)
    prove(scene, CLIP, 0.2, ok=False, reason="the trainer's configuration has another value, or none")
    scene.steps(number, 41, 42, 43)
    scene.tick(scene.policy.deadlines.proof_seconds + 10)
    failed = scene.recovery(recovery.id)
    assert failed.failed_by == "unproved"
    assert f"{CLIP} = 0.2 is not in effect: the trainer's configuration has another value" in failed.outcome


@pytest.mark.parametrize("ends", [False, True])
def test_batches_that_were_not_skipped_are_told_and_no_failure(scene_with: Callable[..., Scene], ends: bool) -> None:
    scene = with_every_rung(scene_with(ladder=("checkpoint",), skip_steps=100))
    scene.facts = replace(scene.facts, step=47)
    recovery = scene.fail_with(failure())
    assert recovery.protocol_changes.skip_steps == 7
    number = next_attempt(scene, recovery)
    prove(scene, "data.skip_steps", 7, ok=False, reason="the epoch ends before them")
    scene.steps(number, *((41,) if ends else (41, 42, 43)))
    if ends:
        scene.exit_attempt(number, 0, expected=True)
    done = scene.recovery(recovery.id)
    assert done.stage == "succeeded"
    assert done.outcome.endswith(
        "; the batches that led into the failure were not skipped: the epoch ends before them."
    )
    assert (done.proofs[0].name, done.proofs[0].ok) == ("data.skip_steps", False)
