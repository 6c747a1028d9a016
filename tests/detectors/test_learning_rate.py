"""The learning rate is found where it is not what was asked for, and no schedule of verl's is a finding."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import critical

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.learning_rate import LearningRate
from exporter.detectors.setup import UNKNOWN, LrSchedule, RunSetup

Rates = Iterable[tuple[int, float]]


def watch(
    detector: LearningRate, rates: Rates, schedule: LrSchedule | None = None, signal: str = "lr", attempt: int = 1
) -> list[Verdict]:
    setup = UNKNOWN
    if schedule is not None:
        setup = RunSetup(lr=schedule) if signal == "lr" else RunSetup(critic_lr=schedule)
    return [v for step, rate in rates for v in detector.observe(StepSample(step, attempt, 0.0, {signal: rate}, setup))]


def planned(schedule: LrSchedule, first: int, last: int) -> list[tuple[int, float]]:
    return [(step, schedule.logged_with(step) or 0.0) for step in range(first, last + 1)]


SCHEDULES = {
    "constant": LrSchedule(5e-6),
    "warm-up": LrSchedule(1e-6, warmup_steps=100),
    "short warm-up": LrSchedule(1e-6, warmup_steps=7),
    "cosine": LrSchedule(1e-5, warmup_steps=20, kind="cosine", total_steps=400),
    "short cosine": LrSchedule(1e-5, warmup_steps=2, kind="cosine", total_steps=40),
    "cosine with a floor": LrSchedule(1e-5, kind="cosine", total_steps=400, min_ratio=0.1),
    "wave": LrSchedule(1e-5, warmup_steps=10, kind="cosine", total_steps=400, cycles=1.5),
    "linear": LrSchedule(1e-5, warmup_steps=50, kind="linear", total_steps=400, ends_flat=True),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_is_a_finding_whether_it_is_known_or_not(name: str, known: bool) -> None:
    schedule = SCHEDULES[name]
    rates = planned(schedule, 1, schedule.total_steps or 400)
    assert watch(LearningRate(), rates, schedule if known else None) == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_version_that_logs_the_rate_of_before_the_update_is_none_either(name: str) -> None:
    schedule = SCHEDULES[name]
    rates = [(step + 1, rate) for step, rate in planned(schedule, 0, (schedule.total_steps or 400) - 1)]
    assert watch(LearningRate(), rates, schedule) == []


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("factor", "severity"),
    [
        (1.05, None),
        (1.2, Severity.WARNING),
        (1.5, Severity.CRITICAL),
        (10.0, Severity.CRITICAL),
        (0.8, Severity.WARNING),
        (0.4, Severity.CRITICAL),
        (0.0, Severity.CRITICAL),
    ],
)
@pytest.mark.parametrize("name", ["constant", "cosine", "linear"])
def test_a_rate_that_leaves_its_schedule_is_found_within_three_steps(
    name: str, factor: float, severity: Severity | None, known: bool
) -> None:
    schedule = SCHEDULES[name]
    rates = [(step, rate * (factor if step > 150 else 1.0)) for step, rate in planned(schedule, 1, 170)]
    found = watch(LearningRate(), rates, schedule if known else None)
    if severity is None:
        assert found == []
        return
    assert found[0].step <= 153
    assert found[0].severity is severity
    assert {v.onset for v in found} == {151}


def test_a_schedule_that_was_never_followed_pages_from_the_third_step() -> None:
    found = watch(LearningRate(), planned(LrSchedule(2e-6), 1, 10), LrSchedule(1e-6))
    assert (found[0].step, found[0].onset, found[0].severity) == (3, 1, Severity.CRITICAL)
    assert "2e-06" in found[0].summary
    assert "1e-06" in found[0].summary


@pytest.mark.parametrize("steps", [5, 10, 30, 100])
def test_a_rate_that_creeps_above_its_peak_pages_without_a_known_schedule(steps: int) -> None:
    rates = [(step, 1e-6 * 10.0 ** min(max(step - 100, 0) / steps, 1.0)) for step in range(1, 210)]
    found = critical(watch(LearningRate(), rates))
    assert found
    assert found[0].step <= 105 + 0.4 * steps


def test_one_odd_step_is_no_finding() -> None:
    rates = [(step, 1e-5 if step == 100 else 1e-6) for step in range(1, 150)]
    assert watch(LearningRate(), rates) == []
    assert watch(LearningRate(), rates, LrSchedule(1e-6)) == []


def test_a_decay_that_reached_nothing_while_the_run_goes_on_is_a_warning() -> None:
    rates = [(step, 1e-6 * max(0.0, 1.0 - step / 100)) for step in range(1, 150)]
    found = watch(LearningRate(), rates)
    assert found
    assert {v.severity for v in found} == {Severity.WARNING}
    assert found[0].onset == 100


def test_the_critics_rate_is_watched_alike() -> None:
    found = watch(LearningRate(), planned(LrSchedule(1e-4), 1, 10), LrSchedule(1e-5), signal="critic_lr")
    assert critical(found)
    assert found[0].signal == "critic_lr"
    assert any("critic.optim.lr" in line for line in found[0].advice)


def test_rates_rounded_to_three_places_are_no_finding() -> None:
    """As old versions of verl's console logger write them."""
    up = [round(0.01 * min(step / 200, 1.0), 3) for step in range(1, 300)]
    down = [round(0.01 * (0.5 + 0.5 * math.cos(math.pi * step / 400)), 3) for step in range(400)]
    assert critical(watch(LearningRate(), enumerate(up, start=1))) == []
    assert critical(watch(LearningRate(), enumerate(down, start=1))) == []


