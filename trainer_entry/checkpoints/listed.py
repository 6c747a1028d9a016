"""All that is known of each checkpoint of a run, for a table: what it is, what it was verified to, who holds it.

Called by ``checkpoints list``. Reads manifests and small records; nothing large.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from trainer_entry.checkpoints.choosing import list_checkpoints, tracker_problem
from trainer_entry.checkpoints.depths import Depth
from trainer_entry.checkpoints.files import MAX_FILES, Progress, opened_directory
from trainer_entry.checkpoints.holding import Hold, held
from trainer_entry.checkpoints.layout import tracker_step
from trainer_entry.checkpoints.manifest import Manifest, read_manifest
from trainer_entry.checkpoints.problems import CheckpointError, Problem
from trainer_entry.checkpoints.record import Verified, verified
from trainer_entry.checkpoints.verification import Verification

_MOST_HALF = 20


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint. ``manifest`` is there also for one that may not be restored, if it can be read at all.

    ``bytes`` on the disk; ``saved_at`` in Unix seconds, of the manifest, else of the directory.
    """

    verification: Verification
    manifest: Manifest | None
    bytes: int
    saved_at: float
    verified: Verified | None
    held: Hold | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """A run's checkpoints, newest step first, and verl's tracker: the step that it names, and what is wrong with it."""

    checkpoints: list[Listed]
    tracker: int | None
    tracker_problem: Problem | None
    half: tuple[Problem, ...] = ()
    """Restores into this folder that did not finish."""


def inventory(
    root: str | os.PathLike[str],
    depth: Depth = "sizes",
    *,
    world_size: int | None = None,
    progress: Progress | None = None,
) -> Inventory:
    """Look at everything in a run's folder. Raises CheckpointError (unreadable root)."""
    found = list_checkpoints(root, depth, world_size=world_size, progress=progress)
    return Inventory(
        [_listed(one) for one in found], tracker_step(root), tracker_problem(root, found), _half_restored(root)
    )


def size_on_disk(directory: str | os.PathLike[str]) -> int:
    """Bytes of all files in a directory; what cannot be looked at counts as nothing, and links are not followed."""
    total = count = 0
    for base, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(base, name)).st_size
            count += 1
            if count > MAX_FILES:
                return total
    return total


def _half_restored(root: str | os.PathLike[str]) -> tuple[Problem, ...]:
    from trainer_entry.checkpoints.tiers.restoring import RESTORING

    try:
        names = sorted(name for name in os.listdir(root) if name.startswith(RESTORING))[:_MOST_HALF]
    except OSError:
        return ()
    return tuple(
        Problem("half_copy", f"A restore did not finish ({name}); start it again, it goes on.", name) for name in names
    )


def _listed(verification: Verification) -> Listed:
    path = verification.path
    manifest = verification.manifest or _manifest(path, verification.step)
    saved_at = manifest.written_at if manifest is not None else 0.0
    if not saved_at:
        with contextlib.suppress(OSError):
            saved_at = os.lstat(path).st_mtime
    return Listed(
        verification=verification,
        manifest=manifest,
        bytes=size_on_disk(path),
        saved_at=saved_at,
        verified=verified(path, manifest) if manifest is not None else None,
        held=held(path),
    )


def _manifest(path: Path, step: int) -> Manifest | None:
    try:
        with opened_directory(path) as root:
            return read_manifest(root, step)
    except (OSError, CheckpointError):
        return None
