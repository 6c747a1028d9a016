"""From a step's metrics to its canonical signals, by a plan that is made once for a set of keys.

A run logs the same keys step after step, so which key gives which signal is worked out at the first of them. Called by
the service for each step (and by replay).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Final

from exporter.signals.table import FAMILIES, TABLES, Spelling, Table

PHASE_PREFIX: Final = "timing_s/"
"""verl's timers as metrics: ``timing_s/<phase>``. What has a further slash is a statistic and no phase."""

_FLOATS: Final = frozenset((float,))


@dataclass(frozen=True, slots=True)
class Plan:
    """What steps with one set of keys give."""

    table: Table
    names: tuple[str, ...]
    take: Callable[[Mapping[str, float]], tuple[float, ...]]
    """The value of each name, then of each difference the two that make it."""
    scaled: tuple[tuple[str, float], ...]
    """Those of the names whose value is not in the signal's unit, with the factor."""
    differences: tuple[tuple[str, int, float], ...]
    """Name, place of the first of its two values, and factor."""
    validation: tuple[str, ...]
    """Keys of verl's core validation means."""
    phases: tuple[tuple[str, str], ...]
    """Phase and key of each of verl's timers."""
    training: bool
    """Something in it is not validation."""

    def signals(self, metrics: Mapping[str, float], *, floats: bool = False) -> dict[str, float]:
        """:func:`canonical` of metrics that have the plan's keys; ``floats``: that all are floats is known already."""
        values = self.take(metrics)
        if floats or _FLOATS.issuperset(map(type, values)):
            signals = dict(zip(self.names, values))  # noqa: B905 - the values of the differences follow
            for name, scale in self.scaled:
                signals[name] *= scale
            for name, place, scale in self.differences:
                signals[name] = (values[place] - values[place + 1]) * scale
        else:
            signals = _one_by_one(metrics, self.table)
        if signals.get("kl_coef") == 0.0 and not math.isfinite(signals.get("kl", 0.0)):
            del signals["kl"]
        if self.validation:
            core = [value for key in self.validation if (value := _number(metrics[key])) is not None]
            if core:
                signals["val_reward"] = math.fsum(core) / len(core) if all(map(math.isfinite, core)) else math.nan
        return signals


@dataclass(slots=True)
class Plans:
    """Plans by the keys of a step, in the order in which they came. Keys come from outside, so what is kept is bounded.

    ``most_keys``: keys of all plans together; the oldest plans go when there are more.
    """

    most_keys: int = 50_000
    _plans: dict[tuple[str, tuple[str, ...]], Plan] = field(default_factory=dict)
    _keys: int = 0

    def __len__(self) -> int:
        return len(self._plans)

    def of(self, metrics: Mapping[str, float], trainer: str = "") -> Plan:
        """The plan for these keys, whatever the values; ``trainer`` as in :func:`canonical`."""
        key = (FAMILIES.get(trainer, ""), tuple(metrics))
        plan = self._plans.get(key)
        if plan is None:
            plan = _plan(*key)
            if len(metrics) <= self.most_keys:
                self._plans[key] = plan
                self._keys += len(metrics) + 1
                while self._keys > self.most_keys:
                    oldest = next(iter(self._plans))
                    del self._plans[oldest]
                    self._keys -= len(oldest[1]) + 1
        return plan


_plans: Final = Plans()


def plan_of(metrics: Mapping[str, float], trainer: str = "") -> Plan:
    """How to read a step with these keys.

    >>> plan = plan_of({"timing_s/gen": 2.0, "timing_s/agent_loop/mean": 1.0, "val-core/x/mean@1": 0.5})
    >>> plan.phases, plan.training
    ((('gen', 'timing_s/gen'),), True)
    """
    return _plans.of(metrics, trainer)


