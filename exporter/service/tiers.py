"""What became of a run's checkpoints after they were saved: copies by tier, checks by depth, what retention removed.
Part of the run's state; shown by ``/metrics``, the API and the console.

The number of entries is that of the tiers and depths that the protocol knows, whatever is sent, and texts are cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from exporter.protocol import CheckpointChecked, CheckpointCopied, CheckpointPruned
from exporter.service.known import cut

PRIMARY = "primary"
"""The tier of a checkpoint that lies where the trainer saved it."""

KEPT = 20
"""Newest copies of a tier that are remembered one by one."""

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
class CheckState:
    """All checks of one depth."""

    passed: int = 0
    failed: int = 0
    last_step: int | None = None
    """Step of the newest that passed."""
    last_at: float = 0.0
    last_seconds: float = 0.0
    failed_step: int | None = None
    """Of the newest that failed, and why."""
    failed_at: float = 0.0
    failed_tier: str = ""
    failure: str = ""


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
    """

    tiers: dict[str, TierState] = field(default_factory=dict)
    checks: dict[str, CheckState] = field(default_factory=dict)

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
        """A checkpoint or a copy was verified, or found to be bad; then it is no copy to rely on any more."""
        check = self.checks.setdefault(event.depth, CheckState())
        if event.ok:
            check.passed += 1
            check.last_step, check.last_at = event.step, at
            check.last_seconds = event.seconds if 0.0 <= event.seconds < inf else 0.0
        else:
            check.failed += 1
            check.failed_step, check.failed_at, check.failed_tier = event.step, at, event.tier or PRIMARY
            check.failure = cut(event.reason)

    def removed(self, event: CheckpointPruned) -> None:
        """Retention removed one."""
        tier = self.tiers.setdefault(event.tier or PRIMARY, TierState())
        tier.pruned += 1
        tier.pruned_bytes += event.bytes
        name = event.name[:TEXT_CHARACTERS]
        tier.kept = [one for one in tier.kept if one.name != name]
