"""The manifest of a checkpoint: written last and atomically after a save, discarded before a save into the same place.

Called by the plugin around verl's save (from a thread of its own), and by the supervisor, which marks the checkpoints
that a rollback left behind. verl overwrites ``global_step_N`` when a resumed run reaches step N again, so:
``discard_manifest`` before the save, ``write_manifest`` after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.files import (
    Cancel,
    ManifestCancelled,
    file_facts,
    opened_directory,
    safe_parts,
    tree_files,
)
from trainer_entry.checkpoints.layout import (
    MANIFEST_NAME,
    OURS_PREFIX,
    TRACKER_NAME,
    CheckpointError,
    completeness,
    step_of,
)

__all__ = [
    "ABANDONED_NAME",
    "FileEntry",
    "Manifest",
    "ManifestCancelled",
    "background_priority",
    "discard_manifest",
    "mark_abandoned",
    "point_tracker",
    "read_small",
    "write_json_atomically",
    "write_manifest",
]

ABANDONED_NAME = OURS_PREFIX + "abandoned.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 64 * 1024 * 1024


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: path relative to the checkpoint directory with ``/``, size in bytes, SHA-256 in lower-case hex."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint was when verl had saved it. ``world_sizes`` maps component (``.`` for SFT) to its ranks."""

    format: int
    step: int
    files: list[FileEntry]
    world_sizes: dict[str, int] = {}
    verl_version: str = ""
    written_at: float = 0.0
    """Unix seconds, for a person."""

    @property
    def bytes(self) -> int:
        """Sum of all sizes."""
        return sum(entry.size for entry in self.files)


def background_priority() -> None:
    """Lower the calling thread's CPU priority (Linux: nice is per thread); for a thread that hashes beside training."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


def write_manifest(
    directory: str | os.PathLike[str],
    step: int,
    *,
    world_size: int | None = None,
    verl_version: str = "",
    cancel: Cancel | None = None,
) -> Manifest:
    """Hash every file of a finished save and write the manifest, last and atomically; removes an abandoned mark.

    ``world_size`` is the number of ranks of every component where the caller knows it; otherwise ``fsdp_config.json``
    and the shard names say. ``cancel`` (a ``threading.Event``) is looked at between buffers of 4 MiB. Raises
    CheckpointError with a sentence when the checkpoint is incomplete, holds links, or changes meanwhile, and OSError
    from the disk; no manifest is left behind then.
    """
    path = Path(directory)
    if step_of(path) != step:
        raise CheckpointError(f"The directory {path} is not named global_step_{step}, though step {step} was saved.")
    discard_manifest(path)
    with opened_directory(path) as root:
        names = tree_files(root)
        expected = (
            {part: world_size for part in ("actor", "critic", ".")} if world_size else _configured_sizes(root, names)
        )
        complete = completeness(names, expected)
        if complete.problem:
            raise CheckpointError(f"The checkpoint {path} is incomplete: {complete.problem}.")
        entries = []
        for name in names:
            parts = safe_parts(name)
            if parts is None:
                raise CheckpointError(f"The checkpoint {path} has a file with an unusable name: {name!r}.")
            facts = file_facts(root, parts, hashed=True, cancel=cancel)
            entries.append(FileEntry(path=name, size=facts.size, sha256=facts.sha256))
    if cancel is not None and cancel.is_set():
        raise ManifestCancelled(f"The manifest of {path} was cancelled before it was written.")
    manifest = Manifest(
        format=FORMAT,
        step=step,
        files=entries,
        world_sizes=complete.world_sizes,
        verl_version=verl_version,
        written_at=time.time(),
    )
    write_json_atomically(path / MANIFEST_NAME, manifest)
    return manifest


def discard_manifest(directory: str | os.PathLike[str]) -> bool:
    """Remove the manifest (and an abandoned mark) before a save into the same place; True if there was a manifest."""
    path = Path(directory)
    with contextlib.suppress(FileNotFoundError):
        (path / ABANDONED_NAME).unlink()
    try:
        (path / MANIFEST_NAME).unlink()
    except FileNotFoundError:
        return False
    _sync_directory(path)
    return True


def mark_abandoned(directory: str | os.PathLike[str], rolled_back_to: int, reason: str = "") -> None:
    """Say in a checkpoint that a rollback went behind it, so that it is never chosen later in place of the new branch.

    After a rollback from step 40 to 10, ``global_step_20`` to ``_40`` stay on disk with manifests that match, though
    they hold the very fault. The next save into the directory, or an operator who deletes the file, lifts the mark.
    """
    record = {"rolled_back_to": rolled_back_to, "reason": reason[:1000], "time": time.time()}
    write_json_atomically(Path(directory) / ABANDONED_NAME, record)


def point_tracker(root: str | os.PathLike[str], step: int) -> None:
    """Make verl's own tracker name the step that a rollback went back to.

    Otherwise a later automatic resume, with or without a supervisor, would take a newer checkpoint that was left
    behind. Raises OSError.
    """
    _replace(Path(root) / TRACKER_NAME, str(step).encode())


def write_json_atomically(path: Path, value: object) -> None:
    """Write to a temporary file in the same directory, fsync, rename, fsync the directory."""
    _replace(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def _replace(path: Path, body: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_directory(path.parent)


def read_small(root: int, name: str, limit: int) -> bytes:
    """Read one file below ``root``, no link, no larger than ``limit`` bytes. Raises OSError, CheckpointError."""
    parts = safe_parts(name)
    if parts is None:
        raise CheckpointError(f"{name!r} is no path inside the checkpoint.")
    facts = file_facts(root, parts, hashed=False)
    if facts.size > limit:
        raise CheckpointError(f"{name} has {facts.size} bytes, more than the {limit} allowed.")
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit + 1)[:limit]


def _configured_sizes(root: int, names: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for component in ("actor", "critic", "."):
        name = "fsdp_config.json" if component == "." else f"{component}/fsdp_config.json"
        if name not in names:
            continue
        # A configuration that cannot be read is no reason to refuse: the shard names then say the world size.
        with contextlib.suppress(OSError, CheckpointError, ValueError):
            content = json.loads(read_small(root, name, 1 << 20))
            size = content.get("world_size") if isinstance(content, dict) else None
            if isinstance(size, int) and 0 < size < 10_000_000:
                sizes[component] = size
    return sizes


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
