"""A hold on a checkpoint: while it is there, no retention of ours deletes it.

Written by the supervisor for the target of a command and removed at its end; looked at by everything that prunes. It
lies in the checkpoint itself, so that it is seen by whoever looks at the directory, on whichever host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.atomic import read_small, write_json_atomically
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import OURS_PREFIX
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.saving import no_deletion

HOLD_NAME = OURS_PREFIX + "hold.json"
_MAX_BYTES = 64 * 1024


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a checkpoint, and why. ``time`` in Unix seconds."""

    holder: str
    reason: str = ""
    time: float = 0.0


def hold(
    directory: str | os.PathLike[str],
    holder: str,
    reason: str = "",
    *,
    state_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Hold a checkpoint for ``holder`` (a command's id, say); a hold by another is replaced.

    With the run's state directory it is written under the lock that retention renames under: either retention sees the
    hold, or the checkpoint is gone by now, and this says so. verl's own retention knows no lock; whether the directory
    is still the same one is looked at afterwards. Raises OSError; FileNotFoundError where the checkpoint is gone.
    """
    record = Hold(holder=holder[:200], reason=reason[:1000], time=time.time())
    path = Path(directory)
    with contextlib.ExitStack() as stack:
        if state_dir is not None:
            stack.enter_context(no_deletion(state_dir))
        before = os.stat(path)
        write_json_atomically(path / HOLD_NAME, record)
        after = os.stat(path)
        if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
            with contextlib.suppress(FileNotFoundError):
                (path / HOLD_NAME).unlink()
            raise FileNotFoundError(errno.ENOENT, "it was deleted, and made anew, meanwhile", os.fspath(path))


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
