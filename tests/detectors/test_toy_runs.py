"""Runs of the stock verl 0.9.1 trainer on the toy task, recorded: one healthy, one with a real fault at step 25."""

from __future__ import annotations

from streams import HERE, critical, read, watch

from exporter.detectors.registry import build_detectors

FAULT = 25


def test_the_healthy_run_has_no_page_and_no_warning() -> None:
    verdicts = watch(build_detectors().step, read(HERE / "data" / "toy_healthy.jsonl.gz"))
    assert [v for v in verdicts if v.severity > 1] == []


def test_a_learning_rate_far_too_large_gives_two_critical_signals_within_three_steps() -> None:
    steps = list(read(HERE / "data" / "toy_learning_rate.jsonl.gz"))
    pages = critical(watch(build_detectors().step, steps))
    early = [page for page in pages if page.step <= FAULT + 3]
    assert {page.signal for page in early} >= {"kl", "ppo_kl"}
    assert min(page.step for page in pages) >= FAULT
    assert {page.onset for page in early} == {FAULT}


def test_a_weight_that_becomes_nan_is_found_in_the_same_step_and_certain_in_the_next() -> None:
    steps = list(read(HERE / "data" / "toy_nan.jsonl.gz"))
    pages = critical(watch(build_detectors().step, steps))
    assert {page.signal for page in pages if page.step == FAULT} >= {"loss", "grad_norm"}
    assert max(page.confidence for page in pages if page.step == FAULT + 1) == 1.0
    assert {page.onset for page in pages} == {FAULT}
    assert min(page.step for page in pages) == FAULT
