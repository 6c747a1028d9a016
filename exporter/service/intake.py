"""Room for one more batch in a run that is known, and the note that it was taken. Used by the core."""

from __future__ import annotations

from exporter.protocol import Batch
from exporter.service.admission import Limits, Refused
from exporter.service.sequences import Sequences
from exporter.service.watch import WatchedRun

MAX_GPUS = 8192
"""Of one run."""

FORGET_SENDER_SECONDS = 7 * 86_400.0
"""Where a run has had many senders, those that were last heard longer ago make room: nothing of theirs comes again."""

MANY_SENDERS = 1000


def check_room(run: WatchedRun, batch: Batch, now: float, limits: Limits) -> None:
    """Raise :class:`Refused` (429) where the batch brings more senders, GPUs or metrics than a run may have."""
    run_id = run.state.run_id
    if batch.sender.id not in run.seen and len(run.seen) >= limits.senders_per_run:
        old = now - FORGET_SENDER_SECONDS
        if sum(1 for taken in run.seen.values() if taken.heard >= old) >= limits.senders_per_run:
            raise Refused(
                "too_many_senders",
                f"Run {run_id} has had {len(run.seen)} senders within a week, and at most "
                f"{limits.senders_per_run} are accepted (limits.senders_per_run).",
                where="$.sender.id",
                status=429,
                retry_after=60,
            )
    if batch.gpus and len(run.state.gpus.keys() | {(gpu.node, gpu.index) for gpu in batch.gpus}) > MAX_GPUS:
        raise Refused(
            "too_many_gpus",
            f"Run {run_id} would have readings of more than {MAX_GPUS} GPUs.",
            where="$.gpus",
            status=429,
            retry_after=60,
        )


def take(run: WatchedRun, batch: Batch, at: float) -> None:
    """Note the sequence number of a batch that is in the journal."""
    taken = run.seen.get(batch.sender.id)
    if taken is None:
        if len(run.seen) >= MANY_SENDERS:
            run.seen = {name: one for name, one in run.seen.items() if one.heard >= at - FORGET_SENDER_SECONDS}
        taken = run.seen[batch.sender.id] = Sequences()
    taken.add(batch.seq)
    taken.heard = at
