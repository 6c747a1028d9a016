"""Verify one checkpoint against its manifest, and deeper. Called by the chooser, the supervisor, the command line."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer_entry.checkpoints.depths import Depth, reaches
from trainer_entry.checkpoints.files import Progress, file_facts, hash_all, opened_directory
from trainer_entry.checkpoints.layout import EMPTIED, step_of
from trainer_entry.checkpoints.manifest import Manifest, read_manifest
from trainer_entry.checkpoints.marks import refuse_abandoned
from trainer_entry.checkpoints.problems import CheckpointError, Code, Problem, told
from trainer_entry.checkpoints.record import forget_verified, note_verified
from trainer_entry.checkpoints.unmarked import why_no_manifest

__all__ = ["Depth", "Verification", "verify"]

MAX_PROBLEMS = 50
"""More are counted by nobody."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a checkpoint may be restored. ``reason`` says in sentences why not; it is empty when ``ok``.

    ``problems`` has each thing that is wrong, by name; ``manifest`` is None where none could be read.
    """

    ok: bool
    path: Path
    step: int
    depth: Depth
    reason: str = ""
    manifest: Manifest | None = None
    seconds: float = 0.0
    problems: tuple[Problem, ...] = field(default=())

    @property
    def problem(self) -> Code | None:
        """The code of the first problem."""
        return self.problems[0].code if self.problems else None


def refused(path: Path, step: int, depth: Depth, *problems: Problem, seconds: float = 0.0) -> Verification:
    """The verification of a checkpoint that may not be restored."""
    return Verification(False, path, step, depth, told(problems), None, seconds, problems)


def verify(
    directory: str | os.PathLike[str],
    depth: Depth = "content",
    *,
    world_size: int | None = None,
    progress: Progress | None = None,
    noted: bool = True,
    seconds_allowed: float | None = None,
    urgent: bool = False,
) -> Verification:
    """Verify a checkpoint to ``depth``; never raises for what is on the disk, but says it.

    ``world_size`` is the number of ranks that would resume from it, where that is known: verl cannot resume with
    another one. ``noted``: keep a record beside it of what was found. ``seconds_allowed`` bounds what is loaded in a
    process of its own (depths ``load`` and ``forward``), which runs at low priority unless ``urgent``.
    """
    path = Path(os.path.abspath(directory))
    step = step_of(path)
    started = time.monotonic()
    if step is None:
        return refused(path, -1, depth, Problem("foreign_name", f"{path} is not named global_step_N."))
    manifest: Manifest | None = None
    torch_version = ""
    try:
        with opened_directory(path) as root:
            refuse_abandoned(root)
            _refuse_half_copy(path)
            try:
                manifest = read_manifest(root, step)
            except FileNotFoundError:
                raise why_no_manifest(root) from None
            problems = _another_world(manifest, world_size) or _compare(root, manifest, depth, progress)
        if not problems and reaches(depth, "load"):
            from trainer_entry.checkpoints.deeper import verify_deeper

            problems, torch_version = verify_deeper(path, manifest, depth, seconds_allowed, urgent=urgent)
    except CheckpointError as error:
        problems = (error.as_problem(),)
    except OSError as error:
        problems = (Problem("unreadable", f"{path} cannot be read: {error.strerror or error}."),)
    seconds = time.monotonic() - started
    if noted and manifest is not None and depth != "sizes":
        if not problems:
            note_verified(path, manifest, depth, seconds, torch_version)
        elif problems[0].code not in ("world_size", "not_tried"):
            _forget(path)
    return Verification(not problems, path, step, depth, told(problems), manifest, seconds, problems)


def _refuse_half_copy(path: Path) -> None:
    """A copy in a tier's place is begun with one record beside the checkpoint and ended with another."""
    from trainer_entry.checkpoints.tiers.naming import COPY_NAME, STARTED_NAME

    if os.path.lexists(path.parent / STARTED_NAME) and not os.path.lexists(path.parent / COPY_NAME):
        raise CheckpointError(
            f"It is a half copy: {path.parent.name} was begun and never finished (it has no {COPY_NAME}).", "half_copy"
        )


def _another_world(manifest: Manifest, world_size: int | None) -> tuple[Problem, ...]:
    if not world_size:
        return ()
    for component, ranks in sorted(manifest.world_sizes.items()):
        if ranks != world_size:
            where = "" if component == "." else f" ({component}/)"
            return (
                Problem(
                    "world_size",
                    f"It was saved by {ranks} rank{'s' * (ranks != 1)}{where}, and the run now has {world_size}; verl "
                    "resumes only with as many.",
                ),
            )
    return ()


def _compare(root: int, manifest: Manifest, depth: Depth, progress: Progress | None) -> tuple[Problem, ...]:
    """What differs from the manifest. Sizes first: a truncated file is then found without hashing the others."""
    problems: list[Problem] = []
    for entry in manifest.files:
        found = _size_problem(root, entry.path, entry.size)
        if found is not None:
            problems.append(found)
            if len(problems) == MAX_PROBLEMS:
                break
    if problems:
        gone = {problem.path for problem in problems if problem.code == "missing_file"}
        emptied = [part for part in ("actor/", "critic/") if _all_gone(part, manifest, gone)]
        if emptied:
            return (Problem("retention", f"Of its {emptied[0]} nothing is there: {EMPTIED}."),)
        return tuple(problems)
    if depth == "sizes":
        return ()
    wanted = {entry.path: entry.sha256 for entry in manifest.files}
    facts = hash_all(root, [(entry.path, entry.size) for entry in manifest.files], progress)
    for path in sorted(facts):
        fact = facts[path]
        if isinstance(fact, CheckpointError):
            problems.append(fact.as_problem())
        elif isinstance(fact, OSError):
            problems.append(Problem("unreadable", f"The file {path} cannot be read: {fact.strerror}.", path))
        elif not isinstance(fact, Exception) and fact.sha256 != wanted[path]:
            problems.append(
                Problem("content", f"The content of {path} is not what was saved (its SHA-256 differs).", path)
            )
    return tuple(problems[:MAX_PROBLEMS])


def _size_problem(root: int, path: str, expected: int) -> Problem | None:
    try:
        size = file_facts(root, path.split("/"), hashed=False).size
    except CheckpointError as error:
        return error.as_problem()
    except FileNotFoundError:
        return Problem("missing_file", f"The file {path} is missing.", path)
    except NotADirectoryError:
        return Problem("link", f"The file {path} lies behind a symbolic link, or a file in its way.", path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return Problem("link", f"The file {path} is, or lies behind, a symbolic link.", path)
        return Problem("unreadable", f"The file {path} cannot be read: {error.strerror}.", path)
    if size < expected:
        return Problem("truncated", f"The file {path} is truncated: {size} of {expected} bytes.", path)
    if size > expected:
        return Problem("longer", f"The file {path} has {size} bytes, {size - expected} more than were saved.", path)
    return None


def _all_gone(prefix: str, manifest: Manifest, gone: Mapping[str, object] | set[str]) -> bool:
    inside = [entry.path for entry in manifest.files if entry.path.startswith(prefix)]
    return bool(inside) and len(gone) < MAX_PROBLEMS and all(path in gone for path in inside)


def _forget(path: Path) -> None:
    try:
        forget_verified(path)
    except OSError:
        return
