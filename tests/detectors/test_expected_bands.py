"""What detectors expect of the next value: for every signal of a learning panel, true of healthy runs, and finite."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Signals, healthy
from test_detector_properties import runs

from exporter.detectors.base import Expectation, Expecting, StepSample
from exporter.detectors.clipping import Clipping
from exporter.detectors.entropy import Entropy
from exporter.detectors.kl import Kl
from exporter.detectors.level import Level
from exporter.detectors.registry import DetectorSet, build_detectors
from exporter.detectors.response_length import ResponseLength
from exporter.detectors.reward import Reward
from exporter.detectors.rollout_mismatch import RolloutMismatch
from exporter.protocol import numbers
from exporter.signals import canonical

DATA = Path(__file__).parent / "data"
PANELS = (
    *("reward", "val_reward", "kl", "ppo_kl", "entropy", "grad_norm", "loss", "response_length"),
    *("clip_ratio", "pg_clipfrac", "rollout_kl", "rollout_k3_kl", "rollout_probs_diff"),
)
"""Signals of the learning panels."""
EARLY = 20
"""The step by which each has a band, but for validation."""


def toy(seed: int) -> list[tuple[int, Signals]]:
    """Steps of a recorded healthy run of the toy model."""
    with gzip.open(DATA / f"healthy-{seed}.jsonl.gz", "rt") as file:
        batches = [line["batch"] for line in map(json.loads, file) if "batch" in line]
    sent = [step for batch in batches for step in batch.get("steps", ())]
    return [(step["step"], canonical(numbers(step["metrics"]))) for step in sent]


def expected(detectors: DetectorSet) -> dict[str, Expectation]:
    """As it is shown: of several detectors the first."""
    found: dict[str, Expectation] = {}
    for detector in detectors.step:
        if isinstance(detector, Expecting):
            found = {**detector.expected(), **found}
    return found


def sample(step: int, signals: Mapping[str, float]) -> StepSample:
    return StepSample(step, 1, 0.0, signals)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_learning_signal_has_a_band_early_that_nearly_every_healthy_value_lies_in(seed: int) -> None:
    detectors = build_detectors()
    inside: dict[str, list[bool]] = defaultdict(list)
    for step, signals in toy(seed):
        bands = expected(detectors)
        for signal in PANELS:
            band = bands.get(signal)
            if signal in signals and band is not None:
                inside[signal].append(band.lower <= signals[signal] <= band.upper)
            assert band is not None or step < EARLY or signal == "val_reward", f"{signal} has no band at step {step}"
        for detector in detectors.step:
            detector.observe(sample(step, signals))
    assert inside.keys() == set(PANELS)
    for signal, hits in inside.items():
        assert sum(hits) >= 0.95 * len(hits), f"{signal}: {sum(hits)} of {len(hits)} inside"


@pytest.mark.parametrize("seed", range(5))
def test_a_band_is_not_so_wide_that_it_says_nothing(seed: int) -> None:
    """A value far from all that were seen lies outside, in the directions in which the signal is watched."""
    rng, detectors = random.Random(seed), build_detectors()
    usual = {"reward": 0.5, "response_length": 400.0, "clip_ratio": 0.05, "rollout_probs_diff": 0.004}
    for step in range(1, 41):
        signals = {name: value * rng.uniform(0.8, 1.2) for name, value in usual.items()}
        signals["rollout_kl"] = 0.003 * rng.uniform(0.8, 1.2)
        for detector in detectors.step:
            detector.observe(sample(step, signals))
    bands = expected(detectors)
    assert bands["reward"].lower > 0.0
    assert bands["reward"].upper < 1.2
    assert 100.0 < bands["response_length"].lower < 400.0 < bands["response_length"].upper < 1600.0
    assert bands["clip_ratio"].lower == 0.0 < bands["clip_ratio"].expected < bands["clip_ratio"].upper < 0.3
    assert bands["rollout_probs_diff"].lower == 0.0 < bands["rollout_probs_diff"].upper < 0.04
    kl = bands["rollout_kl"]
    assert (kl.lower, kl.upper < 0.03) == (-kl.upper, True)
    assert kl.expected == pytest.approx(0.003, rel=0.2)


def test_a_difference_that_is_on_both_sides_of_zero_is_expected_there() -> None:
    detector, rng = RolloutMismatch(), random.Random(1)
    for step in range(1, 61):
        detector.observe(sample(step, {"rollout_kl": rng.gauss(0.0, 0.001)}))
    band = detector.expected()["rollout_kl"]
    assert band.expected == 0.0
    assert band.lower == -band.upper < 0.0
    for step in range(61, 121):
        detector.observe(sample(step, {"rollout_kl": -0.002 + rng.gauss(0.0, 0.0001)}))
    assert detector.expected()["rollout_kl"].expected < 0.0


def test_measures_that_are_near_one_have_a_band_around_or_below_it() -> None:
    detector, rng = RolloutMismatch(), random.Random(1)
    for step in range(1, 41):
        signals = {
            "rollout_ppl_ratio": 1.0 + rng.gauss(0.0, 0.01),
            "rollout_probs_correlation": 1.0 - abs(rng.gauss(0.0, 0.01)),
        }
        detector.observe(sample(step, signals))
    ratio, correlation = (detector.expected()[name] for name in signals)
    assert 0.7 < ratio.lower < 0.99
    assert 1.01 < ratio.upper < 1.4
    assert correlation.upper == 1.0
    assert 0.7 < correlation.lower < 0.99


def validated(values: Iterable[float]) -> Reward:
    """A reward detector that has seen these validations, one every tenth step."""
    detector = Reward()
    for place, value in enumerate(values, start=1):
        for step in range(10 * place - 9, 10 * place + 1):
            more = {"val_reward": value} if step == 10 * place else {}
            detector.observe(sample(step, {"reward": 0.5 + step % 3 / 100, **more}))
    return detector


def test_validation_has_a_band_once_there_are_enough_of_them() -> None:
    for count in range(1, 4):
        assert "val_reward" not in validated([0.5] * count).expected()
    band = validated([0.50, 0.55, 0.52, 0.56]).expected()["val_reward"]
    assert band.lower < 0.45
    assert band.expected == pytest.approx(0.5325)
    assert 0.6 < band.upper < 1.0
    again = Reward()
    again.load_state_dict(json.loads(json.dumps(validated([0.50, 0.55, 0.52, 0.56]).state_dict())))
    assert again.expected() == validated([0.50, 0.55, 0.52, 0.56]).expected()


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.05])
def test_the_next_validation_lies_in_the_band_also_while_it_rises(slope: float) -> None:
    rng, hits = random.Random(7), []
    for _ in range(100):
        values = [0.2 + slope * n + rng.gauss(0.0, 0.03) for n in range(rng.randint(5, 30))]
        band = validated(values[:-1]).expected()["val_reward"]
        hits.append(band.lower <= values[-1] <= band.upper)
    assert sum(hits) >= 95


def test_nothing_is_expected_before_enough_was_seen_and_after_a_resume() -> None:
    detectors = build_detectors()
    for step, signals in healthy(14):
        assert expected(detectors) == {}
        for detector in detectors.step:
            detector.observe(sample(step, signals))
    for step, signals in healthy(40):
        for detector in detectors.step:
            detector.observe(sample(step, signals))
    assert expected(detectors)
    detectors.resumed(20, 2)
    assert expected(detectors) == {}


@settings(max_examples=60, deadline=None)
@given(runs())
def test_whatever_comes_in_a_band_is_finite_and_in_order(samples: list[StepSample]) -> None:
    detectors = build_detectors()
    for one in samples:
        for detector in detectors.step:
            detector.observe(one)
        for signal, band in expected(detectors).items():
            assert all(map(math.isfinite, band)), signal
            assert band.lower <= band.expected <= band.upper, signal


EVERY = (
    (Clipping, ("pg_clipfrac", "clip_ratio")),
    (Entropy, ("entropy",)),
    (Kl, ("kl", "ppo_kl")),
    (Level, ("loss", "grad_norm", "critic_loss", "critic_grad_norm")),
    (ResponseLength, ("response_length",)),
    (Reward, ("reward",)),
    (RolloutMismatch, ("rollout_kl", "rollout_k3_kl", "rollout_log_ppl_diff", "rollout_probs_diff")),
    (RolloutMismatch, ("rollout_ppl_ratio", "rollout_probs_correlation")),
)
extremes = st.sampled_from([0.0, 1.0, 0.5, -1.0, 1e-30, 1e30, -1e30, 1e308, -1e308, 2.0])


@settings(max_examples=100, deadline=None)
@given(st.lists(extremes, min_size=20, max_size=60), st.sampled_from(EVERY))
def test_a_series_of_extremes_has_a_finite_band(
    values: list[float], watched: tuple[Callable[[], Any], tuple[str, ...]]
) -> None:
    make, signals = watched
    detector = make()
    for step, value in enumerate(values, start=1):
        detector.observe(sample(step, dict.fromkeys(signals, value)))
        found = detector.expected()
        for band in found.values():
            assert all(map(math.isfinite, band))
            assert band.lower <= band.expected <= band.upper
    assert found.keys() == set(signals)
