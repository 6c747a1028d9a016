"""Whatever comes in: no detector raises, what it says is well formed, and a restart in between changes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import healthy

from exporter.detectors.base import LiveView, StepSample, Verdict
from exporter.detectors.registry import DetectorSet, build_detectors
from exporter.signals import SIGNALS as TABLE

SIGNALS = tuple(TABLE)
EXTREMES = (0.0, -0.0, 1e30, -1e30, 1e-30, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf)

values = st.one_of(
    st.sampled_from(EXTREMES),
    st.floats(min_value=-10.0, max_value=10.0),
    st.floats(allow_nan=True, allow_infinity=True),
)
one_step = st.dictionaries(st.sampled_from(SIGNALS), values, max_size=12)
jumps = st.one_of(st.just(1), st.integers(min_value=-3, max_value=5))


@st.composite
def runs(draw: st.DrawFn) -> list[StepSample]:
    """A stretch of health (or none), then anything; steps repeat, go back and skip."""
    samples = [StepSample(step, 1, 0.0, signals) for step, signals in healthy(draw(st.sampled_from([0, 3, 16, 45])))]
    step = len(samples)
    for signals in draw(st.lists(one_step, max_size=25)):
        step += draw(jumps)
        samples.append(StepSample(step, 1, 0.0, signals))
    return samples


phase_ages = st.dictionaries(st.sampled_from(["step", "gen", "testing", ""]), st.floats(0.0, 1e6), max_size=3)


@st.composite
def views(draw: st.DrawFn) -> list[LiveView]:
    """Moments of a run; the clock may jump either way, and counters may go back."""
    now, found = 1000.0, []
    for _ in range(draw(st.integers(0, 20))):
        now += draw(st.sampled_from([0.0, 1.0, 5.0, 20.0, 500.0, -30.0, 1e7]))
        found.append(
            LiveView(
                now=now,
                step=draw(st.integers(0, 50)),
                attempt=draw(st.integers(1, 3)),
                steps_this_attempt=draw(st.integers(0, 5)),
                running=draw(st.booleans()),
                last_push=now - draw(st.floats(-100.0, 5000.0)),
                open_phases=draw(phase_ages),
                rollouts_succeeded=draw(st.integers(0, 5000)),
                rollouts_failed=draw(st.integers(0, 500)),
                exit_code=draw(st.sampled_from([None, 0, 1])),
                exited_unexpectedly=draw(st.booleans()),
            )
        )
    return found


def observe(detectors: DetectorSet, samples: Sequence[StepSample]) -> list[Verdict]:
    return [v for sample in samples for detector in detectors.step for v in detector.observe(sample)]


def look(detectors: DetectorSet, moments: Sequence[LiveView]) -> list[Verdict]:
    found = []
    for index, view in enumerate(moments):
        for detector in detectors.live:
            detector.phase_closed("gen", float(index), view.step)
            found.extend(detector.look(view))
    return found


def restarted(detectors: DetectorSet) -> DetectorSet:
    """The same detectors after their state went through JSON, which has no NaN and no infinity."""
    again = build_detectors()
    again.load_state_dict(json.loads(json.dumps(detectors.state_dict(), allow_nan=False)))
    return again


def well_formed(verdict: Verdict) -> bool:
    return (
        math.isfinite(verdict.score)
        and verdict.score > verdict.threshold
        and 0.0 < verdict.confidence <= 1.0
        and bool(verdict.summary)
        and bool(verdict.meaning)
        and bool(verdict.advice)
    )


@settings(max_examples=150, deadline=None)
@given(runs(), st.integers(0, 60))
def test_step_detectors_take_anything_and_a_restart_changes_nothing(samples: list[StepSample], cut: int) -> None:
    detectors = build_detectors()
    observe(detectors, samples[:cut])
    again = restarted(detectors)
    expected = observe(detectors, samples[cut:])
    assert observe(again, samples[cut:]) == expected
    assert all(well_formed(v) and v.onset <= max(v.step, 0) for v in expected)


@settings(max_examples=150, deadline=None)
@given(views(), st.integers(0, 20))
def test_live_detectors_take_anything_and_a_restart_changes_nothing(moments: list[LiveView], cut: int) -> None:
    detectors = build_detectors()
    look(detectors, moments[:cut])
    again = restarted(detectors)
    expected = look(detectors, moments[cut:])
    assert look(again, moments[cut:]) == expected
    assert all(well_formed(v) for v in expected)


@settings(max_examples=50, deadline=None)
@given(runs())
def test_after_a_resume_only_values_that_are_not_finite_and_a_wrong_rate_speak_within_the_first_steps(
    samples: list[StepSample],
) -> None:
    detectors = build_detectors()
    observe(detectors, samples)
    detectors.resumed(5, 2)
    fresh = [StepSample(5 + i, 2, 0.0, dict.fromkeys(SIGNALS, 10.0**i)) for i in range(1, 15)]
    # What the learning rate has to be is known from the attempt before.
    assert [v for v in observe(detectors, fresh) if v.detector != "learning_rate"] == []


@given(st.floats(min_value=1e-6, max_value=1e6), st.integers(min_value=16, max_value=200))
@settings(max_examples=50, deadline=None)
def test_a_constant_never_surges_whatever_its_level(level: float, steps: int) -> None:
    samples = [StepSample(step, 1, 0.0, dict.fromkeys(SIGNALS, level)) for step in range(1, steps)]
    assert observe(build_detectors(), samples) == []


@pytest.mark.parametrize("value", [1e30, 1e-30, -1e30, 0.0])
def test_one_extreme_number_in_all_signals_for_ever_pages_nobody(value: float) -> None:
    """But for what it says by itself: a gradient and advantages of exactly 0 are a dead run, a rate of 0 is none."""
    signals = dict.fromkeys(SIGNALS, value)
    if value == 0.0:
        signals = {name: number for name, number in signals.items() if name not in ("grad_norm", "advantage_spread")}
    samples = [StepSample(step, 1, 30.0 * step, signals) for step in range(1, 120)]
    pages = [v for v in observe(build_detectors(), samples) if v.severity.label == "critical"]
    assert [v.summary for v in pages if v.detector not in ("dead_run", "aborted_rollouts")] == []
