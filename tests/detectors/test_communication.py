"""Communication: a weight sync that takes longer and more of the step is found; one that only looks so is not."""

from __future__ import annotations

import math

import pytest
from streams import critical
from timed_runs import Steps, observed, restarted_in_between, slowed, summed, timed, wild

from exporter.detectors.base import Severity
from exporter.detectors.communication import Communication

FAULT = 120
SYNC = ["weight_sync_time"]
SEEDS = range(8)


def with_sync(factor: float, seed: int = 0, sync: float = 1.0) -> Steps:
    """A run whose weight sync (3 s of 35, times ``sync``) takes ``factor`` times as long from step FAULT on."""
    run = slowed(timed(FAULT + 40, seed), 1, lambda _: sync, SYNC)
    return slowed(run, FAULT, lambda _: factor, SYNC)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sync_that_takes_three_times_as_long_is_a_page_with_its_onset(seed: int) -> None:
    page = critical(observed(Communication(), with_sync(3.0, seed)))[0]
    assert FAULT <= page.step <= FAULT + 10
    assert abs(page.onset - FAULT) <= 2
    assert "NCCL_DEBUG" in page.advice[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_share_that_is_half_as_large_again_is_at_least_a_warning(seed: int) -> None:
    verdicts = observed(Communication(), with_sync(1.55, seed))
    assert verdicts
    assert verdicts[0].step >= FAULT


@pytest.mark.parametrize("seed", SEEDS)
def test_a_share_that_grows_because_the_rest_got_faster_is_no_finding(seed: int) -> None:
    run = timed(FAULT + 60, seed, length=lambda step: 1.0 if step < FAULT else 0.3)
    shares = [m["weight_sync_time"] / m["step_time"] for _, m in run]
    assert min(shares[FAULT + 5 :]) > 1.3 * max(shares[5 : FAULT - 5]), "the share has grown by far more than 30 %"
    assert observed(Communication(), run) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sync_that_grows_with_the_whole_step_is_a_matter_of_step_time(seed: int) -> None:
    assert observed(Communication(), slowed(timed(FAULT + 60, seed), FAULT, lambda _: 2.0)) == []


def test_a_sync_of_a_hundredth_of_the_step_that_trebles_is_a_warning_and_no_page() -> None:
    verdicts = observed(Communication(), with_sync(3.0, sync=0.12))
    assert {v.severity for v in verdicts} == {Severity.WARNING}


def test_a_sync_of_some_milliseconds_may_treble_in_silence() -> None:
    assert observed(Communication(), with_sync(3.0, sync=0.01)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_slow_sync_heals(seed: int) -> None:
    run = slowed(timed(200, seed), FAULT, lambda n: 10.0 if n in (0, 7, 30) else 1.0, SYNC)
    assert observed(Communication(), run) == []


def test_validation_within_the_step_hides_no_share() -> None:
    run = with_sync(3.0)
    for step, signals in run:
        if step % 2 == 0:
            signals["validation_time"] = 200.0
            summed(signals, extra=200.0)
    page = critical(observed(Communication(), run))[0]
    assert FAULT <= page.step <= FAULT + 10


def test_after_a_resume_another_level_is_no_finding() -> None:
    detector = Communication()
    observed(detector, timed(100))
    detector.resumed(50, 2)
    slower = slowed(timed(60), 1, lambda _: 5.0, SYNC)
    assert observed(detector, [(step + 50, signals) for step, signals in slower]) == []


def test_a_run_without_weight_sync_is_left_alone() -> None:
    assert observed(Communication(), [(step, {"step_time": 30.0 + step}) for step in range(1, 100)]) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_nothing_raises_and_a_restart_in_between_changes_nothing(seed: int) -> None:
    names = ("step_time", "weight_sync_time", "validation_time", "generation_time")
    whole, halves = restarted_in_between(Communication, wild(seed, names, 400), 40 + 15 * seed)
    assert whole == halves
    assert all(math.isfinite(v.score) and v.score > v.threshold and v.onset <= v.step for v in whole)


def test_the_wild_runs_have_findings_to_compare() -> None:
    names = ("step_time", "weight_sync_time")
    assert sum(len(observed(Communication(), wild(seed, names, 400))) > 0 for seed in range(20)) > 3


def test_options_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="page_share is 2: it must not be above a share of the step"):
        Communication(page_share=2)
    with pytest.raises(ValueError, match="warn_factor is 3: it must not be above page_factor"):
        Communication(warn_factor=3)
