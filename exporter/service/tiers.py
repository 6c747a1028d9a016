"""What became of a run's checkpoints after they were saved: copies by tier, checks by depth, what retention removed.
Part of the run's state; shown by ``/metrics``, the API and the console.

The number of entries is that of the tiers and depths that the protocol knows, whatever is sent, and texts are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from exporter.protocol import CheckpointChecked, CheckpointCopied, CheckpointPruned
from exporter.service.known import cut

PRIMARY = "primary"
"""The tier of a checkpoint that lies where the trainer saved it."""

KEPT = 20
"""Newest copies of a tier that are remembered one by one."""

BAD_KEPT = 20
"""Newest that failed, of one tier and depth, which are remembered one by one until they are cleared."""

TEXT_CHARACTERS = 300
"""Of a name or a place: a thousand runs have them in memory."""


@dataclass(slots=True)
class Copy:
    """One copy that was compared with its manifest at the far end."""

    step: int
    name: str
    place: str
    copied_at: float
    """Unix seconds of the exporter's clock at arrival."""
    bytes: int
    stored_bytes: int
    seconds: float


@dataclass(slots=True)
class TierState:
    """One tier of one run. Counts are since the run is known."""

    copied: int = 0
    failed: int = 0
    pruned: int = 0
    pruned_bytes: int = 0
    kept: list[Copy] = field(default_factory=list)
    """The newest of those that were not removed, as far as is known; the oldest first."""
    last: Copy | None = None
    """The newest, also when it was removed since."""
    failed_step: int | None = None
    """Of the newest copy that failed, and why."""
    failed_at: float = 0.0
    failure: str = ""


@dataclass(slots=True)
class Bad:
    """One that failed, and has not been cleared since. ``name`` is empty where only the step is known."""

    step: int
    name: str
    at: float
    """Unix seconds of the exporter's clock at arrival."""
    reason: str


@dataclass(slots=True)
class CheckState:
    """All checks of one tier to one depth."""

    passed: int = 0
    failed: int = 0
    last_step: int | None = None
    """Step of the one that passed last."""
    last_at: float = 0.0
    last_seconds: float = 0.0
    failed_step: int | None = None
    """Of the one that failed last, cleared or not, and why."""
    failed_at: float = 0.0
    failed_tier: str = ""
    failure: str = ""
    bad: list[Bad] = field(default_factory=list)
    """Those that no pass has cleared; the one that failed last comes last."""


@dataclass(slots=True)
class Care:
    """All of it.

    >>> care = Care()
    >>> care.copied(CheckpointCopied(time=0.0, step=40, tier="snapshot", name="toy-step40-aa", bytes=9), at=100.0)
    >>> care.copied(CheckpointCopied(time=0.0, step=50, tier="snapshot", name="x", ok=False, reason="full"), at=110.0)
    >>> it = care.tiers["snapshot"]
    >>> it.last.step, it.copied, it.failed, it.failure
    (40, 1, 1, 'full')
    >>> care.removed(CheckpointPruned(time=0.0, step=40, tier="snapshot", name="toy-step40-aa"))
    >>> it.kept, it.pruned, it.last.step
    ([], 1, 40)

    Retention looks at the newest copy first, and at older ones until one is good. That an older one is good says
    nothing of the newest:

    >>> def check(step, ok, depth="content"):
    ...     name = f"toy-step{step}-aa"
    ...     care.checked(CheckpointChecked(time=0.0, step=step, depth=depth, tier="snapshot", name=name, ok=ok), 1.0)
    ...     return [one.step for one in care.checks["snapshot/content"].bad]
    >>> check(50, False), check(40, True), check(60, True)
    ([50], [50], [])
    """

    tiers: dict[str, TierState] = field(default_factory=dict)
    checks: dict[str, CheckState] = field(default_factory=dict)
    """By tier and depth, ``primary/content`` say."""

    def __post_init__(self) -> None:
        """Older snapshots have one state for a depth, whatever the tier."""
        for depth in [key for key in self.checks if "/" not in key]:
            old = self.checks.pop(depth)
            failing = old.failed_step is not None and old.failed_at > old.last_at
            if failing and old.failed_step is not None:
                old.bad = [Bad(old.failed_step, "", old.failed_at, old.failure)]
            tier = old.failed_tier if failing and old.failed_tier else PRIMARY
            self.checks.setdefault(f"{tier}/{depth}", old)

    def verifications(self) -> Iterator[tuple[str, str, CheckState]]:
        """Tier, depth, and what is known of these checks."""
        for key, check in self.checks.items():
            tier, _, depth = key.partition("/")
            yield tier, depth, check

    def copied(self, event: CheckpointCopied, at: float) -> None:
        """A copy was made, or was not. The same one again counts again: it was sent twice and stored once."""
        tier = self.tiers.setdefault(event.tier, TierState())
        if not event.ok:
            tier.failed += 1
            tier.failed_step, tier.failed_at, tier.failure = event.step, at, cut(event.reason)
            return
        tier.copied += 1
        copy = Copy(
            step=event.step,
            name=event.name[:TEXT_CHARACTERS],
            place=event.place[:TEXT_CHARACTERS],
            copied_at=at,
            bytes=event.bytes,
            stored_bytes=event.stored_bytes,
            seconds=event.seconds if 0.0 <= event.seconds < inf else 0.0,
        )
        tier.last = copy
        tier.kept = [*(one for one in tier.kept if one.name != copy.name), copy][-KEPT:]

    def checked(self, event: CheckpointChecked, at: float) -> None:
        """A checkpoint or a copy was verified, or found to be bad; then it is no copy to rely on any more.

        A failure is cleared by a pass of that very copy (of that step, for a checkpoint in its own place) or of a newer
        step. Only within its tier and to its depth: a good snapshot says nothing of an archive.
        """
        tier = event.tier or PRIMARY
        check = self.checks.setdefault(f"{tier}/{event.depth}", CheckState())
        name = "" if tier == PRIMARY else event.name[:TEXT_CHARACTERS]
        others = [one for one in check.bad if not _same(one, event.step, name)]
        if event.ok:
            check.passed += 1
            check.last_step, check.last_at = event.step, at
            check.last_seconds = event.seconds if 0.0 <= event.seconds < inf else 0.0
            check.bad = [one for one in others if one.step >= event.step]
        else:
            check.failed += 1
            check.failed_step, check.failed_at, check.failed_tier = event.step, at, tier
            check.failure = cut(event.reason)
            check.bad = [*others, Bad(event.step, name, at, check.failure)][-BAD_KEPT:]

    def removed(self, event: CheckpointPruned) -> None:
        """Retention removed one."""
        tier = self.tiers.setdefault(event.tier or PRIMARY, TierState())
        tier.pruned += 1
        tier.pruned_bytes += event.bytes
        name = event.name[:TEXT_CHARACTERS]
        tier.kept = [one for one in tier.kept if one.name != name]


def _same(one: Bad, step: int, name: str) -> bool:
    """The same copy by its name, where both have one; else by its step."""
    return one.name == name if one.name and name else one.step == step
