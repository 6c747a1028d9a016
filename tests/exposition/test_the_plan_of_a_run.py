"""How many steps are planned and when they are done; when a checkpoint was saved, how large it is, how long it took."""

from __future__ import annotations

import pytest
from exporter_scene import Scene
from pages import exposition, samples
from trainer_in_a_scene import Trainer

from exporter.protocol import AttemptStarted, CheckpointSaved, RunFinished, RunStarted

CONFIG = {"trainer.total_training_steps": 50}


def page(scene: Scene) -> dict[str, float]:
    """Samples of the run that have no label besides."""
    found = samples(exposition(scene).render().body.decode())
    return {name: value for (name, labels), value in found.items() if labels == (("run", "r"),)}


def training(scene: Scene, steps: int, **config: object) -> Trainer:
    trainer = Trainer(scene)
    scene.push(events=[RunStarted(time=0.0, config={**CONFIG, **config})])  # type: ignore[dict-item]
    for step in range(1, steps + 1):
        trainer.step(step, seconds=20.0)
    return trainer


def test_the_end_is_foreseen_by_the_time_from_step_to_step(scene: Scene) -> None:
    training(scene, 10)
    shown = page(scene)
    assert shown["verl_training_steps_planned"] == 50
    assert shown["verl_run_eta_seconds"] == pytest.approx(40 * 20.0)
    scene.now += 15.0
    assert page(scene)["verl_run_eta_seconds"] == pytest.approx(40 * 20.0 - 15.0)
    scene.now += 90.0  # this step hangs: the others are still to be done
    assert page(scene)["verl_run_eta_seconds"] == pytest.approx(39 * 20.0)


def test_pauses_between_steps_are_in_the_pace(scene: Scene) -> None:
    trainer = training(scene, 0)
    for step in range(1, 21):
        scene.now += 10.0  # of validation, say
        trainer.step(step, seconds=20.0)
    assert page(scene)["verl_run_eta_seconds"] == pytest.approx(30 * 30.0)


def test_steps_that_waited_in_a_spool_do_not_make_the_run_fast(scene: Scene) -> None:
    trainer = training(scene, 0)
    trainer.offline = True
    for step in range(1, 21):
        trainer.step(step, seconds=20.0)
    trainer.flush()  # all at one moment
    assert page(scene)["verl_run_eta_seconds"] == pytest.approx(30 * 20.0)


def test_an_old_pace_is_forgotten(scene: Scene) -> None:
    trainer = training(scene, 20)
    for step in range(21, 42):
        trainer.step(step, seconds=5.0)
    assert page(scene)["verl_run_eta_seconds"] == pytest.approx(9 * 5.0)


def test_at_the_end_nothing_is_left_and_after_it_nothing_is_foreseen(scene: Scene) -> None:
    training(scene, 50)
    assert page(scene)["verl_run_eta_seconds"] == 0.0
    scene.push(events=[RunFinished(time=0.0, exit_code=0)])
    shown = page(scene)
    assert "verl_run_eta_seconds" not in shown
    assert shown["verl_training_steps_planned"] == 50


def test_a_run_that_goes_beyond_its_plan_has_nothing_left(scene: Scene) -> None:
    training(scene, 60)
    assert page(scene)["verl_run_eta_seconds"] == 0.0


def test_nothing_is_foreseen_where_no_plan_is_known(scene: Scene) -> None:
    for step in range(1, 11):
        scene.now += 20.0
        scene.step(step, time=20.0)
    assert not page(scene).keys() & {"verl_training_steps_planned", "verl_run_eta_seconds"}


def test_nothing_is_foreseen_before_the_pace_is_known(scene: Scene) -> None:
    training(scene, 3)
    assert "verl_run_eta_seconds" not in page(scene)


@pytest.mark.parametrize("first", [6, 11])
def test_a_resumed_attempt_has_a_pace_of_its_own(scene: Scene, first: int) -> None:
    training(scene, 10)
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=2, resume_step=5)])
    trainer = Trainer(scene, name="trainer-2", attempt=2)
    trainer.step(first, seconds=500.0)
    assert "verl_run_eta_seconds" not in page(scene)
    for step in range(first + 1, first + 5):
        trainer.step(step, seconds=8.0)
    assert page(scene)["verl_run_eta_seconds"] == pytest.approx((46 - first) * 8.0)


def test_a_silent_run_has_no_end_in_sight(scene: Scene) -> None:
    training(scene, 10)
    scene.now += 121.0
    assert "verl_run_eta_seconds" not in page(scene)


def test_what_is_known_of_the_newest_checkpoints_is_shown(scene: Scene) -> None:
    shown = exposition(scene)

    def of_checkpoints() -> dict[str, float]:
        found = samples(shown.render().body.decode())
        return {name.removeprefix("verl_checkpoint_"): v for (name, _), v in found.items() if "_checkpoint_" in name}

    scene.step(10)
    assert of_checkpoints() == {}
    first = scene.now
    scene.push(events=[CheckpointSaved(time=1.0, step=10, path="/c/10", verified=True, bytes=5000, save_seconds=1.5)])
    assert of_checkpoints() == {
        "last_saved_step": 10,
        "last_saved_timestamp_seconds": first,
        "last_verified_step": 10,
        "last_verified_timestamp_seconds": first,
        "size_bytes": 5000,
        "save_seconds": 1.5,
        **{"tier_last_step": 10, "tier_last_timestamp_seconds": first, "tier_size_bytes": 5000},
    }
    scene.now += 60.0
    scene.push(
        events=[CheckpointSaved(time=1.0, step=20, path="/c/20", verified=False, save_seconds=9.0, reason="full")]
    )
    assert of_checkpoints() == {
        "last_saved_step": 20,
        "last_saved_timestamp_seconds": first + 60.0,
        "last_verified_step": 10,
        "last_verified_timestamp_seconds": first,
        "save_seconds": 9.0,
        **{"tier_last_step": 10, "tier_last_timestamp_seconds": first, "tier_size_bytes": 5000},
    }


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_duration_of_a_save_is_absent(scene: Scene, seconds: float) -> None:
    scene.push(events=[CheckpointSaved(time=1.0, step=10, path="/c/10", verified=True, save_seconds=seconds)])
    assert "verl_checkpoint_save_seconds" not in page(scene)
    assert page(scene)["verl_checkpoint_last_saved_step"] == 10


def test_checkpoints_are_known_after_a_restart(scene: Scene) -> None:
    scene.push(events=[CheckpointSaved(time=1.0, step=10, path="/c/10", verified=True, bytes=5000, save_seconds=1.5)])
    before = page(scene)
    scene.core.snapshot_all()
    scene.restart()
    after = page(scene)
    for name in ("size_bytes", "save_seconds", "last_saved_timestamp_seconds"):
        assert after[f"verl_checkpoint_{name}"] == before[f"verl_checkpoint_{name}"]
