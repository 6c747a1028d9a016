"""The record that verl has returned from a save, written at once; hashing, which takes long, follows.

It lets a save that was complete be used though the trainer died before its files were hashed: whoever looks for a
rollback target then hashes them and writes the manifest from this record (:mod:`.unfinished`). It counts only on the
machine, and in the boot, in which it was written: after a power failure nobody knows which files had reached the disk.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.atomic import read_small, remove, write_json_atomically
from trainer_entry.checkpoints.files import file_facts, opened_directory, tree_files
from trainer_entry.checkpoints.layout import OURS_PREFIX
from trainer_entry.checkpoints.manifest import MAX_MANIFEST_BYTES, Origin
from trainer_entry.checkpoints.problems import CheckpointError

SAVED_NAME = OURS_PREFIX + "saved.json"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """``sizes`` in bytes by path. ``pid`` and ``start_ticks`` are of the trainer's process, which hashes the files."""

    step: int
    sizes: dict[str, int]
    origin: Origin
    boot_id: str
    pid: int
    start_ticks: int
    time: float


def record_saved(directory: str | os.PathLike[str], step: int, origin: Origin) -> Saved:
    """Write the record; milliseconds. Raises OSError, CheckpointError where the directory holds links."""
    with opened_directory(directory) as root:
        sizes = {path: file_facts(root, path.split("/"), hashed=False).size for path in tree_files(root)}
    saved = Saved(
        step=step,
        sizes=sizes,
        origin=origin,
        boot_id=_boot_id(),
        pid=os.getpid(),
        start_ticks=_start_ticks(os.getpid()),
        time=time.time(),
    )
    write_json_atomically(Path(directory) / SAVED_NAME, saved)
    return saved


def read_saved(root: int) -> Saved | None:
    """The record in an opened checkpoint directory; None where there is none that can be read."""
    try:
        return msgspec.json.decode(read_small(root, SAVED_NAME, MAX_MANIFEST_BYTES), type=Saved)
    except (OSError, CheckpointError, msgspec.DecodeError, RecursionError):
        return None


def forget_saved(directory: str | os.PathLike[str]) -> None:
    """Remove the record: the manifest is written, or a save into the same place begins. Raises OSError."""
    remove(Path(directory) / SAVED_NAME)


def being_hashed(saved: Saved) -> bool:
    """Whether the process that saved is alive here, and so will write the manifest itself."""
    return saved.boot_id == _boot_id() and saved.start_ticks > 0 and _start_ticks(saved.pid) == saved.start_ticks


def of_this_boot(saved: Saved) -> bool:
    """Whether the machine has run since, so that what was written is what is read."""
    return bool(saved.boot_id) and saved.boot_id == _boot_id()


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _start_ticks(pid: int) -> int:
    """When a process started, in ticks since boot; 0 for one that is gone or dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
