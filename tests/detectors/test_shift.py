"""The test for slow and moderate changes: what it finds, what it lets pass, and how it learns from a run's own past."""

from __future__ import annotations

import json
import math
import random

import pytest

from exporter.detectors.calibration import BlockMaxima, Budget
from exporter.detectors.shift import Shift

RARITY = Budget().rarity()


def noise(count: int, seed: int, scale: float = 1.0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.0, scale) for _ in range(count)]


def found(values: list[float], *, rising: bool = True, least: float = 0.0, rarity: float = RARITY) -> list[int]:
    """Steps (from 0) at which a change is seen."""
    series = Shift(least_noise=1e-6)
    steps = []
    for step, value in enumerate(values):
        series.push(step, value)
        if series.change(rising=rising, least=least, rarity=rarity) is not None:
            steps.append(step)
    return steps


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_shows_no_change_in_two_thousand_steps(seed: int) -> None:
    assert found(noise(2000, seed)) == []
    assert found(noise(2000, seed), rising=False) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("size", "within"), [(6.0, 5), (4.0, 9), (3.0, 30)])
def test_a_larger_change_of_level_is_found_sooner(seed: int, size: float, within: int) -> None:
    values = noise(300, seed)
    changed = values[:200] + [value + size for value in values[200:]]
    steps = found(changed)
    assert 200 <= steps[0] < 200 + within
    assert found([-value for value in changed], rising=False)[0] == steps[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_that_is_too_slow_for_any_single_step_is_found(seed: int) -> None:
    values = noise(400, seed)
    drifting = values[:200] + [value + 0.1 * step for step, value in enumerate(values[200:])]
    assert 200 <= found(drifting)[0] < 260


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("height", [10.0, 1e3, 1e12, -1e12])
def test_one_wild_value_is_no_change_however_large(seed: int, height: float) -> None:
    values = noise(300, seed)
    values[200] = height
    assert found(values) == found(values, rising=False) == []


def test_a_change_that_is_too_small_to_matter_is_not_said_however_clear() -> None:
    values = noise(300, 0, scale=0.001)
    changed = values[:200] + [value + 0.05 for value in values[200:]]
    assert found(changed, least=0.04) != []
    assert found(changed, least=0.06) == []


def test_a_run_that_always_moves_that_much_is_not_found_for_it() -> None:
    """Its level wanders by several times its noise, over and over: that is how this run lives."""
    values = [value + 3.0 * math.sin(step / 25) for step, value in enumerate(noise(1500, 1))]
    assert [step for step in found(values) if step > 800] == []
    moved = values[:1000] + [value + 20.0 for value in values[1000:]]
    assert next(step for step in found(moved) if step > 800) in range(1000, 1015)


def test_the_estimated_onset_is_within_two_steps_of_a_jump_and_early_in_a_slope() -> None:
    series = Shift(least_noise=1e-6)
    for step, value in enumerate(noise(210, 3)):
        series.push(step, value + (5.0 if step >= 200 else 0.0))
    change = series.change(rising=True, least=1.0, rarity=RARITY)
    assert change is not None
    assert abs(series.onset(change) - 200) <= 2


def test_after_a_restart_nothing_is_said_until_it_is_warm_again_but_the_run_is_remembered() -> None:
    series = Shift(least_noise=1e-6)
    for step, value in enumerate(noise(600, 5)):
        series.push(step, value)
    series.restart()
    assert series.last_step == -1
    for step, value in enumerate(noise(200, 6)):
        series.push(step, value + 1000.0)
        assert series.change(rising=True, least=0.0, rarity=RARITY) is None


@pytest.mark.parametrize("constant", [0.0, 1.0, -1e-30, 1e30, -1e30])
def test_a_constant_never_changes(constant: float) -> None:
    assert found([constant] * 400) == found([constant] * 400, rising=False) == []


def test_state_that_went_through_json_goes_on_exactly() -> None:
    values = [value + step / 100 for step, value in enumerate(noise(900, 7))]
    one, other = Shift(least_noise=0.01), Shift(least_noise=0.01)
    for step, value in enumerate(values):
        one.push(step, value)
        other.push(step, value)
        if step % 130 == 0:
            fresh = Shift(least_noise=0.01)
            fresh.load(json.loads(json.dumps(other.state(), allow_nan=False)))
            other = fresh
        for rising in (True, False):
            expected = one.change(rising=rising, least=0.0, rarity=3.0)
            assert other.change(rising=rising, least=0.0, rarity=3.0) == expected
    assert one.state() == other.state()


def test_a_smaller_budget_asks_for_more_and_so_does_a_faster_run() -> None:
    assert Budget(0.1).rarity() > Budget(1.0).rarity() > Budget(100.0).rarity()
    assert Budget().rarity(step_seconds=1.0) > Budget().rarity(step_seconds=600.0)


@pytest.mark.parametrize("pages", [0.0, -1.0, math.nan, math.inf, 1e6, True])
def test_a_budget_that_is_none_is_refused(pages: float) -> None:
    with pytest.raises(ValueError, match="pages_per_week is"):
        Budget(pages)


def test_thresholds_follow_the_largest_values_of_past_blocks() -> None:
    calm, wild = BlockMaxima(1, 2.0, 0.5), BlockMaxima(1, 2.0, 0.5)
    for value in noise(4000, 8):
        for usual, statistic in ((calm, abs(value)), (wild, 3.0 * abs(value))):
            usual.raise_to(0, statistic)
            usual.step()
    assert wild.quantile(0, RARITY) > 2.0 * calm.quantile(0, RARITY)
    assert calm.quantile(0, RARITY) > calm.quantile(0, 5.0)


def test_what_is_found_is_not_learned() -> None:
    usual = BlockMaxima(1, 2.0, 0.5)
    for value in noise(1000, 9):
        usual.raise_to(0, abs(value))
        usual.step()
    before = usual.quantile(0, RARITY)
    for _ in range(200):
        usual.raise_to(0, 50.0)
        usual.step()
        usual.found([0])
    assert usual.quantile(0, RARITY) <= before * 1.05
