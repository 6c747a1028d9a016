"""Why a checkpoint has no manifest, as precisely as its files tell. Called by verify, for lists and refusals."""

from __future__ import annotations

import os
import time

from trainer_entry.checkpoints.files import file_facts, opened_file, tree_files
from trainer_entry.checkpoints.layout import MANIFEST_NAME, completeness
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.saved import being_hashed, of_this_boot, read_saved
from trainer_entry.checkpoints.writing import configured_sizes

QUIET_SECONDS = 60.0
"""A directory in which something changed more recently than this is taken for one that is being written."""

_TAIL_BYTES = 66_000
"""The end record of a zip archive, which torch.save writes last, lies within so many bytes of the end."""

_END_OF_ARCHIVE = b"PK\x05\x06"


def why_no_manifest(root: int) -> CheckpointError:
    """The error that says it, for an opened checkpoint directory. Raises as reading does."""
    saved = read_saved(root)
    if saved is not None and being_hashed(saved):
        return CheckpointError("It was saved a moment ago; its files are being hashed.", "being_hashed")
    names = tree_files(root)
    newest = max((file_facts(root, name.split("/"), hashed=False).changed_ns for name in names), default=0) / 1e9
    newest = max(newest, os.fstat(root).st_mtime)
    age = time.time() - newest
    if saved is None and -5 <= age < QUIET_SECONDS:
        return CheckpointError(
            f"It has no {MANIFEST_NAME} and something in it changed {max(0.0, age):.0f} s ago: it is being written, or "
            "was a moment ago.",
            "being_written",
        )
    if not names:
        return CheckpointError("It is empty.", "missing_shard")
    complete = completeness(names, configured_sizes(root, names))
    if complete.problem:
        return CheckpointError(f"It is incomplete: {complete.problem}.", complete.code)
    for name in names:
        if name.endswith(".pt") and _cut_short(root, name):
            return CheckpointError(
                f"The file {name} is cut short, as a full disk or a killed save leaves it.", "truncated", name
            )
    if saved is not None:
        if of_this_boot(saved):
            sentence = "It was saved, but its files were not hashed before the trainer ended."
        else:
            sentence = "Its files are not hashed, and it was saved on another machine, or before this one was started."
        return CheckpointError(sentence, "unfinished")
    return CheckpointError(
        f"It has no {MANIFEST_NAME}: the save was not finished, or was made without verl-sentinel.", "no_manifest"
    )


def _cut_short(root: int, name: str) -> bool:
    """Whether a file that torch.save began as an archive has no end; a file of another kind is left to loading."""
    with opened_file(root, name.split("/")) as descriptor:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return True
        if os.pread(descriptor, 2, 0) != b"PK":
            return False
        tail = os.pread(descriptor, min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    return _END_OF_ARCHIVE not in tail
