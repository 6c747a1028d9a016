"""Entropy, KL, response length, clipping, rollout mismatch and level: what each must catch and must not page on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from streams import critical, watch

from exporter.detectors.base import Severity, StepDetector, StepSample, Verdict
from exporter.detectors.clipping import Clipping
from exporter.detectors.entropy import Entropy
from exporter.detectors.kl import Kl
from exporter.detectors.level import Level
from exporter.detectors.response_length import ResponseLength
from exporter.detectors.rollout_mismatch import RolloutMismatch
from exporter.detectors.setup import RunSetup

FAULT = 200
SEEDS = range(4)
Course = Callable[[int], float]
"""From steps since the fault (0 before it) to a factor."""


def run(seed: int, steps: int = 400, **levels: tuple[float, float, Course]) -> list[tuple[int, dict[str, float]]]:
    """Signals by name: level, relative noise, and course."""
    rng = random.Random(seed)
    return [
        (
            step,
            {
                name: level * math.exp(noise * rng.gauss(0.0, 1.0)) * course(max(step - FAULT, 0))
                for name, (level, noise, course) in levels.items()
            },
        )
        for step in range(1, steps + 1)
    ]


def flat(since: int) -> float:
    return 1.0


def grows(factor: float, over: int) -> Course:
    return lambda since: factor ** min(since / over, 1.0)


def first_page(verdicts: Sequence[Verdict]) -> Verdict:
    pages = critical(verdicts)
    assert pages, "nothing paged"
    assert pages[0].step > FAULT, f"paged at step {pages[0].step}, before the fault"
    return pages[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", [0.1, 0.4, 2.0])
def test_entropy_that_collapses_pages_with_its_projected_arrival(seed: int, level: float) -> None:
    steps = run(seed, entropy=(level, 0.05, grows(0.05, 40)), reward=(0.6, 0.1, flat))
    page = first_page(watch([Entropy()], steps))
    assert page.step <= FAULT + 25
    assert FAULT - 3 <= page.onset <= FAULT + 8
    assert page.forecast is not None
    assert page.forecast.limit == 0.02
    assert page.forecast.steps is not None
    assert page.forecast.interval is not None
    assert page.forecast.interval[0] <= page.forecast.steps <= page.forecast.interval[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_entropy_that_declines_slowly_does_not_page(seed: int) -> None:
    for over in (300, 600):
        steps = run(seed, 800, entropy=(0.5, 0.06, grows(0.3, over)), reward=(0.5, 0.15, grows(1.4, over)))
        assert critical(watch([Entropy()], steps)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_entropy_that_rises_pages_unless_the_reward_rises_with_it(seed: int) -> None:
    alone = run(seed, entropy=(0.3, 0.05, grows(5.0, 30)), reward=(0.6, 0.1, grows(0.6, 30)))
    assert first_page(watch([Entropy()], alone)).step <= FAULT + 25
    paid = run(seed, 500, entropy=(0.3, 0.05, grows(2.5, 100)), reward=(0.4, 0.1, grows(1.9, 100)))
    verdicts = watch([Entropy()], paid)
    assert critical(verdicts) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("signal", "level", "factor"), [("kl", 0.02, 40.0), ("ppo_kl", 4e-4, 500.0), ("kl", 0.5, 20.0)]
)
def test_kl_that_runs_away_pages_and_is_foreseen(seed: int, signal: str, level: float, factor: float) -> None:
    said = watch([Kl(limit=100.0 * level * factor)], run(seed, **{signal: (level, 0.2, grows(factor, 40))}))
    page = first_page(said)
    assert page.signal == signal
    assert page.step <= FAULT + 30
    assert page.forecast is not None
    assert page.forecast.limit == 100.0 * level * factor


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", [1e-6, 1e-4, 0.05, 3.0, 50.0])
def test_a_kl_that_lives_at_its_own_level_is_never_said(seed: int, level: float) -> None:
    assert watch([Kl()], run(seed, 800, kl=(level, 0.3, flat), ppo_kl=(level / 10, 0.5, flat))) == []


def test_a_kl_that_grows_as_a_run_learns_does_not_page() -> None:
    for seed in SEEDS:
        assert critical(watch([Kl()], run(seed, 1000, kl=(0.01, 0.2, grows(8.0, 600))))) == []


def test_a_range_of_the_kl_is_kept_where_it_is_given() -> None:
    usual = [(step, {"kl": 0.1}) for step in range(1, 21)]
    above = [(step, {"kl": 0.5}) for step in range(21, 31)]
    below = [(step, {"kl": 0.001}) for step in range(21, 31)]
    detector = Kl(low=0.01, high=0.3)
    assert [v.severity.label for v in watch([detector], usual + above)][:4] == ["warning"] * 3 + ["critical"]
    page = critical(watch([Kl(low=0.01, high=0.3)], usual + below))[0]
    assert (page.step, page.onset) == (25, 21)
    assert "below the range" in page.summary
    assert watch([Kl()], usual + below) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"low": 0.5, "high": 0.3}, "low is 0.5: it must be below high"),
        ({"high": -1.0}, "high is -1.0: it must be a number of at least 0"),
        ({"factor": 1.0}, "factor is 1.0: it must be a number above 1"),
        ({"warn": 0.0}, "warn is 0.0"),
        ({"warmup": 2}, "warmup is 2"),
        ({"window": 19.5}, "window is 19.5"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"detector kl: {sentence}"):
        Kl(**options)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_become_short_page(seed: int) -> None:
    steps = run(seed, response_length=(900.0, 0.15, grows(0.2, 20)), reward=(0.5, 0.2, grows(0.5, 20)))
    page = first_page(watch([ResponseLength()], steps))
    assert page.step <= FAULT + 20
    assert FAULT - 3 <= page.onset <= FAULT + 8


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_become_short_while_the_reward_rises_are_a_note(seed: int) -> None:
    steps = run(seed, response_length=(900.0, 0.15, grows(0.5, 60)), reward=(0.4, 0.1, grows(1.6, 60)))
    assert critical(watch([ResponseLength()], steps)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_grow_page_where_more_are_cut_and_warn_otherwise(seed: int) -> None:
    longer = (600.0, 0.12, grows(3.0, 30))
    cut = run(seed, response_length=longer, clip_ratio=(0.05, 0.2, grows(10.0, 30)))
    assert first_page(watch([ResponseLength()], cut)).step <= FAULT + 30
    whole = watch([ResponseLength()], run(seed, response_length=longer, clip_ratio=(0.01, 0.2, flat)))
    assert critical(whole) == []
    assert any(v.severity is Severity.WARNING for v in whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_double_over_hundreds_of_steps_are_healthy(seed: int) -> None:
    steps = run(seed, 800, response_length=(600.0, 0.15, grows(2.0, 400)), clip_ratio=(0.05, 0.3, grows(2.0, 400)))
    assert critical(watch([ResponseLength(), Clipping()], steps)) == []


def test_a_growth_of_answers_foresees_the_length_limit() -> None:
    setup = RunSetup(max_response_length=4096)
    detector, pages = ResponseLength(), []
    for step, signals in run(1, response_length=(600.0, 0.1, grows(6.0, 60)), clip_ratio=(0.05, 0.2, grows(15.0, 60))):
        pages += [v for v in detector.observe(StepSample(step, 1, float(step), signals, setup)) if v.forecast]
    assert pages
    assert pages[0].forecast is not None
    assert pages[0].forecast.limit == 4096.0


@pytest.mark.parametrize("seed", SEEDS)
def test_clipping_that_saturates_pages(seed: int) -> None:
    tokens = run(seed, pg_clipfrac=(0.004, 0.3, grows(80.0, 15)))
    assert first_page(watch([Clipping()], tokens)).step <= FAULT + 20
    answers = run(seed, clip_ratio=(0.08, 0.3, grows(8.0, 20)))
    assert first_page(watch([Clipping()], answers)).step <= FAULT + 25


@pytest.mark.parametrize("seed", SEEDS)
def test_a_share_of_cut_answers_that_is_high_all_the_time_is_not_said(seed: int) -> None:
    assert watch([Clipping()], run(seed, 600, clip_ratio=(0.7, 0.1, flat), pg_clipfrac=(0.3, 0.2, flat))) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_growing_rollout_mismatch_pages_once_and_a_constant_one_never(seed: int) -> None:
    growing = run(
        seed,
        rollout_k3_kl=(0.002, 0.2, grows(30.0, 30)),
        rollout_log_ppl_diff=(0.01, 0.2, grows(8.0, 30)),
        rollout_ppl_ratio=(1.0, 0.002, grows(1.2, 30)),
    )
    verdicts = watch([RolloutMismatch()], growing)
    assert first_page(verdicts).step <= FAULT + 25
    assert all(len([v for v in verdicts if v.step == step]) <= 1 for step in range(1, 401))
    constant = run(seed, 800, rollout_k3_kl=(0.3, 0.3, flat), rollout_probs_diff=(0.05, 0.2, flat))
    assert watch([RolloutMismatch()], constant) == []


def test_a_falling_correlation_of_probabilities_pages() -> None:
    rng = random.Random(0)
    steps = [
        (step, {"rollout_probs_correlation": 0.99 + 0.002 * rng.gauss(0, 1) - 0.01 * max(0, step - FAULT)})
        for step in range(1, 260)
    ]
    assert first_page(watch([RolloutMismatch()], steps)).step <= FAULT + 15


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_around_zero_that_moves_away_pages_and_one_that_keeps_changing_its_sign_does_not(seed: int) -> None:
    rng = random.Random(seed)
    loss = [0.01 * rng.gauss(0.0, 1.0) for _ in range(400)]
    assert watch([Level()], [(step, {"loss": value}) for step, value in enumerate(loss, start=1)]) == []
    for sign in (1.0, -1.0):
        moved = [(step, {"loss": v + (0.06 * sign if step > FAULT else 0.0)}) for step, v in enumerate(loss, start=1)]
        assert first_page(watch([Level()], moved)).step <= FAULT + 8


@pytest.mark.parametrize("seed", SEEDS)
def test_a_heavy_tailed_gradient_that_stays_several_times_larger_pages(seed: int) -> None:
    steps = run(seed, 600, grad_norm=(1.5, 0.7, grows(10.0, 1)))
    assert first_page(watch([Level()], steps)).step <= FAULT + 35
    assert critical(watch([Level()], run(seed, 1500, grad_norm=(1.5, 0.7, flat)))) == []


@pytest.mark.parametrize(
    ("detector", "signal", "level"),
    [
        (Entropy, "entropy", 0.4),
        (ResponseLength, "response_length", 800.0),
        (Kl, "kl", 0.05),
        (Clipping, "pg_clipfrac", 0.05),
        (RolloutMismatch, "rollout_k3_kl", 0.01),
        (Level, "grad_norm", 0.7),
    ],
)
@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_spike_that_heals_is_not_said(
    detector: Callable[[], StepDetector], signal: str, level: float, factor: float
) -> None:
    for seed in SEEDS:
        steps = run(seed, **{signal: (level, 0.1, lambda since: factor if since in (1, 2) else 1.0)})
        assert [v for v in watch([detector()], steps) if v.severity > Severity.INFO] == []


@pytest.mark.parametrize("detector", [Entropy, ResponseLength, Kl, Clipping, RolloutMismatch, Level])
def test_a_resume_at_another_level_is_not_said(detector: Callable[[], StepDetector]) -> None:
    signals = ("entropy", "response_length", "kl", "ppo_kl", "pg_clipfrac", "rollout_k3_kl", "grad_norm", "loss")
    watched = detector()
    for step, values in run(2, 300, **{name: (0.1, 0.1, flat) for name in signals}):
        assert not watched.observe(StepSample(step, 1, float(step), values))
    watched.resumed(280, 2)
    for step, values in run(3, 300, **{name: (1.0, 0.1, flat) for name in signals}):
        said = watched.observe(StepSample(280 + step, 2, float(step), values))
        assert [v for v in said if v.severity > Severity.INFO] == []
