"""The copies at a place, as found there: whole ones with their record, and half ones, named. Nothing is trusted.

Called by restore, retention and the command line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.left_behind import LEFT_NAME, LeftBehind, decode_left_behind, in_words
from trainer_entry.checkpoints.tiers.naming import (
    COPY_NAME,
    MAX_RECORD_BYTES,
    STARTED_NAME,
    CopyRecord,
    Started,
    decode_record,
    is_run_folder,
    step_of_name,
)
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.stores import Store, StoreError


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy at a place. ``record`` is None for one that may not be restored; ``problem`` then says why.

    ``started_at`` (Unix seconds) is known of a half one that we began. ``left_behind`` is a sentence where a rollback
    went behind the checkpoint: it is whole, but holds the fault.
    """

    run_id: str
    name: str
    step: int
    record: CopyRecord | None
    problem: str = ""
    started_at: float | None = None
    left_behind: str = ""

    @property
    def prefix(self) -> str:
        """Its folder below the place."""
        return f"{self.run_id}/{self.name}"


def runs_at(store: Store) -> list[str]:
    """Run ids that have copies at the place. Raises StoreError."""
    return [name for name in store.folders("") if is_run_folder(name)]


def copies_of(store: Store, run_id: str, left: Mapping[str, LeftBehind] | None = None) -> list[Copy]:
    """All copies of a run at the place, the one that was saved last first, and half ones at the end. Raises StoreError.

    By time and not by step: after a rollback the higher steps of the branch that was left are the older ones. ``left``
    are the run's own notes of what rollbacks went behind, by the copy's name: they say it before the keeper has marked
    the copy itself.
    """
    found = []
    for name in store.folders(run_id):
        step = step_of_name(name)
        if step is not None:
            copy = _look(store, run_id, name, step)
            if left and name in left and copy.record is not None and not copy.left_behind:
                copy = replace(copy, left_behind=in_words(left[name], copy.prefix))
            found.append(copy)
    return sorted(found, key=lambda copy: (copy.record.saved_at if copy.record else -1.0, copy.step), reverse=True)


def check_copy(store: Store, copy: Copy, depth: Literal["sizes", "content"], pace: Pace) -> None:
    """Compare what lies at the place with the copy's record: sizes, or content too (as the store proves it).

    Raises CheckpointError with a sentence, StoreError.
    """
    record = copy.record
    if record is None:
        raise CheckpointError(copy.problem, "half_copy")
    sizes = {entry.key: entry.size for entry in store.entries(copy.prefix)}
    for stored in record.objects:
        key = f"{copy.prefix}/{stored.key}"
        if key not in sizes:
            raise CheckpointError(f"{key} at {store.place} is missing.", "missing_file", stored.key)
        if sizes[key] != stored.size:
            raise CheckpointError(
                f"{key} at {store.place} has {sizes[key]} bytes, not {stored.size}.", "truncated", stored.key
            )
    if depth == "content":
        for stored in record.objects:
            store.prove(f"{copy.prefix}/{stored.key}", stored.size, stored.sha256, stored.checksum, pace)


def begin_copy(store: Store, run_id: str, started: Started) -> None:
    """Say at the place that a copy is begun, so that a half one is known as ours."""
    store.write(f"{run_id}/{started.name}/{STARTED_NAME}", msgspec.json.encode(started))


def _look(store: Store, run_id: str, name: str, step: int) -> Copy:
    prefix = f"{run_id}/{name}"
    try:
        record = decode_record(store.read(f"{prefix}/{COPY_NAME}", MAX_RECORD_BYTES), name)
        if record.run_id != run_id:
            return Copy(run_id, name, step, None, f"{prefix} says that it is of run {record.run_id[:128]!r}.")
        return Copy(run_id, name, step, record, left_behind=_left_behind(store, prefix))
    except StoreError as error:
        if error.kind != "missing":
            raise
    except CheckpointError as error:
        return Copy(run_id, name, step, None, str(error))
    started = _started(store, prefix)
    if started is None:
        return Copy(run_id, name, step, None, f"{prefix} at {store.place} has no {COPY_NAME}, and is none of ours.")
    age = max(0.0, time.time() - started.time)
    return Copy(
        run_id,
        name,
        step,
        None,
        f"{prefix} at {store.place} is half: it was begun {age / 3600:.1f} hours ago and never finished.",
        started.time,
    )


def _left_behind(store: Store, prefix: str) -> str:
    try:
        mark = decode_left_behind(store.read(f"{prefix}/{LEFT_NAME}", 4096))
    except StoreError as error:
        if error.kind == "missing":
            return ""
        raise
    except msgspec.DecodeError:
        mark = None  # the mark alone counts
    return in_words(mark, prefix)


def _started(store: Store, prefix: str) -> Started | None:
    try:
        return msgspec.json.decode(store.read(f"{prefix}/{STARTED_NAME}", 64 * 1024), type=Started)
    except (StoreError, msgspec.DecodeError, RecursionError):
        return None