def canonical(metrics: Mapping[str, float], trainer: str = "") -> dict[str, float]:
    """Turn one step's metrics under verl's keys into canonical signals, in base units.

    ``trainer`` is ``ppo_v1``, ``ppo_legacy`` or ``sft`` as :class:`exporter.protocol.Run` has it; anything else tries
    every spelling. A value that is no number is left out. NaN and infinities stay, for they are what a detector must
    see, with one exception: a KL that is not finite while its own coefficient says that no KL term is used.

    >>> canonical({"actor/pg_loss": -0.5, "critic/advantages/max": 2.0, "critic/advantages/min": -1.0})
    {'loss': -0.5, 'pg_loss': -0.5, 'advantage_spread': 3.0}
    >>> canonical({"train/loss": 3.5, "train/lr(1e-3)": 0.5}, trainer="sft")
    {'loss': 3.5, 'lr': 0.0005}
    >>> canonical({"critic/kl": float("nan"), "critic/kl_coeff": 0.0})
    {'kl_coef': 0.0}
    """
    return _plans.of(metrics, trainer).signals(metrics)


def _plan(family: str, keys: tuple[str, ...]) -> Plan:
    """Work the plan out: of each signal the first spelling whose keys are there."""
    present = frozenset(keys)
    chosen = []
    for name, spellings in TABLES[family]:
        usable = (s for s in spellings if s.key in present and (not s.minus or s.minus in present))
        spelling = next(usable, None)
        if spelling is not None:
            chosen.append((name, spelling))
    whole = [(name, spelling) for name, spelling in chosen if not spelling.minus]
    pairs = [(name, spelling) for name, spelling in chosen if spelling.minus]
    read = [spelling.key for _, spelling in whole] + [key for _, s in pairs for key in (s.key, s.minus)]
    timers = ((key[len(PHASE_PREFIX) :], key) for key in keys if key.startswith(PHASE_PREFIX))
    return Plan(
        table=TABLES[family],
        names=tuple(name for name, _ in whole),
        take=itemgetter(*read) if len(read) > 1 else partial(_take_one, read),
        scaled=tuple((name, spelling.scale) for name, spelling in whole if spelling.scale != 1.0),
        differences=tuple((name, len(whole) + 2 * i, spelling.scale) for i, (name, spelling) in enumerate(pairs)),
        validation=tuple(_core_validation(keys)),
        phases=tuple((phase, key) for phase, key in timers if phase and "/" not in phase and phase.isprintable()),
        training=any(not key.startswith("val") for key in keys),
    )


def _take_one(keys: Sequence[str], metrics: Mapping[str, float]) -> tuple[float, ...]:
    """What ``itemgetter`` would do with one key or none."""
    return tuple(metrics[key] for key in keys)


def _one_by_one(metrics: Mapping[str, float], table: Table) -> dict[str, float]:
    """The signals where some value is no float: of each the first spelling that has a number."""
    signals: dict[str, float] = {}
    for name, spellings in table:
        for spelling in spellings:
            value = _read(metrics, spelling)
            if value is not None:
                signals[name] = value
                break
    return signals


def _read(metrics: Mapping[str, float], spelling: Spelling) -> float | None:
    if spelling.key not in metrics:
        return None
    value = _number(metrics[spelling.key])
    if value is None or not spelling.minus:
        return None if value is None else value * spelling.scale
    other = _number(metrics[spelling.minus]) if spelling.minus in metrics else None
    return None if other is None else (value - other) * spelling.scale


def _number(value: object) -> float | None:
    """The value as a float, also for numpy scalars; nothing for what is no number."""
    if type(value) is float:
        return value
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _core_validation(keys: Iterable[str]) -> Iterable[str]:
    """Keys of the core validation means: ``val-core/<source>/<variable>/mean@N``, or the older ``val/test_score/…``."""
    return (
        key
        for key in keys
        if key.startswith("val")
        and ((key.startswith("val-core/") and "/mean@" in key) or key.startswith("val/test_score/"))
    )
