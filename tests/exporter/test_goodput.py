"""Where a run's time went: productive seconds, and seconds lost to restarts, stalls and replayed steps."""

from __future__ import annotations

import doctest

import pytest
from exporter_scene import Scene
from trainer_in_a_scene import HOUR, Trainer, first_step, run_began, totals

from exporter.protocol import AttemptExited, AttemptStarted, ClosedPhase, PhaseReport, Step
from exporter.service import goodput


@pytest.fixture(params=["ppo", "sft"])
def trainer(request: pytest.FixtureRequest, scene: Scene) -> Trainer:
    return Trainer(scene, sft=request.param == "sft")


def test_the_examples_are_true() -> None:
    assert doctest.testmod(goodput).failed == 0
    assert doctest.testmod(goodput).attempted > 0


def test_steps_are_productive_and_the_first_start_is_lost_to_nothing(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    late = first_step(trainer)
    assert totals(trainer.goodput()) == {"productive": 200 - late, "other": 60 + late}


def test_a_restart_is_lost_from_the_last_step_to_the_beginning_of_the_next_attempts_first(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    scene = trainer.scene
    scene.now += 15
    killed = AttemptExited(time=scene.now, exit_code=None, signal=9)
    scene.push(sender="sup", role="supervisor", events=[killed])
    scene.now += 5
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=scene.now, pid=1)])
    second = trainer.next()
    second.start(100)
    second.steps(11, 15)
    late = first_step(trainer)
    assert totals(second.goodput()) == {"productive": 300 - 2 * late, "other": 60 + late, "restart": 120 + late}


def test_a_trainer_that_died_without_a_word_is_lost_until_the_next_one_trains(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.scene.now += 8 * HOUR
    second = trainer.next()
    second.start(100)
    second.steps(11, 12)
    late = first_step(trainer)
    assert totals(second.goodput())["restart"] == 8 * HOUR + 100 + late


def test_steps_that_an_earlier_attempt_had_done_are_replayed(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    second = trainer.next()
    second.start(100)
    second.steps(6, 15)
    late = first_step(trainer)
    assert totals(second.goodput())["replayed"] == 100 - late
    assert totals(second.goodput())["productive"] == 300 - late


def test_a_step_done_three_times_is_productive_once(scene: Scene) -> None:
    trainer = Trainer(scene)
    for _ in range(3):
        trainer.start(10)
        trainer.steps(1, 4)
        trainer = trainer.next()
    assert totals(trainer.goodput()) == {"productive": 80, "replayed": 160, "restart": 20, "other": 10}


def test_what_a_step_takes_beyond_its_usual_is_a_stall(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.step(11, 1000)
    trainer.steps(12, 13)
    assert totals(trainer.goodput())["stall"] == 1000 - 3 * 20


def test_a_step_that_hangs_until_it_is_killed_is_a_stall_and_the_usual_part_of_it_is_lost_to_the_restart(
    trainer: Trainer,
) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.scene.now += 1000
    exited = AttemptExited(time=trainer.scene.now + trainer.skew, exit_code=None, signal=9)
    trainer.scene.push(sender="sup", role="supervisor", events=[exited])
    second = trainer.next()
    second.start(100)
    second.steps(11, 12)
    late = first_step(trainer)
    assert totals(second.goodput())["stall"] == 940
    assert totals(second.goodput())["restart"] == 60 + 100 + late


def test_a_stall_grows_while_the_trainer_says_that_its_step_is_open_and_is_counted_once(scene: Scene) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    trainer.steps(1, 10)
    grown = []
    began = scene.now
    for _ in range(10):
        scene.now += 100
        trainer.beat(11, step=scene.now - began, gen=scene.now - began - 1)
        grown.append(trainer.goodput().stall)
    assert grown == [pytest.approx(100 * n - 60) for n in range(1, 11)]
    trainer.send(steps=[Step(step=11, metrics={"timing_s/step": 1000.0}, time=scene.now)])
    assert totals(trainer.goodput()) == {"productive": 260, "stall": 940, "other": 60}


@pytest.mark.parametrize("told", [True, False])
def test_a_stall_that_was_counted_while_it_lasted_is_not_lost_to_the_restart_again(scene: Scene, told: bool) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    trainer.steps(1, 10)
    scene.now += 1000
    trainer.beat(11, step=1000.0)
    scene.now += 5
    if told:
        scene.push(sender="sup", role="supervisor", events=[AttemptExited(time=scene.now, exit_code=None, signal=9)])
    second = trainer.next()
    second.start(95)
    second.steps(11, 12)
    run = second.goodput()
    assert run.wall() == pytest.approx(scene.now - run_began(scene))
    assert run.stall == pytest.approx(945 if told else 940)


def test_an_open_step_of_ten_years_is_no_longer_than_the_exporter_has_seen(scene: Scene) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    trainer.steps(1, 10)
    scene.now += 30
    trainer.beat(11, step=3e8)
    assert trainer.goodput().stall == pytest.approx(30)


def test_steps_that_save_are_slow_every_time_and_no_stall_until_a_save_is(scene: Scene) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    for number in range(1, 41):
        trainer.step(number, 320, pause=300) if number % 10 == 0 else trainer.step(number)
    assert trainer.goodput().stall == 0
    trainer.step(41, 2020, pause=2000)
    assert trainer.goodput().stall == pytest.approx(2000 - 3 * 300)


def test_sfts_save_is_known_by_its_heartbeat(scene: Scene) -> None:
    trainer = Trainer(scene, sft=True)
    trainer.start(60)
    trainer.steps(1, 10)
    scene.now += 300
    trainer.send(phase=PhaseReport(step=10, closed=[ClosedPhase(name="save_checkpoint", seconds=300.0)]))
    trainer.steps(11, 12)
    assert trainer.goodput().stall == 0


def test_a_long_validation_of_sft_is_no_stall_though_its_heartbeat_knows_no_phase_for_it(scene: Scene) -> None:
    trainer = Trainer(scene, sft=True)
    trainer.start(60)
    trainer.steps(1, 10)
    for age in range(100, 1001, 100):
        scene.now += 100
        trainer.beat(10, step=float(age))
    trainer.send(steps=[Step(step=10, metrics={"val/loss": 1.0}, time=scene.now)])
    assert totals(trainer.goodput()) == {"productive": 180, "other": 80 + 1000}


def test_validation_after_a_step_is_neither_productive_nor_lost(scene: Scene) -> None:
    trainer = Trainer(scene, sft=True)
    trainer.start(60)
    for number in range(1, 11):
        trainer.step(number)
        if number % 2 == 0:
            scene.now += 100
            trainer.send(steps=[Step(step=number, metrics={"val/loss": 1.0}, time=scene.now)])
    assert totals(trainer.goodput()) == {"productive": 180, "other": 60 + 20 + 500}


def test_a_pause_between_two_steps_that_nothing_explains_is_a_stall_beyond_the_usual(scene: Scene) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    trainer.steps(1, 10)
    scene.now += 1000
    trainer.steps(11, 12)
    assert totals(trainer.goodput()) == {"productive": 240, "stall": 940, "other": 60 + 60}


def test_the_end_of_a_run_that_succeeded_is_no_loss(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.scene.now += 500
    trainer.finish()
    late = first_step(trainer)
    assert totals(trainer.goodput()) == {"productive": 200 - late, "other": 560 + late}
