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


def last(step: int, loss: float | None = None) -> TierState:
    return TierState(step=step, name="x", loss=loss)


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


@pytest.mark.parametrize("odd", [math.nan, math.inf, "NaN", None, True])
def test_a_loss_that_is_no_number_makes_no_milestone(odd: object) -> None:
    assert wants(BY_LOSS, 20, {"val/loss": odd}, last(10, 3.0)) is None
    assert wants(BY_LOSS, 20, {"val/loss": odd}, None) is None


def test_a_kl_on_target_is_a_milestone_at_most_every_so_many_steps() -> None:
    assert wants(BY_KL, 60, {"kl": 0.02}, last(10)) is not None
    assert wants(BY_KL, 59, {"kl": 0.02}, last(10)) is None
    assert wants(BY_KL, 60, {"kl": 0.021}, last(10)) is None
    assert wants(BY_KL, 60, {}, None) is None
