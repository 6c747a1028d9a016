"""A run that learns nothing, or repeats itself, is found; short streaks and constant series are not."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Signals, critical, episodes, healthy, watch

from exporter.detectors.base import Severity, StepSample
from exporter.detectors.dead_run import LEARNING, DeadRun

NOTHING = {"grad_norm": 0.0, "advantage_spread": 0.0, "loss": 0.0}


def run(steps: int, seed: int = 0) -> list[tuple[int, Signals]]:
    return [(step, signals | {"advantage_spread": 2.0 + signals["reward"]}) for step, signals in healthy(steps, seed)]


def with_nothing(steps: list[tuple[int, Signals]], first: int, count: int) -> list[tuple[int, Signals]]:
    return [(step, signals | NOTHING if first <= step < first + count else signals) for step, signals in steps]


def test_a_gradient_that_stays_0_warns_and_then_pages() -> None:
    found = watch([DeadRun()], with_nothing(run(150), 100, 51))
    assert (found[0].step, found[0].severity, found[0].onset) == (105, Severity.WARNING, 100)
    first = critical(found)[0]
    assert (first.step, first.onset, first.signal) == (111, 100, "grad_norm")


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_short_streak_says_nothing(count: int) -> None:
    assert watch([DeadRun()], with_nothing(run(150), 100, count)) == []


def test_streaks_of_up_to_eleven_do_not_page() -> None:
    assert critical(watch([DeadRun()], with_nothing(run(150), 100, 11))) == []


def test_a_nearly_saturated_run_does_not_page_on_the_streaks_that_are_usual_in_it() -> None:
    draw, pages = random.Random(1), 0
    for seed in range(20):
        steps = [(step, signals | (NOTHING if draw.random() < 0.4 else {})) for step, signals in run(400, seed)]
        pages += len(critical(watch([DeadRun()], steps)))
    assert pages == 0


def test_a_saturated_run_that_dies_pages_in_the_end() -> None:
    draw = random.Random(1)
    steps = [(s, signals | (NOTHING if s > 300 or draw.random() < 0.4 else {})) for s, signals in run(400)]
    assert critical(watch([DeadRun()], steps))[0].step <= 335


def test_a_run_that_is_dead_from_the_start_pages_once_it_is_warm() -> None:
    found = critical(watch([DeadRun()], with_nothing(run(40), 1, 40)))
    assert found[0].step == 15
    assert found[0].onset == 1


def test_a_gradient_without_advantages_is_found_later() -> None:
    steps = [(s, signals | ({"advantage_spread": 0.0} if s >= 100 else {})) for s, signals in run(150)]
    found = watch([DeadRun()], steps)
    assert {v.signal for v in found} == {"advantage_spread"}
    assert critical(found)[0].step == 123


def test_an_sft_run_has_no_advantages_and_dies_all_the_same() -> None:
    noise = random.Random(3)
    steps = [(s, {"loss": 1 + noise.random(), "grad_norm": noise.random() if s < 50 else 0.0}) for s in range(1, 80)]
    assert critical(watch([DeadRun()], steps))[0].step == 61


def test_metrics_that_repeat_themselves_page_at_the_fourth_step() -> None:
    steps = run(80)
    steps += [(step, dict(steps[-1][1])) for step in range(81, 100)]
    found = watch([DeadRun()], steps)
    assert (found[0].step, found[0].severity) == (83, Severity.WARNING)
    assert (critical(found)[0].step, critical(found)[0].onset) == (84, 81)


def test_some_of_them_are_enough_when_they_are_three() -> None:
    steps = run(120)
    kept = {name: steps[79][1][name] for name in ("loss", "grad_norm", "reward")}
    steps = steps[:80] + [(step, signals | kept) for step, signals in steps[80:]]
    assert critical(watch([DeadRun()], steps))[0].step == 84


def test_a_few_repeated_steps_heal() -> None:
    steps = run(120)
    steps[80:82] = [(step, dict(steps[79][1])) for step in (81, 82)]
    assert watch([DeadRun()], steps) == []


def test_what_never_varied_does_not_count() -> None:
    steps = [(step, dict.fromkeys(LEARNING, 0.5)) for step in range(1, 200)]
    assert watch([DeadRun()], steps) == []


def test_a_rounded_log_that_often_repeats_does_not_page() -> None:
    steps = [(s, {name: round(value, 1) for name, value in signals.items()}) for s, signals in run(600)]
    assert critical(watch([DeadRun()], steps)) == []


def test_a_resume_begins_anew() -> None:
    detector = DeadRun()
    watch([detector], with_nothing(run(60), 51, 10))
    detector.resumed(50, 2)
    assert watch([detector], with_nothing(run(64), 51, 14)[50:]) == []


def test_the_second_part_of_a_step_is_no_other_step() -> None:
    detector = DeadRun()
    for step, signals in with_nothing(run(109), 100, 10):
        for _ in range(3):
            found = detector.observe(StepSample(step, 1, 0.0, signals))
            assert not critical(found)


@pytest.mark.parametrize("seed", range(5))
def test_healthy_runs_say_nothing(seed: int) -> None:
    assert episodes(v.step for v in watch([DeadRun()], run(1000, seed))) == 0


odd = st.sampled_from([0.0, -0.0, 1e30, 1e-30, 5e-324, 1e308, math.nan, math.inf, 0.5])
step_signals = st.dictionaries(st.sampled_from(["loss", "grad_norm", "advantage_spread", "entropy", "x"]), odd)


@given(st.lists(st.tuples(st.integers(-2, 3), step_signals), max_size=60), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_anything_is_taken_and_a_restart_in_between_changes_nothing(moves: list[tuple[int, Signals]], cut: int) -> None:
    steps, step = run(16), 16
    for jump, signals in moves:
        step += jump
        steps.append((step, signals))
    detector, again = DeadRun(), DeadRun()
    watch([detector], steps[:cut])
    again.load_state_dict(json.loads(json.dumps(detector.state_dict(), allow_nan=False)))
    expected = watch([detector], steps[cut:])
    assert watch([again], steps[cut:]) == expected
    assert all(v.score > v.threshold and v.onset <= max(v.step, 0) for v in expected)


@pytest.mark.parametrize("spike", [1e6, 1e10, 1e13, 1e30])
def test_one_wild_gradient_does_not_make_the_ordinary_ones_look_like_nothing(spike: float) -> None:
    norms = [0.5 + 0.1 * (step % 4) for step in range(120)]
    norms[50] = spike
    assert watch([DeadRun()], [(step, {"grad_norm": norm, "loss": norm}) for step, norm in enumerate(norms)]) == []
