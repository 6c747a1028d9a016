"""Canonical signals: one name whatever verl version and trainer spelled it."""

from __future__ import annotations

import math

import pytest

from exporter.signals import SIGNALS, canonical

GRPO_V1 = {
    "actor/entropy": 4.598,
    "actor/ppo_kl": 0.001,
    "actor/pg_clipfrac": 0.02,
    "actor/pg_loss": -0.03,
    "actor/loss": -0.02,
    "actor/grad_norm": 0.36,
    "actor/lr": 0.003,
    "actor/kl_loss": 0.07,
    "actor/kl_coef": 0.001,
    "actor/perf/max_memory_reserved_gb": 2.0,
    "critic/score/mean": 0.17,
    "critic/rewards/mean": 0.16,
    "critic/advantages/max": 1.4,
    "critic/advantages/min": -1.3,
    "response_length/mean": 15.25,
    "response_length/clip_ratio": 0.84,
    "timing_s/gen": 2.0,
    "timing_s/step": 2.3,
    "timing_s/update_weights": 0.02,
    "perf/throughput": 539.9,
    "perf/mfu/actor": 0.015,
    "rollout_corr/kl": -2e-9,
}


def test_the_v1_trainers_keys_become_signals_in_base_units() -> None:
    signals = canonical(GRPO_V1, trainer="ppo_v1")
    assert signals["loss"] == -0.02
    assert signals["pg_loss"] == -0.03
    assert signals["kl"] == 0.07
    assert signals["reward"] == 0.17
    assert signals["advantage_spread"] == pytest.approx(2.7)
    assert signals["gpu_memory"] == 2.0 * 1024**3
    assert signals["step_time"] == 2.3
    assert signals["rollout_kl"] == -2e-9


def test_the_legacy_trainers_spelling_without_actor_prefix_gives_the_same_signal() -> None:
    assert canonical({"perf/max_memory_reserved_gb": 2.0, "perf/cpu_memory_used_gb": 1.0}, "ppo_legacy") == {
        "gpu_memory": 2.0 * 1024**3,
        "host_memory": 1024.0**3,
    }


def test_sft_keys_become_the_same_names() -> None:
    signals = canonical({"train/loss": 3.3, "train/grad_norm": 3.7, "train/lr": 1e-3, "val/loss": 3.2}, "sft")
    assert signals == {"loss": 3.3, "grad_norm": 3.7, "lr": 1e-3, "val_loss": 3.2}


@pytest.mark.parametrize("key", ["actor/kl_loss", "actor/reward_kl_penalty", "critic/kl"])
def test_every_kl_against_the_reference_is_the_signal_kl(key: str) -> None:
    assert canonical({key: 0.3}) == {"kl": 0.3}


def test_an_unknown_trainer_tries_every_spelling() -> None:
    assert canonical({"train/loss": 1.0}, trainer="of tomorrow") == {"loss": 1.0}


def test_nan_and_infinity_stay_for_the_detectors() -> None:
    signals = canonical({"actor/loss": math.nan, "actor/grad_norm": math.inf})
    assert math.isnan(signals["loss"])
    assert signals["grad_norm"] == math.inf


def test_a_nan_kl_whose_coefficient_is_zero_is_no_signal() -> None:
    assert "kl" not in canonical({"critic/kl": math.nan, "critic/kl_coeff": 0.0})
    assert "kl" in canonical({"critic/kl": math.nan, "critic/kl_coeff": 0.001})


def test_validation_is_the_mean_over_data_sources() -> None:
    signals = canonical({"val-core/gsm8k/acc/mean@1": 0.5, "val-core/math/acc/mean@1": 0.7, "val-aux/x/mean@1": 9.0})
    assert signals == {"val_reward": pytest.approx(0.6)}


@pytest.mark.parametrize("value", ["1.0", None, [1.0], {}, b"1", 10**400])
def test_what_is_no_number_is_left_out(value: object) -> None:
    assert canonical({"actor/loss": value}) == {}  # type: ignore[dict-item]


def test_a_number_of_another_type_counts() -> None:
    numpy = pytest.importorskip("numpy")
    assert canonical({"actor/loss": numpy.float32(0.5), "actor/grad_norm": 2}) == {"loss": 0.5, "grad_norm": 2.0}


def test_one_half_of_a_difference_is_no_signal() -> None:
    assert canonical({"critic/advantages/max": 1.0}) == {}


def test_every_signal_has_a_description_and_a_prometheus_safe_name() -> None:
    assert all(name == s.name and s.description and name.isidentifier() for name, s in SIGNALS.items())
