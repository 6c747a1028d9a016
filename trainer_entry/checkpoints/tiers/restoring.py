"""Brings a copy back from a place into a folder: fetched beside, verified, and only then visible, by a rename.

Called by ``checkpoints restore`` and by the drill. What was fetched before an interruption is not fetched again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_entry.checkpoints.atomic import sync_directory
from trainer_entry.checkpoints.files import file_facts, opened_directory
from trainer_entry.checkpoints.layout import MANIFEST_NAME, TRACKER_NAME
from trainer_entry.checkpoints.listed import size_on_disk
from trainer_entry.checkpoints.manifest import MAX_MANIFEST_BYTES, Manifest, fingerprint_of, read_manifest
from trainer_entry.checkpoints.marks import point_tracker
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.copies import Copy, copies_of, runs_at
from trainer_entry.checkpoints.tiers.left_behind import LeftBehind
from trainer_entry.checkpoints.tiers.linking import inside, remove_tree
from trainer_entry.checkpoints.tiers.naming import SEALED, CopyRecord, StoredObject
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.sealing import unseal
from trainer_entry.checkpoints.tiers.stores import Store
from trainer_entry.checkpoints.verification import verify

RESTORING = ".verl_sentinel_restoring_"


@dataclass(frozen=True, slots=True)
class Restored:
    """``path`` is the ``global_step_N`` directory; ``fetched_bytes`` is what had to be fetched this time."""

    path: Path
    step: int
    name: str
    bytes: int
    fetched_bytes: int


def choose_copy(
    store: Store,
    run_id: str,
    *,
    name: str = "",
    step: int | None = None,
    not_after_step: int | None = None,
    left: Mapping[str, LeftBehind] | None = None,
) -> tuple[Copy, list[Copy]]:
    """The copy that was saved last and fits, and those that would have fitted but are half, or that a rollback left.

    An empty ``run_id`` is the only run at the place. ``left``: see :func:`copies_of`. Raises CheckpointError where
    there is none, with the reason for each; StoreError.
    """
    run = run_id or _only_run(store)
    fitting = [
        copy
        for copy in copies_of(store, run, left)
        if (not name or copy.name == name)
        and (step is None or copy.step == step)
        and (not_after_step is None or copy.step <= not_after_step)
    ]
    refused = [copy for copy in fitting if copy.record is None or (copy.left_behind and not name)]
    if (whole := next((copy for copy in fitting if copy not in refused), None)) is not None:
        return whole, refused
    what = f"named {name}" if name else (f"of step {step}" if step is not None else "")
    told = " ".join(copy.problem or copy.left_behind for copy in refused[:5])
    raise CheckpointError(
        f"At {store.place} there is no copy of run {run} {what}".rstrip() + f" that may be restored. {told}".rstrip(),
        ("half_copy" if refused[0].record is None else "abandoned") if refused else "missing_file",
    )


def restore(
    store: Store, copy: Copy, folder: str | os.PathLike[str], identities: Sequence[Any], pace: Pace, *, beside: bool
) -> Restored:
    """Bring the copy into ``folder/global_step_N``. ``folder`` must be empty or not be there; with ``beside`` other
    checkpoints may be in it, and verl's tracker is left alone.

    Raises CheckpointError with a sentence, StoreError, OSError; nothing is visible in the folder then.
    """
    record = copy.record
    if record is None:
        raise CheckpointError(copy.problem, "half_copy")
    if record.encoding != "plain" and not identities:
        raise CheckpointError(f"{copy.name} is encrypted; give the age identity with --identity FILE.")
    base = Path(os.path.abspath(folder))
    final = base / f"global_step_{record.step}"
    _refuse_used(base, final, copy.name, beside=beside)
    part = base / f"{RESTORING}{copy.name}"
    target = part / final.name
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    manifest = _fetch_manifest(store, copy, record, target, identities, pace)
    _room(base, manifest.bytes - size_on_disk(part))
    stored = {one.key.partition("/")[2].removesuffix(SEALED): one for one in record.objects}
    fetched = 0
    for entry in manifest.files:
        if entry.path not in stored:
            raise CheckpointError(f"The copy {copy.name} does not hold {entry.path}.", "missing_file", entry.path)
        if _there(target, entry.path, entry.size, entry.sha256, pace):
            continue
        _fetch(store, copy, stored[entry.path], inside(os.fspath(target), entry.path), identities, entry.size, pace)
        fetched += stored[entry.path].size
    result = verify(target, "content", progress=pace.took)
    if not result.ok:
        remove_tree(part)
        raise CheckpointError(f"What came back of {copy.name} is not what was saved. {result.reason}", "content")
    os.rename(target, final)
    sync_directory(base)
    remove_tree(part)
    if not beside:
        point_tracker(base, record.step)
    return Restored(final, record.step, copy.name, manifest.bytes, fetched)


def _fetch_manifest(
    store: Store, copy: Copy, record: CopyRecord, target: Path, identities: Sequence[Any], pace: Pace
) -> Manifest:
    for one in record.objects:
        if one.key.partition("/")[2].removesuffix(SEALED) == MANIFEST_NAME:
            _fetch(store, copy, one, target / MANIFEST_NAME, identities, MAX_MANIFEST_BYTES, pace)
            break
    else:
        raise CheckpointError(f"The copy {copy.name} holds no manifest.", "no_manifest")
    with opened_directory(target) as root:
        manifest = read_manifest(root, record.step)
    if fingerprint_of(manifest.files) != record.fingerprint:
        raise CheckpointError(f"The manifest in {copy.name} is of another checkpoint than its record says.", "content")
    return manifest


def _fetch(
    store: Store, copy: Copy, one: StoredObject, path: Path, identities: Sequence[Any], limit: int, pace: Pace
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    chunks = store.chunks(f"{copy.prefix}/{one.key}", pace)
    if one.key.endswith(SEALED):
        unseal(chunks, path, list(identities), limit)
        return
    count = 0
    with open(path, "wb") as file:
        for chunk in chunks:
            count += len(chunk)
            if count > limit:
                raise CheckpointError(f"{one.key} of {copy.name} is larger than the {limit} bytes it should have.")
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _there(target: Path, path: str, size: int, sha256: str, pace: Pace) -> bool:
    """Whether an earlier attempt has fetched this file whole."""
    with contextlib.suppress(OSError, CheckpointError), opened_directory(target) as root:
        parts = path.split("/")
        if file_facts(root, parts, hashed=False).size == size:
            return file_facts(root, parts, hashed=True, progress=pace.took).sha256 == sha256
    return False


def _refuse_used(base: Path, final: Path, name: str, *, beside: bool) -> None:
    if os.path.lexists(final):
        raise CheckpointError(f"{final} is there already; nothing is overwritten.")
    try:
        others = sorted(entry for entry in os.listdir(base) if entry != f"{RESTORING}{name}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{base} cannot be used: {error.strerror}.") from error
    if others and not beside:
        raise CheckpointError(
            f"{base} is not empty (there is {others[0]}); give an empty folder, or --beside to restore beside what is "
            "there."
        )
    if beside and (base / TRACKER_NAME).is_symlink():
        raise CheckpointError(f"{base / TRACKER_NAME} is a symbolic link.", "link")


def _room(base: Path, size: int) -> None:
    facts = os.statvfs(base)
    free = facts.f_bavail * facts.f_frsize
    if size > free:
        raise CheckpointError(f"There is no room in {base}: {size} bytes more are needed, {free} are free.")


def _only_run(store: Store) -> str:
    runs = runs_at(store)
    if len(runs) == 1:
        return runs[0]
    shown = ", ".join(runs[:10]) or "none"
    raise CheckpointError(f"At {store.place} there are copies of these runs: {shown}. Say which one with --run-id.")
