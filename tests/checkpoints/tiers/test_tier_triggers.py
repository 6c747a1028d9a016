"""Which tier wants a checkpoint."""

from __future__ import annotations

import math

import pytest

from trainer_entry.checkpoints.tiers.jobs import TierState
from trainer_entry.checkpoints.tiers.policy import KlBand, LossFall, Place, Retention, TierPolicy
from trainer_entry.checkpoints.tiers.triggers import wants

SNAPSHOT = TierPolicy(tier="snapshot", places=(Place(url="/a"),), retention=Retention(), every_steps=100)
BY_LOSS = TierPolicy(tier="milestone", places=(Place(url="/a"),), retention=Retention(), loss=LossFall())
BY_KL = TierPolicy(
    tier="milestone",
    places=(Place(url="/a"),),
    retention=Retention(),
    kl=KlBand(metric="kl", low=0.0, high=0.02, every_steps=50),
)


def last(step: int, loss: float | None = None, metric: str = "val/loss") -> TierState:
    return TierState(step=step, name="x", loss=loss, metric="" if loss is None else metric)


def test_saves_every_30_steps_give_one_snapshot_in_each_hundred() -> None:
    taken: list[int] = []
    state: TierState | None = None
    for step in range(30, 500, 30):
        if wants(SNAPSHOT, step, {}, state) is not None:
            taken.append(step)
            state = last(step)
    assert taken == [30, 120, 210, 300, 420]


def test_after_a_rollback_the_same_stretch_is_another_one() -> None:
    assert wants(SNAPSHOT, 130, {}, last(150)) is not None
    assert wants(SNAPSHOT, 160, {}, last(150)) is None


@pytest.mark.parametrize(
    ("before", "now", "wanted"),
    [(2.0, 1.89, True), (2.0, 1.91, False), (-1.0, -1.06, True), (-1.0, -1.04, False)],
)
def test_a_milestone_wants_a_fall_of_more_than_five_percent(before: float, now: float, wanted: bool) -> None:
    assert (wants(BY_LOSS, 20, {"val/loss": now}, last(10, before)) is not None) is wanted


def test_the_first_known_loss_is_the_first_milestone() -> None:
    found = wants(BY_LOSS, 20, {"train/loss": 3.0}, None)
    assert found is not None
    assert found.loss == 3.0


def test_a_loss_is_compared_with_that_of_the_same_metric() -> None:
    both = {"val/loss": 1.0, "train/loss": 1.95}
    assert wants(BY_LOSS, 20, both, last(10, 2.0, "train/loss")) is None
    assert wants(BY_LOSS, 20, {"train/loss": 1.0}, last(10, 2.0)) is None
    found = wants(BY_LOSS, 20, {"val/loss": 2.5, "train/loss": 1.8}, last(10, 2.0, "train/loss"))
    assert found is not None
    assert (found.loss, found.metric) == (1.8, "train/loss")


def test_a_loss_of_a_metric_that_the_policy_no_longer_names_is_not_compared_with() -> None:
    found = wants(BY_LOSS, 20, {"val/loss": 9.0}, last(10, 2.0, "my/loss"))
    assert found is not None
    assert (found.loss, found.metric) == (9.0, "val/loss")


def test_after_a_rollback_the_loss_of_the_branch_that_was_left_is_forgotten() -> None:
    for step in (150, 200):
        found = wants(BY_LOSS, step, {"val/loss": 2.0}, last(200, -1e6))
        assert found is not None
        assert found.loss == 2.0
    assert wants(BY_LOSS, 250, {"val/loss": 2.0}, last(200, -1e6)) is None
    on_target = wants(BY_KL, 150, {"kl": 0.01}, last(200, -1e6))
    assert on_target is not None
    assert on_target.loss is None


@pytest.mark.parametrize("odd", [math.nan, math.inf, "NaN", None, True])
def test_a_loss_that_is_no_number_makes_no_milestone(odd: object) -> None:
    assert wants(BY_LOSS, 20, {"val/loss": odd}, last(10, 3.0)) is None
    assert wants(BY_LOSS, 20, {"val/loss": odd}, None) is None


def test_a_kl_on_target_is_a_milestone_at_most_every_so_many_steps() -> None:
    assert wants(BY_KL, 60, {"kl": 0.02}, last(10)) is not None
    assert wants(BY_KL, 59, {"kl": 0.02}, last(10)) is None
    assert wants(BY_KL, 60, {"kl": 0.021}, last(10)) is None
    assert wants(BY_KL, 60, {}, None) is None