class TestAfterAResume:
    """Schedule or not: what goes on is silent, what starts over or follows an old setting is told."""

    def resumed(self, at: int, before: list[tuple[int, float]], schedule: LrSchedule | None) -> LearningRate:
        detector = LearningRate()
        assert watch(detector, before, schedule) == []
        detector.resumed(at, 2)
        return detector

    @pytest.mark.parametrize("known", [True, False])
    @pytest.mark.parametrize("at", [0, 30, 100])
    @pytest.mark.parametrize("name", SCHEDULES)
    def test_the_same_curve_is_silent(self, name: str, at: int, known: bool) -> None:
        schedule = SCHEDULES[name]
        end = min(100, schedule.total_steps or 100)
        told = schedule if known else None
        detector = self.resumed(min(at, end), planned(schedule, 1, end), told)
        assert (
            watch(
                detector,
                planned(schedule, min(at, end) + 1, min(end + 60, schedule.total_steps or 160)),
                told,
                attempt=2,
            )
            == []
        )

    def test_a_changed_setting_without_effect_is_told_as_that(self) -> None:
        old, new = LrSchedule(1e-6), LrSchedule(1e-7)
        detector = self.resumed(100, planned(old, 1, 100), old)
        found = watch(detector, planned(old, 101, 120), new, attempt=2)
        assert found[0].severity is Severity.CRITICAL
        assert found[0].onset == 101
        assert "1e-06 of the attempt before" in found[0].summary
        assert "1e-07" in found[0].summary

    def test_a_changed_setting_that_took_effect_is_silent(self) -> None:
        old, new = LrSchedule(1e-6), LrSchedule(1e-7)
        detector = self.resumed(100, planned(old, 1, 100), old)
        assert watch(detector, planned(new, 101, 120), new, attempt=2) == []

    def test_a_scheduler_that_started_over_is_told_as_that(self) -> None:
        schedule = LrSchedule(1e-6, warmup_steps=50)
        detector = self.resumed(100, planned(schedule, 1, 100), schedule)
        over = [(100 + step, rate) for step, rate in planned(schedule, 1, 30)]
        found = watch(detector, over, schedule, attempt=2)
        assert found[0].severity is Severity.CRITICAL
        assert "did not restore the scheduler" in found[0].summary

    def test_a_scheduler_that_started_over_is_a_warning_where_no_schedule_is_known(self) -> None:
        schedule = LrSchedule(1e-6, warmup_steps=50)
        detector = self.resumed(100, planned(schedule, 1, 100), None)
        over = [(100 + step, rate) for step, rate in planned(schedule, 1, 80)]
        found = watch(detector, over, attempt=2)
        assert {v.severity for v in found} == {Severity.WARNING}
        assert {v.onset for v in found} == {101}
        assert found[-1].step <= 101 + 15 + 10

    @pytest.mark.parametrize("factor", [0.1, 0.5, 1.5])
    def test_another_rate_is_a_warning_where_no_schedule_is_known(self, factor: float) -> None:
        detector = self.resumed(100, planned(LrSchedule(1e-6), 1, 100), None)
        found = watch(detector, planned(LrSchedule(1e-6 * factor), 101, 200), attempt=2)
        assert {v.severity for v in found} == {Severity.WARNING}

    @pytest.mark.parametrize("factor", [2.5, 10.0])
    def test_a_rate_that_is_a_multiple_of_the_one_before_pages_at_once_whatever_is_known(self, factor: float) -> None:
        detector = self.resumed(100, planned(LrSchedule(1e-6), 1, 100), None)
        found = watch(detector, planned(LrSchedule(1e-6 * factor), 101, 200), attempt=2)
        assert found[0].severity is Severity.CRITICAL
        assert (found[0].onset, found[0].step <= 105) == (101, True)

    def test_steps_that_go_back_without_a_word_are_a_restart(self) -> None:
        schedule = LrSchedule(1e-6, warmup_steps=30)
        rates = planned(schedule, 1, 100) + planned(schedule, 1, 100)
        assert watch(LearningRate(), rates) == []


odd = st.one_of(st.sampled_from([0.0, 1e30, 1e-30, 5e-324, 1e308, math.nan, math.inf, -1.0]), st.floats(0.0, 1.0))


@given(st.lists(st.tuples(st.integers(-3, 6), odd), max_size=60), st.integers(0, 60), st.booleans())
@settings(max_examples=200, deadline=None)
def test_anything_is_taken_and_a_restart_in_between_changes_nothing(
    moves: list[tuple[int, float]], cut: int, known: bool
) -> None:
    rates, step = [(n, 1e-6) for n in range(1, 20)], 20
    for jump, rate in moves:
        step += jump
        rates.append((step, rate))
    schedule = LrSchedule(1e-6, warmup_steps=3, kind="cosine", total_steps=30) if known else None
    detector, again = LearningRate(), LearningRate()
    watch(detector, rates[:cut], schedule)
    again.load_state_dict(json.loads(json.dumps(detector.state_dict(), allow_nan=False)))
    expected = watch(detector, rates[cut:], schedule)
    assert watch(again, rates[cut:], schedule) == expected
    assert all(v.score > v.threshold and math.isfinite(v.score) and v.onset <= max(v.step, 0) for v in expected)


@given(st.sampled_from([1e-30, 1e-6, 1.0, 1e30]))
def test_a_constant_says_nothing_whatever_its_level(level: float) -> None:
    assert watch(LearningRate(), [(step, level) for step in range(1, 200)]) == []
