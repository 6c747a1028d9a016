"""Retention at a tier's places: which copies go, by age and count, and which never do.

Called by the keeper after a copy, and by ``checkpoints prune``. The newest copy that passes its check in full stays
whatever its age; where none passes, nothing is deleted. Only what our records say is ours is ever touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from exporter.protocol import CheckpointChecked, CheckpointPruned
from trainer_entry.checkpoints.holding import HOLD_NAME
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.copies import Copy, check_copy, copies_of
from trainer_entry.checkpoints.tiers.jobs import Job, Report
from trainer_entry.checkpoints.tiers.left_behind import LEFT_NAME, LeftBehind
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.policy import FOREVER, TierPolicy
from trainer_entry.checkpoints.tiers.stores import Store, StoreError, open_store

HALF_SECONDS = 86400.0
"""A half copy that no job will finish is kept for so long, in case another host still works on it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one checkpoint: ``what`` names it, ``reason`` says why, for both kept and deleted."""

    where: str
    what: str
    step: int
    delete: bool
    reason: str
    bytes: int = 0


def prune_tier(
    tier: TierPolicy,
    run_id: str,
    waiting: Sequence[Job],
    pace: Pace,
    tell: Callable[[Report], None] = lambda report: None,
    *,
    dry_run: bool = False,
    now: float | None = None,
    left: Mapping[str, LeftBehind] | None = None,
) -> list[Decision]:
    """Apply a tier's retention at all its places. Returns each decision; each event goes to ``tell`` as it happens,
    since the work may end at any moment. ``left`` are the copies, by name, whose checkpoint a rollback went behind:
    they are marked at the place, and count for nothing.

    A place that cannot be used is a decision to keep all there, with step -1, and the other one is done all the same.
    Raises Stopped.
    """
    decisions: list[Decision] = []
    moment = time.time() if now is None else now
    for index, place in enumerate(tier.places):
        wanted = {job.name for job in waiting if job.tier == tier.tier and job.place == index}
        try:
            store = open_store(place)
            copies = _marked(store, copies_of(store, run_id), left or {}, dry_run)
            planned = _planned(tier, copies, wanted, moment)
            if any(decision.delete and copy.record is not None for copy, decision in planned):
                planned = _without_last_good(store, planned, tell, tier, pace)
            for copy, plan in planned:
                held = plan.delete and _is_held(store, copy)
                decision = replace(_kept(store, copy, "a recovery holds it") if held else plan, where=store.place)
                if decision.delete and not dry_run:
                    freed = store.remove(copy.prefix)
                    tell(
                        CheckpointPruned(
                            time=time.time(),
                            step=copy.step,
                            tier=tier.tier,
                            name=copy.name,
                            bytes=freed,
                            reason=f"{decision.reason} ({store.place})"[:1000],
                        )
                    )
                decisions.append(decision)
        except CheckpointError as error:
            decisions.append(Decision(place.url, tier.tier, -1, False, str(error)))
    return decisions


def _planned(tier: TierPolicy, copies: Iterable[Copy], wanted: set[str], now: float) -> list[tuple[Copy, Decision]]:
    found: list[tuple[Copy, Decision]] = []
    newer = 0
    by_age = sorted(copies, key=lambda c: c.record.made_at if c.record else (c.started_at or 0.0), reverse=True)
    for copy in by_age:
        record = copy.record
        if record is None:
            found.append((copy, _half(copy, wanted, now)))
            continue
        age = max(0.0, now - record.made_at)
        retention = tier.retention
        if record.tier != tier.tier:
            kept = f"it belongs to the tier {record.tier}, whose copies this one never deletes"
            found.append((copy, Decision("", copy.name, copy.step, False, kept)))
            continue
        if copy.name in wanted:
            verdict = (False, "it is being copied")
        elif retention.last is not None and newer >= retention.last:
            verdict = (True, f"{newer} newer ones are kept, and the policy keeps {retention.last}")
        elif retention.seconds != FOREVER and age > retention.seconds:
            verdict = (True, f"it is {age / 86400:.1f} days old, and the policy keeps {retention.seconds / 86400:g}")
        else:
            verdict = (False, "the policy keeps it")
        newer += not verdict[0] and not copy.left_behind
        found.append((copy, Decision("", copy.name, copy.step, verdict[0], verdict[1], record.stored_bytes)))
    return found


def _marked(store: Store, copies: list[Copy], left: Mapping[str, LeftBehind], dry_run: bool) -> list[Copy]:
    marked = []
    for copy in copies:
        if copy.record is not None and not copy.left_behind and (mark := left.get(copy.name)) is not None:
            if not dry_run:
                store.write(f"{copy.prefix}/{LEFT_NAME}", msgspec.json.encode(mark))
            marked.append(replace(copy, left_behind=f"a rollback to step {mark.rolled_back_to} went behind it"))
        else:
            marked.append(copy)
    return marked


def _half(copy: Copy, wanted: set[str], now: float) -> Decision:
    if copy.started_at is None:
        return Decision("", copy.name, copy.step, False, f"not ours, so not touched: {copy.problem}")
    if copy.name in wanted:
        return Decision("", copy.name, copy.step, False, "half; a waiting copy goes on with it")
    if now - copy.started_at < HALF_SECONDS:
        return Decision("", copy.name, copy.step, False, "half, and begun less than a day ago")
    return Decision("", copy.name, copy.step, True, "half, and nothing will finish it")


def _without_last_good(
    store: Store,
    planned: list[tuple[Copy, Decision]],
    tell: Callable[[Report], None],
    tier: TierPolicy,
    pace: Pace,
) -> list[tuple[Copy, Decision]]:
    """Take the newest copy that passes its check in full off the list of what goes; all, where none passes."""
    good: Copy | None = None
    whole = [copy for copy, _ in planned if copy.record is not None and copy.record.tier == tier.tier]
    whole = [copy for copy in whole if not copy.left_behind]
    newest_first = sorted(whole, key=lambda copy: copy.record.saved_at if copy.record else 0.0, reverse=True)
    for copy in newest_first:
        began = time.monotonic()
        problem = ""
        try:
            check_copy(store, copy, "content", pace)
        except StoreError as error:
            if error.kind not in ("missing", "lies"):
                raise
            problem = str(error)
        except CheckpointError as error:
            problem = str(error)
        tell(
            CheckpointChecked(
                time=time.time(),
                step=copy.step,
                depth="content",
                ok=not problem,
                tier=tier.tier,
                name=copy.name,
                seconds=time.monotonic() - began,
                reason=problem[:1000],
            )
        )
        if not problem:
            good = copy
            break
    kept = []
    for copy, plan in planned:
        if plan.delete and good is None and copy.record is not None:
            kept.append((copy, _kept(store, copy, "no copy at this place passes its check, so none is deleted")))
        elif plan.delete and copy is good:
            kept.append((copy, _kept(store, copy, "it is the last good one")))
        else:
            kept.append((copy, plan))
    return kept


def _is_held(store: Store, copy: Copy) -> bool:
    for key in (f"{copy.prefix}/{HOLD_NAME}", f"{copy.prefix}/global_step_{copy.step}/{HOLD_NAME}"):
        try:
            store.read(key, 1 << 20)
        except StoreError as error:
            if error.kind == "missing":
                continue
        return True  # also one that cannot be read: to keep is the safe side
    return False


def _kept(store: Store, copy: Copy, reason: str) -> Decision:
    return Decision(store.place, copy.name, copy.step, False, reason)
