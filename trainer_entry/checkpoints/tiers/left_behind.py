"""Copies of checkpoints that a rollback went behind: they hold the fault, so they are no good ones to go back to.

The supervisor notes their names in the run's own directory when it marks the checkpoints themselves, which retention
deletes after a day; the keeper then marks the copies at each place, so that a restore knows it where nothing of the run
is left. The same content offered anew lifts both.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.atomic import write_json_atomically
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import step_of
from trainer_entry.checkpoints.manifest import read_manifest
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.naming import copy_name, step_of_name

LEFT_NAME = "verl_sentinel_left_behind.json"
NOTES_NAME = ".verl_sentinel_left_behind"
_MOST = 10_000


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """The step that the rollback went to, and when (Unix seconds)."""

    rolled_back_to: int
    time: float = 0.0


def note_left_behind(directory: str | os.PathLike[str], rolled_back_to: int) -> None:
    """Note what a copy of this checkpoint would be called. One without a manifest has none. Raises OSError."""
    path = Path(directory)
    try:
        with opened_directory(path) as root:
            name = copy_name(read_manifest(root, step_of(path) or 0))
    except (OSError, CheckpointError):
        return
    notes = path.parent / NOTES_NAME
    notes.mkdir(mode=0o700, exist_ok=True)
    write_json_atomically(notes / f"{name}.json", LeftBehind(rolled_back_to=rolled_back_to, time=time.time()))


def left_behind(root: str | os.PathLike[str]) -> dict[str, LeftBehind]:
    """By the copy's name, all that was noted in a run's own directory; what cannot be read as a note is none."""
    found: dict[str, LeftBehind] = {}
    with contextlib.suppress(OSError):
        for path in sorted(Path(root, NOTES_NAME).glob("*.json"))[:_MOST]:
            if step_of_name(path.stem) is not None and path.is_file():
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    found[path.stem] = decode_left_behind(path.read_bytes()[:4096])
    return found


def in_words(mark: LeftBehind | None, what: str) -> str:
    """A sentence for a person; the mark counts also where it cannot be read (None)."""
    target = f"step {mark.rolled_back_to}" if mark is not None else "an older step"
    return f"The run was rolled back behind {what}, to {target}; give its --name to restore it all the same."


def forget_left_behind(root: str | os.PathLike[str], name: str) -> None:
    """The same content was saved again, and is good by that. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        Path(root, NOTES_NAME, f"{name}.json").unlink()


def decode_left_behind(body: bytes) -> LeftBehind:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(body, type=LeftBehind)
