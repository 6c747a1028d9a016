"""Choose the rollback target: the newest checkpoint that verifies and was saved no later than a given step.

Called by the supervisor, by ``verl-sentinel-train checkpoints …`` and through that by the rollback scripts.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from trainer_entry.checkpoints.depths import Depth
from trainer_entry.checkpoints.files import Progress
from trainer_entry.checkpoints.layout import TRACKER_NAME, step_directories, tracker_step
from trainer_entry.checkpoints.problems import CheckpointError, Problem
from trainer_entry.checkpoints.unfinished import finish_unhashed
from trainer_entry.checkpoints.verification import Verification, refused, verify

__all__ = ["Choice", "list_checkpoints", "newest_verified", "tracker_problem", "verify"]


@dataclass(frozen=True, slots=True)
class Choice:
    """``chosen`` is None when no checkpoint is left; ``refused`` lists, newest first, what was passed over and why.

    A checkpoint newer than ``not_after_step`` is in ``refused`` too, unread, so that a person sees the whole picture.
    """

    chosen: Verification | None
    refused: list[Verification] = field(default_factory=list)


def list_checkpoints(
    root: str | os.PathLike[str],
    depth: Depth = "sizes",
    *,
    world_size: int | None = None,
    progress: Progress | None = None,
) -> list[Verification]:
    """Every checkpoint of a run, newest step first, verified to ``depth``. Raises CheckpointError (unreadable root)."""
    return [verify(path, depth, world_size=world_size, progress=progress) for _, path in step_directories(root)]


def newest_verified(
    root: str | os.PathLike[str],
    not_after_step: int | None = None,
    *,
    depth: Depth = "content",
    world_size: int | None = None,
    progress: Progress | None = None,
) -> Choice:
    """The newest checkpoint with step <= ``not_after_step`` that verifies. Raises CheckpointError (unreadable root).

    ``world_size`` is the number of ranks that will resume, where it is known: one that was saved by another number is
    refused. A save that had returned before its trainer died gets its manifest here, from the record of that save.
    """
    passed_over: list[Verification] = []
    for step, path in step_directories(root):
        if not_after_step is not None and step > not_after_step:
            sentence = f"It was saved at step {step}, after step {not_after_step}, the newest allowed."
            passed_over.append(refused(path, step, depth, Problem("too_new", sentence)))
            continue
        with contextlib.suppress(OSError, CheckpointError):  # what is wrong with it is said by verify
            finish_unhashed(path)
        result = verify(path, depth, world_size=world_size, progress=progress)
        if result.ok:
            return Choice(result, passed_over)
        passed_over.append(result)
    return Choice(None, passed_over)


def tracker_problem(root: str | os.PathLike[str], found: list[Verification]) -> Problem | None:
    """What is wrong with verl's own tracker, by which an automatic resume goes, given all checkpoints of the run."""
    path = os.path.join(root, TRACKER_NAME)
    good = [result.step for result in found if result.ok]
    if not os.path.lexists(path):
        if not good:
            return None
        return Problem("tracker_gone", f"There is no {TRACKER_NAME}: verl would start from scratch.")
    if os.path.islink(path):
        return Problem("link", f"{TRACKER_NAME} is a symbolic link.")
    step = tracker_step(root)
    if step is None:
        return Problem("tracker_malformed", f"{TRACKER_NAME} names no step: verl would fail to start.")
    named = next((result for result in found if result.step == step), None)
    if named is None:
        return Problem(
            "tracker_gone", f"{TRACKER_NAME} names step {step}, which is not there: verl would start from scratch."
        )
    if not named.ok and named.problem not in ("being_hashed", "being_written", "unfinished"):
        return Problem("tracker_stale", f"{TRACKER_NAME} names step {step}, which may not be restored: {named.reason}")
    if good and step < max(good):
        return Problem(
            "tracker_stale",
            f"{TRACKER_NAME} names step {step}, though step {max(good)} is there and good: verl would train that "
            "part again.",
        )
    return None
