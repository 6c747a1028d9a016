"""Aborted rollouts: a share of empty answers that chance does not explain is found; single ones are not."""

from __future__ import annotations

import math
import random

import pytest
from streams import critical, read
from timed_runs import Steps, observed, restarted_in_between, wild

from bench.detection.runs import DATA
from exporter.detectors.aborted_rollouts import AbortedRollouts
from exporter.detectors.base import Severity, StepSample

FAULT = 60


def answers(share: float, of: int, seed: int = 0, before: float = 0.0, steps: int = 140) -> Steps:
    """Steps of ``of`` answers, each empty with probability ``before``, and ``share`` from step FAULT on."""
    rng = random.Random(seed)
    return [
        (step, {"aborted_ratio": sum(rng.random() < (share if step >= FAULT else before) for _ in range(of)) / of})
        for step in range(1, steps)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "of", "within"), [(0.05, 64, 12), (0.05, 512, 5), (0.02, 512, 10), (0.3, 1024, 5)])
def test_a_share_well_above_the_limit_is_a_page_with_its_onset(share: float, of: int, within: int, seed: int) -> None:
    page = critical(observed(AbortedRollouts(), answers(share, of, seed)))[0]
    assert FAULT <= page.step <= FAULT + within
    assert FAULT <= page.onset <= FAULT + 3


@pytest.mark.parametrize("of", [32, 128, 1024])
def test_a_share_below_the_limit_is_no_page_whatever_the_batch(of: int) -> None:
    for seed in range(5):
        assert critical(observed(AbortedRollouts(), answers(0.003, of, seed, before=0.003, steps=400))) == []


def test_one_empty_answer_in_a_hundred_is_no_finding() -> None:
    run = [(step, {"aborted_ratio": 0.01 if step in (40, 300) else 0.0}) for step in range(1, 400)]
    assert observed(AbortedRollouts(), run) == []


def test_one_step_in_which_many_answers_are_empty_is_no_finding() -> None:
    run = [(step, {"aborted_ratio": 0.4 if step == FAULT else 0.0}) for step in range(1, 120)]
    assert observed(AbortedRollouts(), run) == []


def test_a_share_that_never_changes_is_found_too() -> None:
    run = [(step, {"aborted_ratio": 0.05 if step >= FAULT else 0.0}) for step in range(1, 120)]
    assert critical(observed(AbortedRollouts(), run))[0].step <= FAULT + 10


def test_a_run_of_which_a_share_is_empty_from_its_first_steps_on_is_configured_so() -> None:
    assert critical(observed(AbortedRollouts(), answers(0.03, 256, before=0.03, steps=500))) == []
    assert critical(observed(AbortedRollouts(), answers(0.12, 256, before=0.03)))


def test_prompt_groups_that_are_dropped_step_after_step_are_a_page_and_some_now_and_then_are_none() -> None:
    def run(bad: range) -> Steps:
        return [(step, {"rollout_evicted": 3.0 if step in bad else 0.0}) for step in range(1, 200)]

    page = critical(observed(AbortedRollouts(), run(range(FAULT, 200))))[0]
    assert page.step <= FAULT + 10
    assert page.onset == FAULT
    assert "dropped prompt groups" in page.summary
    assert observed(AbortedRollouts(), run(range(5, 200, 40))) == []


def test_the_first_steps_and_those_after_a_resume_are_not_judged() -> None:
    detector = AbortedRollouts()
    bad = [(step, {"aborted_ratio": 0.1}) for step in range(1, 15)]
    assert observed(detector, bad) == []
    assert observed(detector, answers(0.1, 64))
    detector.resumed(10, 2)
    assert observed(detector, [(step + 10, signals) for step, signals in bad]) == []


def test_the_second_part_of_a_step_counts_nothing_twice() -> None:
    detector = AbortedRollouts()
    observed(detector, answers(0.1, 64, steps=FAULT + 2))
    before = detector.state_dict()
    assert detector.observe(StepSample(FAULT + 1, 1, 0.0, {"aborted_ratio": 0.9})) == []
    assert detector.state_dict() == before


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 7.0])
def test_a_share_that_is_none_is_ignored(value: float) -> None:
    run = [(step, {"aborted_ratio": value if step > 30 else 0.0}) for step in range(1, 100)]
    assert observed(AbortedRollouts(), run) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_nothing_raises_and_a_restart_in_between_changes_nothing(seed: int) -> None:
    run = [
        (step, {name: min(value / 1e3, 1.0) if 0.0 < value < math.inf else value for name, value in signals.items()})
        for step, signals in wild(seed, ("aborted_ratio", "rollout_evicted"), 200)
    ]
    whole, halves = restarted_in_between(AbortedRollouts, run, 20 + 8 * seed)
    assert whole == halves
    assert all(math.isfinite(v.score) and v.score > v.threshold and v.onset <= v.step for v in whole)


def test_a_warning_comes_before_the_page() -> None:
    severities = [v.severity for v in observed(AbortedRollouts(), answers(0.03, 128))]
    assert severities[0] is Severity.WARNING
    assert severities[-1] is Severity.CRITICAL


def test_options_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="limit is 2: it must not be above a share of all answers"):
        AbortedRollouts(limit=2)
    with pytest.raises(ValueError, match="page_steps is 90: it must not be above window"):
        AbortedRollouts(page_steps=90)


@pytest.mark.skipif(not DATA.is_dir(), reason="the real logs are not here")
def test_the_real_runs_have_no_finding() -> None:
    for log in DATA.glob("*.gz"):
        assert observed(AbortedRollouts(), read(log)) == []
