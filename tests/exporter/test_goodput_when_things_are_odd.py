"""Where a run's time went when batches come late, clocks are wrong, or everything is odd at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from exporter_scene import Scene
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_in_a_scene import HOUR, TOTALS, Trainer, first_step, run_began, totals

from exporter.protocol import Step
from exporter.service.goodput import Goodput


@pytest.fixture(params=["ppo", "sft"])
def trainer(request: pytest.FixtureRequest, scene: Scene) -> Trainer:
    return Trainer(scene, sft=request.param == "sft")


def test_an_outage_of_the_exporter_changes_nothing_but_when_it_is_known(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.offline = True
    trainer.steps(11, 40)
    trainer.scene.restart()
    trainer.flush()
    trainer.steps(41, 50)
    late = first_step(trainer)
    assert totals(trainer.goodput()) == {"productive": 1000 - late, "other": 60 + late}


def test_an_outage_over_a_restart_changes_nothing_either(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.offline = True
    trainer.steps(11, 20)
    second = trainer.next()
    second.start(100)
    second.steps(16, 40)
    trainer.flush()
    second.flush()
    second.steps(41, 50)
    late = first_step(trainer)
    assert totals(second.goodput()) == {
        "productive": 1000 - late,
        "replayed": 100 - late,
        "restart": 100 + late,
        "other": 60 + late,
    }


def test_what_a_dead_trainer_left_on_disk_may_come_after_the_next_attempts_steps(trainer: Trainer) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.offline = True
    trainer.steps(11, 20)
    second = trainer.next()
    second.start(100)
    second.steps(16, 40)
    second.flush()
    trainer.flush()
    second.steps(41, 50)
    run = second.goodput()
    assert run.productive + run.replayed == pytest.approx(1100 - 2 * first_step(trainer))
    second.scene.now += 500
    second.step(51)
    assert run.wall() == pytest.approx(trainer.scene.now - run_began(trainer.scene), abs=1)


def test_a_run_whose_first_hour_the_exporter_missed_has_its_steps(trainer: Trainer) -> None:
    trainer.offline = True
    trainer.start(60)
    trainer.steps(1, 180)
    trainer.flush()
    trainer.steps(181, 190)
    assert trainer.goodput().productive == pytest.approx(3800, abs=0 if not trainer.sft else 60)
    assert trainer.goodput().restart == 0


@pytest.mark.parametrize("skew", [-5 * HOUR, 5 * HOUR])
def test_a_clock_of_the_trainer_that_is_wrong_by_hours_changes_nothing(trainer: Trainer, skew: float) -> None:
    trainer.skew = skew
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.finish()
    second = trainer.next()
    second.start(100)
    second.steps(6, 15)
    late = first_step(trainer)
    assert totals(second.goodput()) == {
        "productive": 300 - late,
        "replayed": 100 - late,
        "restart": 100 + late,
        "other": 60 + late,
    }


@pytest.mark.parametrize("jump", [-5 * HOUR, 5 * HOUR])
def test_a_clock_of_the_trainer_that_is_set_by_hours_gives_no_hours(trainer: Trainer, jump: float) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.skew += jump
    trainer.steps(11, 20)
    trainer.skew -= jump
    trainer.steps(21, 30)
    run = trainer.goodput()
    assert run.productive == pytest.approx(600 - first_step(trainer), abs=150)
    assert run.restart + run.stall == pytest.approx(0, abs=1)
    assert run.wall() == pytest.approx(660, abs=150)


@pytest.mark.parametrize("skews", [(0.0, 5 * HOUR), (5 * HOUR, 0.0)])
def test_two_trainers_whose_clocks_differ_by_hours_give_no_hours(trainer: Trainer, skews: tuple[float, float]) -> None:
    trainer.skew = skews[0]
    trainer.start(60)
    trainer.steps(1, 10)
    second = trainer.next()
    second.skew = skews[1]
    second.start(100)
    second.steps(11, 20)
    assert second.goodput().restart == pytest.approx(100 + first_step(trainer))


@pytest.mark.parametrize("jump", [-5 * HOUR, 5 * HOUR])
def test_a_clock_of_the_exporter_that_is_set_by_hours_gives_no_hours(trainer: Trainer, jump: float) -> None:
    trainer.start(60)
    trainer.steps(1, 10)
    trainer.scene.now += jump
    trainer.skew -= jump
    trainer.steps(11, 20)
    late = first_step(trainer)
    assert totals(trainer.goodput()) == {"productive": 400 - late, "other": 60 + late}


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -5.0, 1e12])
def test_a_duration_that_is_none_is_taken_from_the_clock(scene: Scene, seconds: float) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    trainer.steps(1, 10)
    scene.now += 20
    trainer.send(steps=[Step(step=11, metrics={"timing_s/step": seconds}, time=scene.now)])
    assert totals(trainer.goodput()) == {"productive": 220, "other": 60}


def test_without_the_senders_clock_the_exporters_counts(scene: Scene) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    for number in range(1, 11):
        scene.now += 25
        trainer.send(steps=[Step(step=number, metrics={"timing_s/step": 20.0})])
    assert totals(trainer.goodput()) == {"productive": 200, "other": 60 + 50}


def test_a_restart_of_the_exporter_goes_on_where_it_was(trainer: Trainer) -> None:
    trainer.start(60)
    for number in range(1, 21):
        trainer.step(number)
        before = trainer.goodput()
        trainer.scene.restart()
        assert trainer.goodput() == before


def test_steps_out_of_order_are_each_counted(scene: Scene) -> None:
    trainer = Trainer(scene)
    trainer.start(60)
    for number, seq in ((1, 11), (3, 13), (2, 12), (4, 14), (6, 16), (5, 15)):
        scene.now = 1_000_060 + 20 * number
        metrics = {"timing_s/step": 20.0}
        scene.push(seq=seq, steps=[Step(step=number, metrics=metrics, time=scene.now)])
    assert trainer.goodput().productive == pytest.approx(120)
    assert scene.run().state.steps_total == 6
    assert scene.run().state.durations.total == pytest.approx(120)


def test_a_heartbeat_that_was_wrong_about_a_step_is_made_good_with_that_step() -> None:
    run = Goodput()
    run.began(1_000_000.0)
    for number in range(1, 12):
        run.step(number, 1_000_000.0, seconds=0.0)
    run.beat(1_000_012.0, age=12.0, pause=1.0)
    run.step(12, 1_000_012.0, seconds=0.0)
    assert run.restart + run.stall + run.other == pytest.approx(12.0)


EVENT = st.tuples(
    st.sampled_from(["step", "late", "beat", "began", "ended", "part", "pause"]),
    st.integers(1, 40),
    st.one_of(st.floats(0, 4000), st.floats(-20_000, 20_000)),
    st.one_of(st.just(0.0), st.floats(allow_nan=True), st.floats(999_000, 1_020_000)),
    st.one_of(st.none(), st.floats(allow_nan=True), st.floats(0, 500)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENT, max_size=40))
def test_whatever_comes_the_totals_only_grow_and_nothing_is_lost_that_has_not_passed(events: list[Any]) -> None:
    run, now, passed = Goodput(), 1_000_000.0, 0.0
    run.began(now)
    for kind, number, moved, said, seconds in events:
        before = [getattr(run, name) for name in TOTALS]
        now += moved
        passed += max(0.0, moved)
        if kind == "step":
            run.step(number, now, said=said, seconds=seconds, pause=moved)
        elif kind == "late":
            run.late(number, seconds, said)
        elif kind == "beat":
            run.beat(now, age=abs(moved), pause=float(number))
        elif kind == "began":
            run.began(now)
        elif kind == "ended":
            run.ended(now, said=said, clean=number > 20)
        elif kind == "part":
            run.part(now, said=said)
        else:
            run.pause_ended(abs(moved))
        after = [getattr(run, name) for name in TOTALS]
        assert all(math.isfinite(b) and b >= a for a, b in zip(before, after, strict=True)), (before, after)
    assert run.restart + run.stall + run.other <= passed + 1e-6 * (1 + passed)
