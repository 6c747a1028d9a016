"""Fixed limits: what somebody has set is said when it is passed, and nothing is done where nothing is set."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import series, watch

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.fixed_limits import FixedLimits
from exporter.detectors.registry import build_detectors
from exporter.detectors.setup import RunSetup

AT_ONCE: dict[str, Any] = {"k": 1, "n": 1, "warmup": 0}
EVERY: dict[str, Any] = {
    "step_seconds_p95": 120.0,
    "step_seconds": 30.0,
    "kl_above": 0.3,
    "kl_below": 0.01,
    "memory_ratio": 0.95,
    "loss_times": 10.0,
    "grad_norm_above": 5.0,
    "entropy_below": 0.05,
    "reward_below": -0.2,
    "response_length_above": 4000.0,
    "clip_ratio_above": 0.5,
    "throughput_below": 1000.0,
    "mfu_below": 0.2,
}
GIB = 1024.0**3
SETUP = RunSetup(gpu_memory_bytes=80 * GIB, host_memory_bytes=500 * GIB)


def said(detector: FixedLimits, signal: str, values: Iterable[float], first: int = 1) -> list[Verdict]:
    return watch([detector], series(signal, values, first))


def observe(detector: FixedLimits, step: int, signals: Mapping[str, float], setup: RunSetup = SETUP) -> list[Verdict]:
    return list(detector.observe(StepSample(step, 1, float(step), signals, setup)))


def test_without_a_limit_the_detector_is_not_built() -> None:
    assert "fixed_limits" not in build_detectors().state_dict()
    assert "fixed_limits" not in build_detectors({"fixed_limits": {"severity": "critical"}}).state_dict()
    assert "fixed_limits" in build_detectors({"fixed_limits": {"mfu_below": 0.2}}).state_dict()


@pytest.mark.parametrize(
    ("option", "signal", "bound", "inside", "outside"),
    [
        ("kl_above", "kl", 0.3, 0.3, 0.31),
        ("kl_below", "kl", 0.01, 0.01, 0.009),
        ("grad_norm_above", "grad_norm", 5.0, 5.0, 5.1),
        ("entropy_below", "entropy", 0.05, 0.05, 0.04),
        ("reward_below", "reward", -0.2, -0.2, -0.3),
        ("reward_below", "reward", 0.0, 0.0, -0.01),
        ("response_length_above", "response_length", 4000, 4000.0, 4001.0),
        ("clip_ratio_above", "clip_ratio", 0.5, 0.5, 0.51),
        ("throughput_below", "throughput", 1000.0, 1000.0, 999.0),
        ("mfu_below", "mfu", 0.2, 0.2, 0.19),
    ],
)
def test_a_value_on_the_limit_is_allowed_and_one_beyond_it_is_said(
    option: str, signal: str, bound: float, inside: float, outside: float
) -> None:
    limits: dict[str, Any] = {option: bound, **AT_ONCE}
    assert said(FixedLimits(**limits), signal, [inside] * 5) == []
    found = said(FixedLimits(**limits), signal, [inside, inside, outside, outside, inside])
    assert [(v.step, v.signal, v.onset, v.severity) for v in found] == [
        (3, signal, 3, Severity.WARNING),
        (4, signal, 3, Severity.WARNING),
    ]
    assert all(v.score > v.threshold for v in found)
    assert found[0].score == pytest.approx(abs(outside - bound))
    assert f"{outside:g} now" in found[0].summary


def test_a_limit_waits_for_k_of_n_steps() -> None:
    values = [0.1, 0.9, 0.1, 0.9, 0.1, 0.1, 0.9, 0.9, 0.9, 0.1]
    assert [v.step for v in said(FixedLimits(kl_above=0.3, k=3, n=4, warmup=0), "kl", values)] == [9, 10]
    assert said(FixedLimits(kl_above=0.3, warmup=0), "kl", values)[0].onset == 7


def test_three_steps_in_a_row_above_30_seconds_are_said_and_two_times_two_are_not() -> None:
    limits: dict[str, Any] = {"step_seconds": 30.0, "warmup": 0}
    assert said(FixedLimits(**limits), "step_time", [20, 31, 31, 20, 31, 31, 20]) == []
    found = said(FixedLimits(**limits), "step_time", [20, 31, 32, 33, 20])
    assert [(v.step, v.onset) for v in found] == [(4, 2)]
    assert "above the fixed limit of 30 s in 3 steps in a row: 33 now" in found[0].summary


def test_the_95th_percentile_allows_few_slow_steps_and_not_many() -> None:
    rare = [500.0 if step % 30 == 15 else 60.0 for step in range(300)]
    often = [500.0 if step % 16 == 0 else 60.0 for step in range(300)]
    assert said(FixedLimits(step_seconds_p95=120.0), "step_time", rare) == []
    found = said(FixedLimits(step_seconds_p95=120.0), "step_time", often)
    assert found[-1].summary.startswith(
        "the 95th percentile of step_time was above the fixed limit of 120 s over 100 steps, at 500: 60 now, "
    )


def test_the_onset_of_a_percentile_is_where_the_slow_steps_become_many() -> None:
    times = [150.0 if step == 7 or step >= 60 else 60.0 for step in range(1, 80)]
    first = said(FixedLimits(step_seconds_p95=120.0), "step_time", times)[0]
    assert (first.step, first.onset) == (62, 60)


def test_a_percentile_of_a_few_steps_is_none() -> None:
    assert said(FixedLimits(step_seconds_p95=120.0, warmup=0), "step_time", [500.0] * 19) == []
    assert len(said(FixedLimits(step_seconds_p95=120.0, warmup=0), "step_time", [500.0] * 20)) == 1


def test_a_loss_ten_times_its_recent_median_is_said_with_either_sign() -> None:
    usual = [0.02, -0.03, 0.025, -0.02] * 6
    for jump in (0.3, -0.3):
        found = said(FixedLimits(loss_times=10.0, k=1, n=1), "loss", [*usual, 0.2, jump, 0.02])
        assert [v.step for v in found] == [26]
        assert found[0].summary == (
            "loss was above the fixed limit of 10 times its recent median: 12 now, since step 26"
        )


def test_a_loss_of_0_or_nan_has_no_ratio() -> None:
    detector = FixedLimits(loss_times=10.0, k=1, n=1)
    assert said(detector, "loss", [0.0] * 30 + [5.0, math.nan, math.inf]) == []


def test_memory_is_judged_as_a_share_where_the_size_is_known() -> None:
    detector = FixedLimits(memory_ratio=0.95, **AT_ONCE)
    signals = {"gpu_memory": 77.0 * GIB, "host_memory": 480 * GIB}
    assert observe(detector, 1, signals, RunSetup()) == []
    found = observe(detector, 2, signals)
    assert [v.signal for v in found] == ["gpu_memory", "host_memory"]
    assert found[0].score == pytest.approx(77 / 80 - 0.95)
    assert observe(detector, 3, {"gpu_memory": 70.0 * GIB, "host_memory": 100 * GIB}) == []


def test_the_first_steps_of_an_attempt_are_not_judged() -> None:
    detector = FixedLimits(kl_below=0.01, k=1, n=1, warmup=3)
    assert [v.step for v in said(detector, "kl", [0.0] * 5)] == [4, 5]
    detector.resumed(5, 2)
    assert [v.step for v in said(detector, "kl", [0.0] * 5, first=6)] == [9, 10]
    assert [v.step for v in said(detector, "kl", [0.0] * 5, first=2)] == [5, 6]  # it went back: started again


def test_a_second_part_of_a_step_is_not_a_second_step() -> None:
    detector = FixedLimits(kl_above=0.3, mfu_below=0.2, k=2, n=2, warmup=0)
    assert observe(detector, 1, {"kl": 0.5}) == []
    assert observe(detector, 1, {"kl": 0.5, "mfu": 0.1}) == []
    assert [v.signal for v in observe(detector, 2, {"kl": 0.5})] == ["kl"]
    assert [v.signal for v in observe(detector, 2, {"mfu": 0.1})] == ["mfu"]


def test_a_signal_that_is_absent_neither_breaks_nor_feeds_a_streak() -> None:
    detector = FixedLimits(step_seconds=30.0, warmup=0)
    assert observe(detector, 1, {"step_time": 40.0}) == []
    assert observe(detector, 2, {"step_time": 40.0}) == []
    assert observe(detector, 3, {}) == []
    assert observe(detector, 4, {"step_time": math.nan}) == []
    assert [v.onset for v in observe(detector, 5, {"step_time": 40.0})] == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kl_above": "much"}, "kl_above is 'much': it must be a number above 0"),
        ({"kl_above": True}, "kl_above is True"),
        ({"kl_above": math.nan}, "kl_above is nan"),
        ({"step_seconds": 0}, "step_seconds is 0: it must be a number above 0"),
        ({"memory_ratio": 95}, "memory_ratio is 95: it must not be above"),
        ({"loss_times": 1}, "loss_times is 1: it must be a number above 1"),
        ({"reward_below": math.inf}, "reward_below is inf: it must be a number"),
        ({"kl_above": 0.1, "kl_below": 0.2}, "kl_below is 0.2: it must not be above kl_above (0.1)"),
        ({"k": 4, "n": 3}, "k is 4: it must not be above n (3)"),
        ({"step_seconds_times": 1.5}, "step_seconds_times is 1.5: it must be a whole number"),
        ({"window": 5}, "window is 5"),
        ({"severity": "criticl"}, "severity is 'criticl': did you mean 'critical'? Known: info, warning, critical"),
        ({"severity": ["critical"]}, "severity is ['critical']"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"detector fixed_limits: {words}")):
        FixedLimits(**options)


def test_a_limit_that_was_set_since_starts_fresh_and_the_others_go_on() -> None:
    before = FixedLimits(kl_above=0.3, k=2, n=2, warmup=0)
    observe(before, 1, {"kl": 0.5})
    after = FixedLimits(kl_above=0.3, mfu_below=0.2, k=2, n=2, warmup=0)
    after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
    assert [v.signal for v in observe(after, 2, {"kl": 0.5, "mfu": 0.1})] == ["kl"]
    assert [v.signal for v in observe(after, 3, {"kl": 0.1, "mfu": 0.1})] == ["mfu"]


NUMBERS = st.one_of(
    st.floats(),
    st.sampled_from([0.0, 1e30, -1e30, 1e-30, 1.7e308, -1.7e308, 0.5, 50.0, 5000.0]),
)
SIGNALS = ("step_time", "kl", "gpu_memory", "host_memory", "loss", "grad_norm", "entropy", "reward", "mfu")
STEPS = st.lists(
    st.tuples(st.integers(-1, 3), st.dictionaries(st.sampled_from(SIGNALS), NUMBERS, max_size=4)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 60))
def test_whatever_comes_every_finding_is_beyond_its_threshold_and_a_restart_changes_nothing(
    moves: list[tuple[int, dict[str, float]]], cut: int
) -> None:
    def fresh() -> FixedLimits:
        return FixedLimits(**EVERY, k=2, n=3, window=20, warmup=4)

    whole, parted, step = fresh(), fresh(), 5
    for index, (move, signals) in enumerate(moves):
        step = max(step + move, 0)
        if index == cut:
            again = fresh()
            again.load_state_dict(json.loads(json.dumps(parted.state_dict(), allow_nan=False)))
            parted = again
        found = observe(whole, step, signals)
        assert found == observe(parted, step, signals)
        for verdict in found:
            assert verdict.score > verdict.threshold
            assert math.isfinite(verdict.score)
            assert 0 <= verdict.onset <= verdict.step == step
