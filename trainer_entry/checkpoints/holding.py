"""A hold on a checkpoint: while it is there, no retention of ours deletes it.

Written by the supervisor for the target of a command and removed at its end; looked at by everything that prunes. It
lies in the checkpoint itself, so that it is seen by whoever looks at the directory, on whichever host.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.atomic import read_small, write_json_atomically
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import OURS_PREFIX
from trainer_entry.checkpoints.problems import CheckpointError

HOLD_NAME = OURS_PREFIX + "hold.json"
_MAX_BYTES = 64 * 1024


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a checkpoint, and why. ``time`` in Unix seconds."""

    holder: str
    reason: str = ""
    time: float = 0.0


def hold(directory: str | os.PathLike[str], holder: str, reason: str = "") -> None:
    """Hold a checkpoint for ``holder`` (a command's id, say); a hold by another is replaced. Raises OSError."""
    record = Hold(holder=holder[:200], reason=reason[:1000], time=time.time())
    write_json_atomically(Path(directory) / HOLD_NAME, record)


def release(directory: str | os.PathLike[str], holder: str) -> bool:
    """End the hold of that holder; another's stays. True if there was one. Never raises for what is gone already."""
    found = held(directory)
    if found is None or found.holder != holder[:200]:
        return False
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (Path(directory) / HOLD_NAME).unlink()
    return True


def held(directory: str | os.PathLike[str]) -> Hold | None:
    """The hold on a checkpoint, or None. One that cannot be read holds too: to keep is the safe side."""
    if not os.path.lexists(os.path.join(directory, HOLD_NAME)):
        return None
    try:
        with opened_directory(directory) as root:
            return msgspec.json.decode(read_small(root, HOLD_NAME, _MAX_BYTES), type=Hold)
    except FileNotFoundError:
        return None
    except (OSError, CheckpointError, msgspec.DecodeError, RecursionError):
        return Hold(holder="unknown", reason=f"its {HOLD_NAME} cannot be read")
