"""Finish what a trainer that died left: hash a save that had returned, and write its manifest.

Called by the chooser, which needs the newest checkpoint that can be trusted, after a crash soon after a save.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainer_entry.checkpoints.atomic import read_small
from trainer_entry.checkpoints.files import file_facts, hash_all, opened_directory, tree_files
from trainer_entry.checkpoints.layout import MANIFEST_NAME, completeness, step_of
from trainer_entry.checkpoints.manifest import FileEntry, Manifest
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.saved import Saved, being_hashed, of_this_boot, read_saved
from trainer_entry.checkpoints.writing import Hashed, configured_sizes, write_hashed


def finish_unhashed(directory: str | os.PathLike[str]) -> Manifest | None:
    """Write the missing manifest of a save that had returned; None where there is nothing to finish, or it may not be.

    It may not be where the trainer is alive, which does it itself; where the machine was started anew since, or is not
    the one that saved, for then nobody knows what had reached the disk; and where a file is not as long as when the
    save returned, or was changed since. Raises OSError and CheckpointError as hashing does.
    """
    path = Path(directory)
    step = step_of(path)
    if step is None:
        return None
    with opened_directory(path) as root:
        if _there(root, MANIFEST_NAME):
            return None
        saved = read_saved(root)
        if saved is None or saved.step != step or being_hashed(saved) or not of_this_boot(saved):
            return None
        hashed = _hash_as_saved(root, saved)
    return write_hashed(path, step, hashed, saved.origin) if hashed is not None else None


def _hash_as_saved(root: int, saved: Saved) -> Hashed | None:
    names = tree_files(root)
    if set(names) != set(saved.sizes):
        return None
    for name in names:
        facts = file_facts(root, name.split("/"), hashed=False)
        if facts.size != saved.sizes[name] or facts.changed_ns / 1e9 > saved.time + 1.0:
            return None
    complete = completeness(names, configured_sizes(root, names))
    if complete.problem:
        return None
    entries = []
    for name, facts_or_error in sorted(hash_all(root, saved.sizes.items()).items()):
        if isinstance(facts_or_error, Exception):
            raise facts_or_error
        entries.append(FileEntry(path=name, size=facts_or_error.size, sha256=facts_or_error.sha256))
    return Hashed(files=entries, world_sizes=complete.world_sizes)


def _there(root: int, name: str) -> bool:
    try:
        read_small(root, name, 0)
    except FileNotFoundError:
        return False
    except (OSError, CheckpointError):
        return True
    return True
