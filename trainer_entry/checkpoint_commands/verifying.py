"""``checkpoints verify`` and ``choose``."""

from __future__ import annotations

import argparse
import json
import os
import sys

from trainer_entry import checkpoints
from trainer_entry.changes import changes_of
from trainer_entry.checkpoint_commands.runs import ranks_of, root_of
from trainer_entry.checkpoint_commands.telling import tell
from trainer_entry.checkpoints import Verification
from trainer_entry.checkpoints.depths import NAMES
from trainer_entry.checkpoints.listed import size_on_disk
from trainer_entry.checkpoints.priority import low_priority
from trainer_entry.checkpoints.progress import shown_progress, size_in_words
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.output import say


def verify_checkpoints(parsed: argparse.Namespace) -> int:
    """Print whether each checkpoint may be restored, and every problem by name."""
    depth = NAMES[parsed.depth]
    if not parsed.urgent:
        low_priority()
    results = []
    directories = parsed.directories or [path for _, path in checkpoints.step_directories(root_of(parsed))]
    ranks = ranks_of(parsed)
    for directory in directories:
        with shown_progress(f"verifying {directory.name}", size_on_disk(directory)) as progress:
            results.append(
                checkpoints.verify(
                    directory,
                    depth,
                    world_size=ranks,
                    progress=progress,
                    seconds_allowed=parsed.seconds,
                    urgent=parsed.urgent,
                )
            )
        tell(parsed, results[-1])
        if not parsed.json:
            _show(results[-1])
    if parsed.json:
        print(json.dumps([as_json(result) for result in results]))
    return exitcodes.OK if all(result.ok for result in results) else exitcodes.NO_CHECKPOINT


def choose_checkpoint(parsed: argparse.Namespace) -> int:
    """Print the path of the chosen checkpoint on standard output, and what was refused on standard error."""
    root = root_of(parsed)
    ranks = ranks_of(parsed, changes_of(parsed.settings).settings, forget=parsed.forget_changes)
    limits = [step for step in (parsed.target_step, parsed.not_after_step) if step is not None]
    total = sum(size_on_disk(path) for _, path in checkpoints.step_directories(root)[:1])
    with shown_progress("verifying", total) as progress:
        choice = checkpoints.newest_verified(
            root,
            min(limits) if limits else None,
            depth=NAMES[parsed.depth],
            world_size=ranks,
            progress=progress,
        )
    for result in [*choice.refused, *([choice.chosen] if choice.chosen else [])]:
        tell(parsed, result)
    for refused in choice.refused:
        say(f"step {refused.step} is refused: {refused.reason}")
    if choice.chosen is None:
        say(f"no checkpoint in {root} may be restored")
        return exitcodes.NO_CHECKPOINT
    print(choice.chosen.path)
    return exitcodes.OK


def as_json(result: Verification) -> dict[str, object]:
    """One verification, for programs."""
    return {
        "path": os.fspath(result.path),
        "step": result.step,
        "ok": result.ok,
        "depth": result.depth,
        "seconds": round(result.seconds, 3),
        "bytes": result.manifest.bytes if result.manifest else None,
        "fingerprint": (result.manifest.fingerprint or None) if result.manifest else None,
        "problems": [{"code": p.code, "sentence": p.sentence, "path": p.path} for p in result.problems],
    }


def _show(result: Verification) -> None:
    if not result.ok:
        for problem in result.problems:
            say(f"{result.path} may not be restored ({problem.code}): {problem.sentence}")
        return
    size = result.manifest.bytes if result.manifest else 0
    print(f"{result.path} is verified ({result.depth}): {size_in_words(size)}, {result.seconds:.1f} s.")
    sys.stdout.flush()
