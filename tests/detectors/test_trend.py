"""Robust trends: what they say of lines, of noise and of wild values, and that a restart changes nothing."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.detectors.base import StepSample
from exporter.detectors.growth import find_growth
from exporter.detectors.trend import NEVER, Pace, Trend, arrival, theil_sen


def pushed(values: list[float], *, span: int = 200, points: int = 40) -> Trend:
    trend = Trend(span=span, points=points)
    for step, value in enumerate(values, start=1):
        trend.push(step, value)
    return trend


def paced(seconds: list[float]) -> Pace:
    pace = Pace()
    for step, value in enumerate(seconds, start=1):
        pace.push(StepSample(step, 1, 0.0, {"step_time": value}))
    return pace


def test_a_quarter_of_wild_values_does_not_move_the_slope() -> None:
    rnd = random.Random(1)
    values = [2.0 * x + (1e6 if x % 4 == 1 else 0.0) + rnd.gauss(0.0, 0.1) for x in range(40)]
    line = theil_sen(range(40), values)
    assert line is not None
    assert line.slope == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_the_true_slope_in_nearly_all_of_many_tries(seed: int) -> None:
    rnd, held = random.Random(seed), 0
    for _ in range(100):
        line = theil_sen(range(30), [0.3 * x + rnd.gauss(0.0, 2.0) for x in range(30)])
        assert line is not None
        held += line.low <= 0.3 <= line.high
    assert held >= 88


def walks_called_trends() -> int:
    rnd, called = random.Random(3), 0
    for _ in range(100):
        level, values = 0.0, []
        for _ in range(40):
            level += rnd.gauss(0.0, 1.0)
            values.append(level)
        line = theil_sen(range(40), values)
        assert line is not None
        called += line.low > 0.0 or line.high < 0.0
    return called


def test_a_random_walk_is_called_a_trend_less_often_than_if_its_steps_were_taken_for_independent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corrected = walks_called_trends()
    monkeypatch.setattr("exporter.detectors.trend._inflation", lambda rests: 1.0)
    assert corrected < 0.75 * walks_called_trends()


def test_too_few_points_make_no_line() -> None:
    assert theil_sen([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0]) is None
    assert theil_sen(*pushed([1.0, 2.0]).series()) is None


def test_a_line_that_moves_away_or_creeps_never_arrives() -> None:
    line = theil_sen(range(10), [float(x) for x in range(10)])
    assert line is not None
    assert arrival(line, 8.0) is None
    assert arrival(line, 9.0 + 2.0 * NEVER) is None
    falling = theil_sen(range(10), [100.0 - x for x in range(10)])
    assert falling is not None
    met = arrival(falling, 41.0)
    assert met is not None
    assert met.steps == pytest.approx(50.0)


def test_the_window_stays_bounded_and_follows_a_bend() -> None:
    trend = pushed([float(min(step, 1000)) for step in range(5000)], span=400, points=40)
    assert len(trend) <= 41
    xs, ys = trend.series()
    line = theil_sen(xs, ys)
    assert line is not None
    assert line.slope == 0.0
    assert xs[0] >= 5000 - 400


def test_steps_back_and_values_that_are_no_numbers_are_ignored() -> None:
    trend = pushed([float(x) for x in range(30)])
    before = trend.state_dict()
    for step, value in ((5, 1e9), (30, 1e9), (31, math.nan), (32, math.inf)):
        trend.push(step, value)
    assert trend.state_dict() == before


def test_pace_counts_validations_but_not_a_night_of_standstill() -> None:
    assert paced([10.0, 10.0, 10.0, 10.0, 60.0] * 12).seconds() == pytest.approx(20.0)
    night = paced([10.0] * 30 + [40_000.0] + [10.0] * 30).seconds()
    assert night is not None
    assert night < 12.0


def test_pace_comes_from_arrival_times_where_the_log_has_none() -> None:
    pace = Pace()
    for step in (1, 2, 3, 5, 6):
        pace.push(StepSample(step, 1, 100.0 + 7.0 * step, {}))
    assert pace.seconds() == pytest.approx(7.0)


def test_pace_is_unknown_where_neither_says_anything() -> None:
    pace = Pace()
    for step in range(10):
        pace.push(StepSample(step, 1, 0.0, {"step_time": math.nan} if step % 2 else {}))
    assert pace.seconds() is None


values = st.lists(
    st.one_of(st.floats(-10.0, 10.0), st.sampled_from([0.0, 1e308, -1e308, 5e-324, math.nan, math.inf])), max_size=120
)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(0, 120), st.sampled_from([12, 40, 200]))
def test_trend_and_pace_take_anything_and_a_restart_changes_nothing(series: list[float], cut: int, span: int) -> None:
    trend, pace = pushed(series[:cut], span=span, points=20), paced(series[:cut])
    trend_again, pace_again = Trend(span=span, points=20), Pace()
    trend_again.load_state_dict(json.loads(json.dumps(trend.state_dict(), allow_nan=False)))
    pace_again.load_state_dict(json.loads(json.dumps(pace.state_dict(), allow_nan=False)))
    for step, value in enumerate(series[cut:], start=cut + 1):
        for each in (trend, trend_again):
            each.push(step, value)
        for other in (pace, pace_again):
            other.push(StepSample(step, 1, float(step), {"step_time": value}))
    assert trend_again.state_dict() == trend.state_dict()
    assert pace_again.seconds() == pace.seconds()
    line = theil_sen(*trend.series())
    assert line is None or all(map(math.isfinite, line))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e150, 1e150), min_size=8, max_size=80))
def test_a_growth_is_found_or_not_but_never_breaks(series: list[float]) -> None:
    found = find_growth(list(range(len(series))), series)
    if found is not None:
        assert 0.0 <= found.onset <= found.step
        met = found.arrival(1e151)
        assert met is None or 0.0 <= met.early <= met.steps <= met.late <= NEVER


@pytest.mark.parametrize("span", [40, 100, 300])
@pytest.mark.parametrize(
    ("shape", "power"), [(lambda u: u, 1.0), (lambda u: u * u, 2.0), (lambda u: math.expm1(2.0 * u), 0.0)]
)
def test_the_shape_of_a_growth_without_noise_is_known_half_way(span: int, shape: object, power: float) -> None:
    assert callable(shape)
    xs = list(range(-30, span // 2 + 1))
    found = find_growth(xs, [50.0 + 30.0 * shape(max(0, x) / span) / shape(1.0) for x in xs])
    assert found is not None
    assert found.shape.power == power
    met = found.arrival(80.0)
    assert met is not None
    assert met.steps == pytest.approx(span - span // 2, rel=0.15)
