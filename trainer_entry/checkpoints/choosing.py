"""Choose the rollback target: the newest checkpoint that verifies and was saved no later than a given step.

Called by the supervisor, by ``verl-sentinel-train checkpoints …`` and through that by the rollback script.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from trainer_entry.checkpoints.layout import step_directories
from trainer_entry.checkpoints.verification import Depth, Verification, verify

__all__ = ["Choice", "list_checkpoints", "newest_verified", "verify"]


@dataclass(frozen=True, slots=True)
class Choice:
    """``chosen`` is None when no checkpoint is left; ``refused`` lists, newest first, what was passed over and why.

    A checkpoint newer than ``not_after_step`` is in ``refused`` too, unread, so that a person sees the whole picture.
    """

    chosen: Verification | None
    refused: list[Verification] = field(default_factory=list)


def list_checkpoints(root: str | os.PathLike[str], depth: Depth = "sizes") -> list[Verification]:
    """Every checkpoint of a run, newest step first, verified to ``depth``. Raises CheckpointError (unreadable root)."""
    return [verify(path, depth) for _, path in step_directories(root)]


def newest_verified(
    root: str | os.PathLike[str], not_after_step: int | None = None, *, depth: Depth = "content"
) -> Choice:
    """The newest checkpoint with step <= ``not_after_step`` that verifies. Raises CheckpointError (unreadable root)."""
    refused: list[Verification] = []
    for step, path in step_directories(root):
        if not_after_step is not None and step > not_after_step:
            reason = f"It was saved at step {step}, after step {not_after_step}, the newest allowed."
            refused.append(Verification(False, path, step, depth, reason))
            continue
        result = verify(path, depth)
        if result.ok:
            return Choice(result, refused)
        refused.append(result)
    return Choice(None, refused)
