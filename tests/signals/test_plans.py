"""Plans give what reading key by key gives, for any keys and values, and are bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.signals import canonical
from exporter.signals.plans import Plans
from exporter.signals.table import FAMILIES, TABLES

KEYS = sorted({key for rows in TABLES.values() for _, found in rows for s in found for key in (s.key, s.minus) if key})
OTHER_KEYS = ["val-core/a/acc/mean@1", "val-core/b/acc/mean@4", "val-aux/x/mean@1", "val/test_score/a", "extra", "val"]
NUMBERS = st.one_of(st.floats(), st.just(0.0), st.integers(-5, 5))
VALUES = st.one_of(st.floats(), st.just(0.0)) | st.one_of(NUMBERS, st.text(), st.none(), st.just([1.0]))


def as_number(value: Any) -> float | None:
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def key_by_key(metrics: Mapping[str, Any], trainer: str) -> dict[str, float]:
    """The meaning of the table, spelled out."""
    signals = {}
    for name, spellings in TABLES[FAMILIES.get(trainer, "")]:
        for spelling in spellings:
            value, other = as_number(metrics.get(spelling.key)), as_number(metrics.get(spelling.minus))
            if value is not None and (other is not None or not spelling.minus):
                signals[name] = (value - (other or 0.0)) * spelling.scale
                break
    if signals.get("kl_coef") == 0.0 and not math.isfinite(signals.get("kl", 0.0)):
        del signals["kl"]
    core = [as_number(metrics[key]) for key in metrics if key.startswith(("val-core/", "val/test_score/"))]
    found = [value for value in core if value is not None]
    if found:
        signals["val_reward"] = math.fsum(found) / len(found) if all(map(math.isfinite, found)) else math.nan
    return signals


def same(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    return a.keys() == b.keys() and all(a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in a)


@settings(max_examples=500, deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS + OTHER_KEYS), VALUES, max_size=40),
    st.sampled_from(["ppo_v1", "ppo_legacy", "sft", "", "of tomorrow"]),
)
def test_a_plan_gives_what_reading_key_by_key_gives(metrics: dict[str, Any], trainer: str) -> None:
    for _ in range(2):  # the plan is made, then taken from memory
        assert same(canonical(metrics, trainer), key_by_key(metrics, trainer))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), st.floats(), max_size=10), max_size=20))
def test_steps_with_other_keys_in_turn_do_not_disturb_each_other(steps: list[dict[str, float]]) -> None:
    plans = Plans(most_keys=30)
    for metrics in steps:
        assert same(plans.of(metrics).signals(metrics), key_by_key(metrics, ""))


@pytest.mark.parametrize("size", [0, 1, 7, 100, 101, 5000])
def test_keys_that_never_come_again_are_not_kept_for_ever(size: int) -> None:
    plans = Plans(most_keys=1000)
    for number in range(2000):
        plans.of({f"{number}/{key}": 1.0 for key in range(size)})
        if size == 5000 and number > 3:
            break
    assert len(plans) * (size + 1) <= 1000 + size


def test_the_same_keys_make_one_plan() -> None:
    plans = Plans()
    first = plans.of({"actor/loss": 1.0}, "ppo_v1")
    assert plans.of({"actor/loss": 2.0}, "ppo_legacy") is first
    assert plans.of({"actor/loss": 2.0}, "sft") is not first
