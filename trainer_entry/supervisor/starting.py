"""Where the next attempt starts from, decided before anything is started. Called by the supervisor.

verl starts from scratch, with exit code 0, when its tracker is missing or names a directory that is gone. That must not
happen in silence to a run that has checkpoints, nor may it resume by itself from one that a rollback went behind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exporter.protocol import Scalar
from trainer_entry import checkpoints
from trainer_entry.checkpoints import CheckpointError, Choice, Verification
from trainer_entry.checkpoints.tiers.left_behind import note_left_behind
from trainer_entry.checkpoints.world_size import asked_world_size
from trainer_entry.supervisor.overrides import TrainerCommand
from trainer_entry.supervisor.state import ResumeTarget


class NothingToStartFrom(Exception):
    """No checkpoint may be restored; the message is a sentence that says why, and what a person can do."""


@dataclass(frozen=True, slots=True)
class Start:
    """Words to run, and the step they resume from: None where verl chooses, 0 for a start from scratch by request."""

    argv: tuple[str, ...]
    resume_step: int | None
    resume_path: str = ""
    note: str = ""


def plain_start(command: TrainerCommand, root: str, changed: Mapping[str, Scalar] | None = None) -> Start:
    """A start that nobody asked a rollback for: the user's words as they are, unless verl would quietly begin anew.

    ``changed``, here and below, are the settings in force in place of the words', which the ranks follow from too.
    Raises NothingToStartFrom, CheckpointError.
    """
    there = dict(checkpoints.step_directories(root))
    if command.resume_mode == "disable":
        note = f"starting from scratch, as trainer.resume_mode=disable says, beside the checkpoints in {root}"
        leave_behind(root, 0, "trainer.resume_mode=disable", by_words=True)
        return Start(command.argv, 0, note=note if there else "")
    if command.resume_path is not None:
        from_step = checkpoints.step_of(command.resume_path)
        # What lies here is of another branch as a whole where the start is from elsewhere.
        here = os.path.realpath(os.path.dirname(os.path.abspath(command.resume_path))) == os.path.realpath(root)
        if from_step is not None or not here:
            reason = f"trainer.resume_from_path={command.resume_path}"
            leave_behind(root, from_step if here and from_step is not None else 0, reason, by_words=True)
        return Start(command.argv, from_step, command.resume_path)
    ranks = asked_world_size(command.argv, changed)
    step = checkpoints.tracker_step(root)
    danger = "it would start from scratch in silence"
    if step is None:
        if not there:
            return Start(command.argv, None)
        why = f"There are checkpoints in {root}, but no {checkpoints.TRACKER_NAME} that verl would resume by"
    elif step not in there:
        why = f"verl's tracker in {root} names global_step_{step}, which is not there"
    elif (there[step] / checkpoints.ABANDONED_NAME).exists():
        why = f"verl's tracker in {root} names global_step_{step}, which a rollback left behind"
    elif broken := unusable(there[step], ranks):
        why = f"verl's tracker in {root} names global_step_{step}, which may not be restored: {broken.rstrip('.')}"
        danger = "it would fail on it, or train on the wrong data"
    else:
        return Start(command.argv, None)
    choice = checkpoints.newest_verified(root, world_size=ranks)
    if choice.chosen is None:
        raise NothingToStartFrom(f"{why}, and {danger}. {explain_none(choice)} {WAY_OUT}")
    start = _resume(command, choice.chosen)
    return Start(start.argv, start.resume_step, start.resume_path, f"{why}; resuming from step {start.resume_step}")


def held_start(
    command: TrainerCommand,
    root: str,
    held: str,
    not_after_step: int | None,
    held_argv: Sequence[str] | None,
    *,
    by_person: bool = False,
    changed: Mapping[str, Scalar] | None = None,
) -> Start:
    """A start of a run that is held: only from a checkpoint that verifies by now, or from where a person's words say.

    ``held_argv`` are the words that it was held under: given again, by somebody's automation say, they decide nothing.
    ``by_person``: a person called its rollback off, so no checkpoint is taken by itself either.
    Raises NothingToStartFrom, CheckpointError.
    """
    says_where = command.resume_mode in ("disable", "resume_path")
    if says_where and list(command.argv) != list(held_argv or ()):
        return plain_start(command, root, changed)
    if by_person:
        raise NothingToStartFrom(f"The run is held: {held} {BY_HAND}")
    choice = checkpoints.newest_verified(root, not_after_step, world_size=asked_world_size(command.argv, changed))
    if choice.chosen is None:
        way_out = SAME_WORDS if says_where else WAY_OUT
        raise NothingToStartFrom(f"The run is held: {held} {explain_none(choice)} {way_out}")
    leave_behind(root, choice.chosen.step, held)
    start = _resume(command, choice.chosen)
    return Start(
        start.argv, start.resume_step, start.resume_path, f"resuming from step {start.resume_step} after a hold"
    )


def start_from(
    command: TrainerCommand,
    root: str,
    target: ResumeTarget,
    reason: str,
    depth: Literal["sizes", "content"],
    changed: Mapping[str, Scalar] | None = None,
) -> Start:
    """A rollback's start from ``target``, verified once more; newer checkpoints are marked as left behind.

    Raises NothingToStartFrom when the target does not verify, CheckpointError and OverrideError.
    """
    verification = checkpoints.verify(target.path, depth, world_size=asked_world_size(command.argv, changed))
    if not verification.ok:
        raise NothingToStartFrom(f"{target.path} cannot be restored. {verification.reason}")
    start = _resume(command, verification)
    leave_behind(root, verification.step, reason)
    return start


def unusable(directory: Path, ranks: int | None = None) -> str:
    """Why verl would fail, or repeat data in silence, on a checkpoint that it would take by itself; empty if it would
    not. One without a manifest is verl's own business as long as all of it is there. ``ranks`` resume, where known.
    """
    found = checkpoints.verify(directory, "sizes", world_size=ranks, noted=False)
    return "" if found.ok or found.problem in _NO_PROOF else found.reason


_NO_PROOF = ("no_manifest", "unfinished", "being_hashed", "being_written", "manifest_format", "manifest_edited")


def leave_behind(root: str, step: int, reason: str, *, by_words: bool = False) -> list[Path]:
    """Mark all checkpoints newer than ``step``, and point verl's tracker at it. ``by_words``: nothing is wrong with
    them, but they are of another branch, which must neither be taken for the new one nor count in its retention.

    Raises CheckpointError.
    """
    marked = []
    try:
        for newer, path in checkpoints.step_directories(root):
            if newer > step and not path.is_symlink() and not (path / checkpoints.ABANDONED_NAME).exists():
                with contextlib.suppress(OSError):  # of copies; before the mark, since what is marked is passed over
                    if not by_words:
                        note_left_behind(path, step)
                checkpoints.mark_abandoned(path, step, reason, by_words=by_words)
                marked.append(path)
        if (Path(root) / f"global_step_{step}").is_dir() and checkpoints.tracker_step(root) != step:
            checkpoints.point_tracker(root, step)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoints after step {step} in {root} cannot be marked as left behind: {error.strerror}."
        ) from error
    return marked


def explain_none(choice: Choice) -> str:
    """Why each checkpoint was refused, newest first, bounded; a sentence or more."""
    if not choice.refused:
        return "There is no checkpoint at all."
    told = [f"step {refused.step}: {refused.reason}" for refused in choice.refused[:5]]
    more = len(choice.refused) - len(told)
    return "No checkpoint may be restored: " + " ".join(told) + (f" (and {more} more)" if more else "")


WAY_OUT = (
    "Put a good checkpoint back, or say where to start: trainer.resume_mode=resume_path trainer.resume_from_path=…, "
    "or trainer.resume_mode=disable to start from scratch."
)

BY_HAND = (
    "Start it with verl-sentinel-train resume --target …/global_step_N, or say where to start: "
    "trainer.resume_mode=resume_path trainer.resume_from_path=…, or trainer.resume_mode=disable to start from scratch."
)

SAME_WORDS = (
    "The command is the one that it was held under, so its trainer.resume_mode is no new decision. Put a good "
    "checkpoint back, or start it as a run of its own, with another --state-dir."
)


def _resume(command: TrainerCommand, chosen: Verification) -> Start:
    path = os.fspath(chosen.path)
    return Start(command.resuming_from(path), chosen.step, path)
