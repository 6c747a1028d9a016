"""What a verl configuration promises is read as verl itself reads it, and nothing that it may contain is an error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.detectors.setup import UNKNOWN, LrSchedule, Scalar, from_config

ACTOR = "actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"

PPO: dict[str, Scalar] = {
    "trainer.total_training_steps": None,
    "trainer.critic_warmup": 0,
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "data.max_response_length": 512,
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.use_kl_loss": False,
    "algorithm.use_kl_in_reward": False,
    f"{OPTIM}.lr": 1e-6,
    f"{OPTIM}.lr_warmup_steps": -1,
    f"{OPTIM}.lr_warmup_steps_ratio": 0.0,
    f"{OPTIM}.lr_scheduler_type": "constant",
    f"{OPTIM}.warmup_style": None,
    f"{OPTIM}.min_lr_ratio": 0.0,
    f"{OPTIM}.num_cycles": 0.5,
    f"{OPTIM}.zero_indexed_step": True,
    f"{OPTIM}.total_training_steps": 200,
}
"""As verl 0.9.1 gives it to its tracking."""


def rates(config: dict[str, Scalar], *steps: int) -> list[float | None]:
    schedule = from_config(config).lr
    assert schedule is not None
    return [schedule.logged_with(step) for step in steps]


def test_a_plain_configuration() -> None:
    made = from_config(PPO)
    assert (made.total_steps, made.max_response_length, made.uses_kl) == (200, 512, False)
    assert rates(PPO, 1, 100, 200) == [1e-6, 1e-6, 1e-6]
    assert made.critic_lr is None


def test_a_warm_up_by_ratio_counts_updates_and_the_rate_of_a_step_is_the_one_after_its_update() -> None:
    config = PPO | {f"{OPTIM}.lr_warmup_steps_ratio": 0.05}
    assert rates(config, 1, 5, 9, 10, 11) == pytest.approx([1e-7, 5e-7, 9e-7, 1e-6, 1e-6])


def test_a_number_of_warm_up_steps_wins_over_a_ratio() -> None:
    config = PPO | {f"{OPTIM}.lr_warmup_steps_ratio": 0.5, f"{OPTIM}.lr_warmup_steps": 4}
    assert rates(config, 2, 4) == pytest.approx([5e-7, 1e-6])


@pytest.mark.parametrize("name", ["lr_scheduler_type", "warmup_style"])
def test_a_cosine_ends_at_its_least(name: str) -> None:
    config = PPO | {f"{OPTIM}.{name}": "cosine", f"{OPTIM}.min_lr_ratio": 0.1}
    assert rates(config, 0, 100, 200) == pytest.approx([1e-6, 0.55e-6, 1e-7])


def test_a_trainer_that_syncs_after_several_updates_schedules_updates() -> None:
    config = PPO | {
        "trainer.v1.trainer_mode": "separate_async",
        f"{OPTIM}.total_training_steps": 800,
        f"{OPTIM}.lr_warmup_steps": 8,
    }
    assert from_config(config).total_steps == 200
    assert rates(config, 1, 2) == pytest.approx([5e-7, 1e-6])


def test_a_critic_that_trains_alone_first_delays_the_actor_but_not_itself() -> None:
    config = PPO | {"trainer.critic_warmup": 10, f"{OPTIM}.lr_warmup_steps": 4, "critic.optim.lr": 1e-5}
    config |= {"critic.strategy": "fsdp", "critic.optim.lr_warmup_steps": 4}
    assert rates(config, 10, 13) == pytest.approx([2.5e-7, 1e-6])
    critic = from_config(config).critic_lr
    assert critic is not None
    assert critic.logged_with(2) == pytest.approx(5e-6)


def test_megatron_spells_it_in_its_own_way() -> None:
    config: dict[str, Scalar] = {
        f"{ACTOR}.strategy": "megatron",
        f"{OPTIM}.lr": 1e-5,
        f"{OPTIM}.lr_warmup_steps": 10,
        f"{OPTIM}.lr_warmup_init": 1e-6,
        f"{OPTIM}.lr_decay_style": "linear",
        f"{OPTIM}.lr_decay_steps": 110,
        f"{OPTIM}.min_lr": 1e-6,
        f"{OPTIM}.total_training_steps": 500,
    }
    assert rates(config, 0, 5, 10, 60, 110, 400) == pytest.approx([1e-6, 5.5e-6, 1e-5, 5.5e-6, 1e-6, 1e-6])


def test_sft_has_its_optimizer_at_the_top() -> None:
    config: dict[str, Scalar] = {"optim.lr": "1e-5", "optim.lr_warmup_steps": 2, "trainer.total_training_steps": 10}
    assert rates(config, 1, 2) == pytest.approx([5e-6, 1e-5])
    assert from_config(config).total_steps == 10


@pytest.mark.parametrize(
    "more",
    [
        {f"{OPTIM}.lr": None},
        {f"{OPTIM}.lr": "fast"},
        {f"{OPTIM}.lr": math.nan},
        {f"{OPTIM}.lr": -1e-6},
        {f"{OPTIM}.lr": True},
        {f"{OPTIM}.lr_scheduler_type": "polynomial"},
        {f"{OPTIM}.lr_warmup_steps": "some"},
        {f"{OPTIM}.lr_warmup_steps_ratio": 0.1, f"{OPTIM}.total_training_steps": -1},
        {f"{ACTOR}.strategy": "veomni"},
    ],
)
def test_where_the_schedule_is_not_understood_nothing_is_expected(more: dict[str, Scalar]) -> None:
    assert from_config(PPO | more).lr is None


def test_a_cosine_without_an_end_expects_its_warm_up_and_nothing_after() -> None:
    config = PPO | {
        f"{OPTIM}.lr_scheduler_type": "cosine",
        f"{OPTIM}.total_training_steps": -1,
        f"{OPTIM}.lr_warmup_steps": 4,
    }
    assert rates(config, 1, 5) == [2.5e-7, None]


@pytest.mark.parametrize(
    ("loss", "reward", "uses"),
    [(True, False, True), (False, True, True), (False, False, False), (None, None, None), ("yes", None, None)],
)
def test_whether_a_kl_term_is_used(loss: Scalar, reward: Scalar, uses: bool | None) -> None:
    assert from_config({f"{ACTOR}.use_kl_loss": loss, "algorithm.use_kl_in_reward": reward}).uses_kl is uses


def test_of_an_empty_configuration_nothing_is_known() -> None:
    assert from_config({}) == UNKNOWN


odd = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just(10**400))


@given(st.dictionaries(st.sampled_from(sorted(PPO)), odd), st.integers(-5, 10**6))
def test_whatever_the_values_are_there_is_no_error_and_a_rate_is_a_number(config: dict[str, Scalar], step: int) -> None:
    made = from_config(PPO | config)
    if made.lr is not None:
        rate = made.lr.logged_with(step)
        assert rate is None or (math.isfinite(rate) and rate >= 0.0)


def test_a_kind_that_is_not_known_expects_nothing() -> None:
    assert LrSchedule(1e-6, kind="polynomial").at(5) is None
