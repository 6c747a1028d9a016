"""The config rung: which settings the next attempt gets otherwise, and where they come from. Pure; called by
:mod:`exporter.recovery.ladder`.

Only keys that the policy allows are compared, so a run keeps its paths, its seed and the shape of its world whatever
the source says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from exporter.protocol import Scalar
from exporter.recovery.facts import AttemptFacts, Candidate, RunFacts
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.rung_settings import MOST_KEYS, Adjustment, ConfigRung, ConfigSource


@dataclass(frozen=True, slots=True)
class NewConfig:
    """What changes; nothing where both are empty, and then ``reason`` says why."""

    reason: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.removed)


def new_config(facts: RunFacts, target: Candidate, policy: RecoveryPolicy) -> NewConfig:
    """Of the policy's sources the first that changes something."""
    if not facts.config:
        return NewConfig("the configuration of the failed attempt is not known")
    reasons = []
    for source in policy.config.sources:
        found = _from(source, facts, target, policy)
        if found:
            return found
        reasons.append(found.reason)
    return NewConfig("; ".join(reasons))


def _from(source: ConfigSource, facts: RunFacts, target: Candidate, policy: RecoveryPolicy) -> NewConfig:
    if source == "manifest":
        return _last_healthy(facts, target, policy)
    if source == "git":
        return _stable(facts, policy.config)
    return _adjusted(facts, policy.config)


def healthy_attempts(facts: RunFacts, policy: RecoveryPolicy, first: int | None = None) -> Iterator[AttemptFacts]:
    """Attempts that ran healthy for long enough: number ``first`` before the others, then the newest first."""
    known = sorted(facts.attempts, key=lambda attempt: (attempt.number == first, attempt.number), reverse=True)
    return (attempt for attempt in known if attempt.healthy_steps >= policy.healthy_steps)


def _last_healthy(facts: RunFacts, target: Candidate, policy: RecoveryPolicy) -> NewConfig:
    """The configuration that the target's manifest has, where the attempt that saved it ran healthy; else a newer."""
    seen = 0
    for attempt in healthy_attempts(facts, policy, first=target.attempt):
        if not attempt.config:
            continue
        seen += 1
        found = _difference(facts.config, attempt.config, policy.config, whole=True)
        if found[0] or found[1]:
            ran = f"attempt {attempt.number}, which logged {attempt.healthy_steps} healthy steps with it"
            return NewConfig(f"back to the configuration of {ran}", *found)
    if not seen:
        return NewConfig(f"no attempt whose configuration is known has run healthy for {policy.healthy_steps} steps")
    return NewConfig("what ran healthy before had the same configuration, as far as the policy lets it change")


def _stable(facts: RunFacts, rung: ConfigRung) -> NewConfig:
    stable = facts.stable_config
    if stable is None:
        return NewConfig("the configuration in git is not known here")
    if stable.error:
        return NewConfig(f"the configuration in git cannot be used: {stable.error}")
    settings, removed = _difference(facts.config, stable.settings, rung, whole=False)
    reason = f"the configuration of {stable.origin}" + ("" if settings else " has the same values")
    return NewConfig(reason, settings, removed)


def _adjusted(facts: RunFacts, rung: ConfigRung) -> NewConfig:
    settings: dict[str, Scalar] = {}
    missing = []
    for key, adjustment in rung.adjust.items():
        if key not in facts.config:
            missing.append(key)
            continue
        new = _turned(facts.config[key], adjustment)
        if new is not None and not _same(facts.config[key], new):
            settings[key] = new
    if settings:
        return NewConfig(f"adjusted as the policy says: {', '.join(settings)}", settings)
    if missing:
        return NewConfig(f"the configuration has no {', '.join(missing)}")
    return NewConfig("the adjustments of the policy change nothing that the configuration has")


def _turned(value: Scalar, adjustment: Adjustment) -> Scalar:
    if adjustment.multiply is None:
        return adjustment.set  # type: ignore[return-value]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    new = value * adjustment.multiply
    if isinstance(value, int):
        # A count stays one, and at least 1: half of 1 sequence is none.
        new = max(1, round(new)) if value > 0 else round(new)
    return new if math.isfinite(new) else None


def _difference(
    now: Mapping[str, Scalar], wanted: Mapping[str, Scalar], rung: ConfigRung, *, whole: bool
) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    """Allowed keys that have another value in ``wanted``; where that is whole, also those that it does not have."""
    settings = {
        key: value
        for key, value in sorted(wanted.items())
        if rung.allows(key) and not _same(now.get(key, _NONE), value)
    }
    removed = [key for key in sorted(now) if whole and key not in wanted and rung.allows(key)]
    return dict(list(settings.items())[:MOST_KEYS]), tuple(removed[:MOST_KEYS])


_NONE = object()


def _same(one: object, other: object) -> bool:
    """Whether two values are one setting: 1 and 1.0 are, 1 and True are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return one == other or both_nan
