"""Small records beside a checkpoint's own files: written atomically, and read as hostile input.

Called by the manifest, the marks, the record of verifications, and whoever else keeps a small file in a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.files import file_facts, opened_file, safe_parts
from trainer_entry.checkpoints.problems import CheckpointError


def write_json_atomically(path: Path, value: object) -> None:
    """Write to a temporary file in the same directory, fsync, rename, fsync the directory.

    Raises OSError; nothing half is left behind then, not even on a full disk.
    """
    replace_file(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def replace_file(path: Path, body: bytes) -> None:
    """The same for any content."""
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
    sync_directory(path.parent)


def read_small(root: int, name: str, limit: int) -> bytes:
    """Read one file below ``root``, no link, no larger than ``limit`` bytes. Raises OSError, CheckpointError."""
    parts = safe_parts(name)
    if parts is None:
        raise CheckpointError(f"{name!r} is no path inside the checkpoint.")
    size = file_facts(root, parts, hashed=False).size
    if size > limit:
        raise CheckpointError(f"{name} has {size} bytes, more than the {limit} allowed.", "manifest_malformed", name)
    with opened_file(root, parts) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read(limit + 1)[:limit]


def remove(path: Path) -> bool:
    """Remove a file; True if it was there. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def sync_directory(path: Path) -> None:
    """See that a rename or removal in a directory is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
