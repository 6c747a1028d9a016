"""Carries out one job: a checkpoint into one place, gone on with where it was interrupted, and its record written last.

Called by the keeper. The manifest's hashes are what every file is compared with, at the source while it is read and at
the far end by whatever the store can prove.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import MANIFEST_NAME
from trainer_entry.checkpoints.manifest import FileEntry, Manifest, fingerprint_of, read_manifest
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.copies import begin_copy
from trainer_entry.checkpoints.tiers.jobs import Job
from trainer_entry.checkpoints.tiers.left_behind import LEFT_NAME
from trainer_entry.checkpoints.tiers.linking import remove_tree
from trainer_entry.checkpoints.tiers.naming import (
    COPY_NAME,
    FORMAT,
    MAX_RECORD_BYTES,
    SEALED,
    STARTED_NAME,
    CopyRecord,
    Started,
    StoredObject,
    copy_name,
    decode_record,
)
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.policy import Place, TierPolicy
from trainer_entry.checkpoints.tiers.sealed import Sealing
from trainer_entry.checkpoints.tiers.sealing import recipients_of
from trainer_entry.checkpoints.tiers.stores import Content, Store, StoreError, local_path, open_store


class GivenUp(CheckpointError):
    """The job can never succeed: its source is gone or wrong, or the policy names an impossible place."""


@dataclass(frozen=True, slots=True)
class Copied:
    """``sent_bytes`` is what had to be written or sent this time; 0 where the same content was there already."""

    record: CopyRecord
    sent_bytes: int


def copy(job: Job, tier: TierPolicy, run_id: str, pace: Pace, *, scratch: Path, store: Store | None = None) -> Copied:
    """Make the copy. ``scratch`` is a folder of ours for what is compressed before it is sent.

    Raises GivenUp, StoreError and OSError (worth another attempt), Stopped.
    """
    place = tier.places[job.place]
    refuse_inside(place, os.path.dirname(job.source))
    source, manifest = _source(job)
    far = store or open_store(place)
    prefix = f"{run_id}/{job.name}"
    if (known := _already(far, prefix, job.name, manifest)) is not None:
        far.discard(f"{prefix}/{LEFT_NAME}")  # one that was not good any more would not have been offered again
        return Copied(known, 0)
    begin_copy(far, run_id, Started(run_id=run_id, name=job.name, tier=job.tier, time=time.time()))
    # The manifest last of the files, so that the folder is a checkpoint only once it is whole.
    files = [*manifest.files, _of_disk(source, MANIFEST_NAME)]
    objects: list[StoredObject] = []
    proofs: set[str] = set()
    sent_bytes = 0
    sealing = recipients_of(tier.recipients) if job.tier == "archive" else []
    own = scratch / job.id
    for entry in files:
        content = Content(os.path.join(source, entry.path), entry.size, entry.sha256)
        key = f"global_step_{job.step}/{entry.path}"
        try:
            if job.tier == "archive":
                key += SEALED
                wrapped = Sealing(own / f"{len(objects):06d}", sealing, tier.level)
                stored, sent = wrapped.send(far, f"{prefix}/{key}", content, pace)
            else:
                sent = far.send(f"{prefix}/{key}", content, pace, share=bool(job.staged))
                stored = content
        except StoreError as error:
            if error.kind == "source":
                raise GivenUp(str(error), "content") from error
            raise
        objects.append(StoredObject(key=key, size=stored.size, sha256=stored.sha256, checksum=sent.checksum))
        proofs.add(sent.proof)
        sent_bytes += sent.sent_bytes
    if not job.staged and _source(job)[1] != manifest:
        raise GivenUp(f"{source} was saved again while it was copied.", "changed")
    record = CopyRecord(
        format=FORMAT,
        name=job.name,
        run_id=run_id,
        tier=job.tier,
        step=job.step,
        model=manifest.model,
        fingerprint=fingerprint_of(manifest.files),
        made_at=time.time(),
        saved_at=manifest.written_at,
        objects=objects,
        encoding="zstd+age" if sealing else "plain",
        verified=_together(proofs),
        bytes=manifest.bytes,
        stored_bytes=sum(stored.size for stored in objects),
        reason=job.reason[:500],
        loss=job.loss,
    )
    body = msgspec.json.format(msgspec.json.encode(record), indent=1)
    far.write(f"{prefix}/{COPY_NAME}", body)
    if decode_record(far.read(f"{prefix}/{COPY_NAME}", MAX_RECORD_BYTES), job.name) != record:
        raise StoreError(f"The record of {prefix} at {far.place} differs when read back.", "lies")
    far.discard(f"{prefix}/{STARTED_NAME}")
    remove_tree(own)
    return Copied(record, sent_bytes)


def refuse_inside(place: Place, checkpoint_dir: str) -> None:
    """A local place in the run's own directory would be pruned, copied and resumed from like a checkpoint, and the
    other way round. Raises GivenUp.
    """
    path = local_path(place)
    if path is None:
        return
    ours, theirs = os.path.realpath(checkpoint_dir), os.path.realpath(path)
    if os.path.commonpath([ours, theirs]) in (ours, theirs):
        raise GivenUp(
            f"The place {path} and the run's own directory {checkpoint_dir} lie within each other; "
            "give the tier a folder of its own.",
            "unreadable",
        )


def _source(job: Job) -> tuple[str, Manifest]:
    """Where the files are, and their manifest. Raises GivenUp where they are gone, or are of another save by now."""
    for path in (job.staged, job.source):
        if path and os.path.isdir(path):
            try:
                with opened_directory(path) as root:
                    manifest = read_manifest(root, job.step)
            except (OSError, CheckpointError) as error:
                raise GivenUp(f"{path} cannot be copied: {error}", "unreadable") from error
            if copy_name(manifest) != job.name:
                raise GivenUp(f"{path} was saved again before it was copied; it is not {job.name} any more.", "changed")
            return path, manifest
    raise GivenUp(f"{job.source} was removed before it was copied.", "missing_file")


def _already(far: Store, prefix: str, name: str, manifest: Manifest) -> CopyRecord | None:
    """The whole copy with the same content that is at the place, if it is still all there by size."""
    try:
        record = decode_record(far.read(f"{prefix}/{COPY_NAME}", MAX_RECORD_BYTES), name)
    except StoreError as error:
        if error.kind == "missing":
            return None
        raise
    except CheckpointError:
        return None  # damaged: it is made again
    if record.fingerprint != fingerprint_of(manifest.files):
        raise GivenUp(f"{prefix} at {far.place} is another checkpoint, whose fingerprint begins alike.", "foreign_name")
    sizes = {entry.key: entry.size for entry in far.entries(prefix)}
    whole = all(sizes.get(f"{prefix}/{stored.key}") == stored.size for stored in record.objects)
    return record if whole else None


def _of_disk(source: str, name: str) -> FileEntry:
    import hashlib

    body = Path(source, name).read_bytes()
    return FileEntry(path=name, size=len(body), sha256=hashlib.sha256(body).hexdigest())


def _together(proofs: set[str]) -> Literal["store", "read back", "mixed"]:
    if proofs == {"store"}:
        return "store"
    return "read back" if proofs == {"read back"} else "mixed"
