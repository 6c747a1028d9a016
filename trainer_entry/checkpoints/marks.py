"""Marks that a rollback leaves: checkpoints that it went behind, and verl's own tracker. Called by the supervisor."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from trainer_entry.checkpoints.atomic import read_small, replace_file, write_json_atomically
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import OURS_PREFIX, TRACKER_NAME
from trainer_entry.checkpoints.problems import CheckpointError

ABANDONED_NAME = OURS_PREFIX + "abandoned.json"


def mark_abandoned(
    directory: str | os.PathLike[str], rolled_back_to: int, reason: str = "", *, by_words: bool = False
) -> None:
    """Say in a checkpoint that a rollback went behind it, so that it is never chosen later in place of the new branch.

    After a rollback from step 40 to 10, ``global_step_20`` to ``_40`` stay on disk with manifests that match, though
    they hold the very fault. The next save into the directory, or an operator who deletes the file, lifts the mark.
    ``by_words``: no rollback did, but a start whose words say where; nothing is wrong with it then, and no retention
    deletes it.
    """
    record = {"rolled_back_to": rolled_back_to, "reason": reason[:1000], "time": time.time(), "by_words": by_words}
    write_json_atomically(Path(directory) / ABANDONED_NAME, record)


def by_words(directory: str | os.PathLike[str]) -> bool:
    """Whether it was a start by somebody's words that went behind the checkpoint."""
    with (
        contextlib.suppress(OSError, CheckpointError),
        opened_directory(directory) as root,
    ):
        return _record(root).get("by_words") is True
    return False


def _record(root: int) -> dict[str, Any]:
    """What the mark says; empty where it cannot be read, for the mark alone counts."""
    try:
        return msgspec.json.decode(read_small(root, ABANDONED_NAME, 1 << 20), type=dict[str, Any])
    except (OSError, CheckpointError, msgspec.DecodeError, RecursionError):
        return {}


def refuse_abandoned(root: int) -> None:
    """Raise CheckpointError where the opened checkpoint directory was left behind by a rollback."""
    try:
        os.stat(ABANDONED_NAME, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return
    record = _record(root)
    step, words = record.get("rolled_back_to"), record.get("by_words") is True
    what = "a start from" if words else "a rollback to"
    target = f"step {step}" if isinstance(step, int) else "an older step"
    if words and step == 0:
        target = "scratch, or from elsewhere"
    raise CheckpointError(
        f"It was left behind by {what} {target} (delete {ABANDONED_NAME} in it to allow it again).", "abandoned"
    )


def point_tracker(root: str | os.PathLike[str], step: int) -> None:
    """Make verl's own tracker name the step that a rollback went back to.

    Otherwise a later automatic resume, with or without a supervisor, would take a newer checkpoint that was left
    behind. Raises OSError.
    """
    replace_file(Path(root) / TRACKER_NAME, str(step).encode())
