"""Writing a manifest: last and atomically after a save, and discarded before a save into the same place.

Called by the plugin around verl's save, and by whoever finishes what a trainer that died left unhashed. verl overwrites
``global_step_N`` when a resumed run reaches step N again, so: ``discard_manifest`` before the save, ``write_manifest``
after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from exporter.protocol import Number
from trainer_entry.checkpoints.atomic import read_small, remove, sync_directory, write_json_atomically
from trainer_entry.checkpoints.files import (
    Cancel,
    ManifestCancelled,
    Progress,
    file_facts,
    opened_directory,
    safe_parts,
    tree_files,
)
from trainer_entry.checkpoints.layout import MANIFEST_NAME, completeness, step_of
from trainer_entry.checkpoints.manifest import FORMAT, FileEntry, Manifest, Origin, fingerprint_of, sealed
from trainer_entry.checkpoints.marks import ABANDONED_NAME
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.record import forget_verified
from trainer_entry.checkpoints.saved import forget_saved


class Hashed(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a complete checkpoint."""

    files: list[FileEntry]
    world_sizes: dict[str, int]


def hash_checkpoint(
    directory: str | os.PathLike[str],
    step: int,
    *,
    world_size: int | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
    flushed: bool = False,
) -> Hashed:
    """Hash every file of a finished save, one after the other.

    ``world_size`` is the number of ranks of every component where the caller knows it; otherwise ``fsdp_config.json``
    and the shard names say. ``cancel`` (a ``threading.Event``) is looked at between buffers of 4 MiB; ``flushed``: see
    that each file is on the disk too. Raises CheckpointError with a sentence when the checkpoint is incomplete, holds
    links, or changes meanwhile, and OSError from the disk.
    """
    path = Path(directory)
    if step_of(path) != step:
        raise CheckpointError(
            f"The directory {path} is not named global_step_{step}, though step {step} was saved.", "foreign_name"
        )
    with opened_directory(path) as root:
        names = tree_files(root)
        expected = (
            {part: world_size for part in ("actor", "critic", ".")} if world_size else configured_sizes(root, names)
        )
        complete = completeness(names, expected)
        if complete.problem:
            raise CheckpointError(f"The checkpoint {path} is incomplete: {complete.problem}.", complete.code)
        entries = []
        for name in names:
            parts = safe_parts(name)
            if parts is None:
                raise CheckpointError(f"The checkpoint {path} has a file with an unusable name: {name!r}.")
            facts = file_facts(root, parts, hashed=True, cancel=cancel, progress=progress, flushed=flushed)
            entries.append(FileEntry(path=name, size=facts.size, sha256=facts.sha256))
    if cancel is not None and cancel.is_set():
        raise ManifestCancelled(f"The manifest of {path} was cancelled before it was written.", "unfinished")
    return Hashed(files=entries, world_sizes=complete.world_sizes)


def write_hashed(
    directory: str | os.PathLike[str],
    step: int,
    hashed: Hashed,
    origin: Origin,
    metrics: Mapping[str, Number] | None = None,
    metrics_step: int | None = None,
) -> Manifest:
    """Write the manifest of what was hashed, last and atomically. Raises OSError; nothing is left behind then."""
    path = Path(directory)
    manifest = sealed(
        Manifest(
            **{name: getattr(origin, name) for name in Origin.__struct_fields__},
            format=FORMAT,
            step=step,
            files=hashed.files,
            world_sizes=hashed.world_sizes,
            metrics=dict(metrics or {}),
            metrics_step=metrics_step,
            fingerprint=fingerprint_of(hashed.files),
            written_at=time.time(),
        )
    )
    with contextlib.suppress(FileNotFoundError):
        forget_verified(path)
    write_json_atomically(path / MANIFEST_NAME, manifest)
    with contextlib.suppress(OSError):  # it says only what the manifest now says better
        forget_saved(path)
    return manifest


def write_manifest(
    directory: str | os.PathLike[str],
    step: int,
    *,
    world_size: int | None = None,
    verl_version: str = "",
    cancel: Cancel | None = None,
    origin: Origin | None = None,
    metrics: Mapping[str, Number] | None = None,
    metrics_step: int | None = None,
) -> Manifest:
    """Hash a finished save and write its manifest, in this process; removes an abandoned mark.

    Raises what :func:`hash_checkpoint` and :func:`write_hashed` raise; no manifest is left behind then.
    """
    discard_manifest(directory)
    hashed = hash_checkpoint(directory, step, world_size=world_size, cancel=cancel)
    known = origin or Origin(verl_version=verl_version)
    return write_hashed(directory, step, hashed, known, metrics, metrics_step)


def discard_manifest(directory: str | os.PathLike[str]) -> bool:
    """Remove the manifest, and all that was said of these files, before a save into the same place.

    True if there was a manifest. Raises OSError.
    """
    path = Path(directory)
    try:
        found = remove(path / MANIFEST_NAME)
        remove(path / ABANDONED_NAME)
        forget_saved(path)
        forget_verified(path)
    except NotADirectoryError:
        return False
    if found:
        sync_directory(path)
    return found


def configured_sizes(root: int, names: list[str]) -> dict[str, int]:
    """World sizes by component, as far as the ``fsdp_config.json`` files of an opened checkpoint say."""
    sizes: dict[str, int] = {}
    for component in ("actor", "critic", "."):
        name = "fsdp_config.json" if component == "." else f"{component}/fsdp_config.json"
        if name not in names:
            continue
        # A configuration that cannot be read is no reason to refuse: the shard names then say the world size.
        with contextlib.suppress(OSError, CheckpointError, ValueError, RecursionError):
            content = json.loads(read_small(root, name, 1 << 20))
            size = content.get("world_size") if isinstance(content, dict) else None
            if isinstance(size, int) and 0 < size < 10_000_000:
                sizes[component] = size
    return sizes
