"""The record of the deepest successful verification of a checkpoint, beside it, for tables and for whoever trusts it.

A file of its own, since the manifest is never changed. It names the manifest by its seal or hash, so it is worth
nothing once there is another manifest; a verification that fails removes it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.atomic import read_small, remove, write_json_atomically
from trainer_entry.checkpoints.depths import Depth, reaches
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import OURS_PREFIX
from trainer_entry.checkpoints.manifest import Manifest, fingerprint_of
from trainer_entry.checkpoints.problems import CheckpointError

VERIFIED_NAME = OURS_PREFIX + "verified.json"
_MAX_BYTES = 64 * 1024


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The deepest verification that succeeded. ``time`` in Unix seconds, ``seconds`` is how long it took."""

    fingerprint: str
    written_at: float
    """Of the manifest; with the fingerprint it says which one."""
    depth: Depth
    time: float
    seconds: float = 0.0
    torch_version: str = ""
    """With which it was loaded; empty where it was not."""


def note_verified(directory: Path, manifest: Manifest, depth: Depth, seconds: float, torch_version: str = "") -> None:
    """Record a success, unless a deeper one of the same manifest is on record. Never raises: it is only a note."""
    before = verified(directory, manifest)
    if before is not None and before.depth != depth and reaches(before.depth, depth):
        return
    note = Verified(
        fingerprint=fingerprint_of(manifest.files),
        written_at=manifest.written_at,
        depth=depth,
        time=time.time(),
        seconds=seconds,
        torch_version=torch_version,
    )
    with contextlib.suppress(OSError):  # a file system that is read-only or full
        write_json_atomically(directory / VERIFIED_NAME, note)


def verified(directory: str | os.PathLike[str], manifest: Manifest) -> Verified | None:
    """The record of this very manifest, or None."""
    try:
        with opened_directory(directory) as root:
            found = msgspec.json.decode(read_small(root, VERIFIED_NAME, _MAX_BYTES), type=Verified)
    except (OSError, CheckpointError, msgspec.DecodeError, RecursionError):
        return None
    same = found.fingerprint == fingerprint_of(manifest.files) and found.written_at == manifest.written_at
    return found if same else None


def forget_verified(directory: str | os.PathLike[str]) -> None:
    """Remove the record. Raises OSError."""
    remove(Path(directory) / VERIFIED_NAME)
