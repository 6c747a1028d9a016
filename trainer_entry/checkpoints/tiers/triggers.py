"""Whether a tier wants a checkpoint that was just saved: rules over step and metrics, for the plugin's thread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainer_entry.checkpoints.tiers.jobs import TierState
from trainer_entry.checkpoints.tiers.policy import TierPolicy


@dataclass(frozen=True, slots=True)
class Wanted:
    """Why the tier wants it, as a sentence's end; ``loss`` is what the next one is compared with, if it has one, and
    ``metric`` what that was read from.
    """

    reason: str
    loss: float | None = None
    metric: str = ""


def wants(tier: TierPolicy, step: int, metrics: Mapping[str, object], last: TierState | None) -> Wanted | None:
    """None where the tier does not want it. ``last`` is the tier's newest copy, made or waiting."""
    if tier.tier == "snapshot":
        return _by_step(tier.every_steps or 100, step, last)
    if tier.tier == "milestone":
        return _by_loss(tier, step, metrics, last) or _by_kl(tier, step, metrics, last)
    return None  # an archive is made at the end of a run, not after a save


def _by_step(every: int, step: int, last: TierState | None) -> Wanted | None:
    """The first save in each stretch of so many steps: saves need not fall on its multiples. After a rollback the
    stretch is another one again.
    """
    if last is not None and step // every == last.step // every and step >= last.step:
        return None
    return Wanted(f"the first save of steps {step // every * every} to {step // every * every + every - 1}")


def _by_loss(tier: TierPolicy, step: int, metrics: Mapping[str, object], last: TierState | None) -> Wanted | None:
    if tier.loss is None:
        return None
    before, metric = _to_beat(step, last)
    if metric not in tier.loss.metrics:  # another policy since, or none before
        before, metric = None, ""
    # Like is compared with like: a validation loss that is logged now and then is no fall of the training loss.
    names = (metric,) if before is not None else tier.loss.metrics
    name = next((name for name in names if _number(metrics.get(name)) is not None), None)
    if name is None:
        return None
    loss = _number(metrics[name])
    assert loss is not None
    if last is None or before is None:
        return Wanted(f"the first known {name}, {loss:.6g}", loss, name)
    if before - loss <= tier.loss.falls_by * abs(before):
        return None
    return Wanted(f"{name} fell from {before:.6g} at step {last.step} to {loss:.6g}", loss, name)


def _to_beat(step: int, last: TierState | None) -> tuple[float | None, str]:
    """The loss of the last milestone by loss, and its metric. None after a rollback: the last milestone is then of the
    branch that was left, and its loss may be the fault itself.
    """
    return (last.loss, last.metric) if last is not None and last.step < step else (None, "")


def _by_kl(tier: TierPolicy, step: int, metrics: Mapping[str, object], last: TierState | None) -> Wanted | None:
    if tier.kl is None:
        return None
    value = _number(metrics.get(tier.kl.metric))
    if value is None or not tier.kl.low <= value <= tier.kl.high:
        return None
    if last is not None and 0 <= step - last.step < tier.kl.every_steps:
        return None
    # The loss to beat stays that of the last milestone by loss.
    why = f"{tier.kl.metric} is on target: {value:.6g}, between {tier.kl.low:g} and {tier.kl.high:g}"
    return Wanted(why, *_to_beat(step, last))


def _number(value: object) -> float | None:
    """A finite number, or None: NaN is the failure itself, never a reason to keep a checkpoint."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
