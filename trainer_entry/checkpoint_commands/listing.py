"""``checkpoints list``: a table of all checkpoints of a run, with what is wrong with each; ``--json`` for programs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer_entry.checkpoint_commands.copies import CopiesFound, copies_by_step
from trainer_entry.checkpoint_commands.runs import ranks_of, record_of, root_of
from trainer_entry.checkpoint_commands.verifying import as_json
from trainer_entry.checkpoints.depths import NAMES
from trainer_entry.checkpoints.layout import TRACKER_NAME, step_directories
from trainer_entry.checkpoints.listed import Inventory, Listed, inventory, size_on_disk
from trainer_entry.checkpoints.progress import age_in_words, shown_progress, size_in_words
from trainer_entry.supervisor import exitcodes

HEADERS = ("STEP", "SIZE", "AGE", "ATTEMPT", "CONFIG", "VERL", "VERIFIED", "HELD BY", "COPIES", "PROBLEM")


def list_checkpoints(parsed: argparse.Namespace) -> int:
    """Print all checkpoints, newest first."""
    root = root_of(parsed)
    depth = NAMES[parsed.depth]
    total = 0 if depth == "sizes" else sum(size_on_disk(path) for _, path in step_directories(root))
    with shown_progress("verifying", total) if total else contextlib.nullcontext() as progress:
        found = inventory(root, depth, world_size=ranks_of(parsed), progress=progress)
    copies = copies_by_step(parsed, record_of(parsed), found)
    if parsed.json:
        print(json.dumps(_document(root, found, copies)))
        return exitcodes.OK
    if not found.checkpoints:
        print(f"There are no checkpoints in {root}.")
    else:
        _print_table([_row(one, copies, time.time()) for one in found.checkpoints])
        for one in found.checkpoints:
            if one.verification.reason:
                print(f"step {one.verification.step}: {_plain(one.verification.reason)}")
    if found.tracker_problem is not None:
        print(_plain(found.tracker_problem.sentence))
    elif found.tracker is not None:
        print(f"verl's own tracker, {TRACKER_NAME}, names step {found.tracker}.")
    for sentence in (*(problem.sentence for problem in found.half), *copies.unreachable):
        print(_plain(sentence))
    return exitcodes.OK


def _row(one: Listed, copies: CopiesFound, now: float) -> list[str]:
    manifest = one.manifest
    problem = one.verification.problem
    checked = one.verified
    return [
        str(one.verification.step),
        size_in_words(one.bytes),
        age_in_words(now - one.saved_at) if one.saved_at else "-",
        str(manifest.attempt) if manifest and manifest.attempt else "-",
        manifest.config_hash[:8] if manifest and manifest.config_hash else "-",
        _plain(manifest.verl_version)[:16] if manifest and manifest.verl_version else "-",
        f"{checked.depth}, {age_in_words(now - checked.time)} ago" if checked else "-",
        _plain(one.held.holder)[:24] if one.held else "-",
        copies.in_words(one) or "-",
        problem or "-",
    ]


def _document(root: Path, found: Inventory, copies: CopiesFound) -> dict[str, object]:
    tracker = found.tracker_problem
    return {
        "root": os.path.abspath(root),
        "tracker": {
            "step": found.tracker,
            "problem": {"code": tracker.code, "sentence": tracker.sentence} if tracker else None,
        },
        "checkpoints": [_entry(one, copies) for one in found.checkpoints],
        "half": [{"code": problem.code, "sentence": problem.sentence, "path": problem.path} for problem in found.half],
        "unreachable": copies.unreachable,
    }


def _entry(one: Listed, copies: CopiesFound) -> dict[str, object]:
    manifest, checked = one.manifest, one.verified
    known: dict[str, object] = {}
    if manifest is not None:
        known = {
            "run_id": manifest.run_id,
            "attempt": manifest.attempt,
            "trainer": manifest.trainer,
            "model": manifest.model,
            "config_hash": manifest.config_hash,
            "fingerprint": manifest.fingerprint,
            "verl_version": manifest.verl_version,
            "torch_version": manifest.torch_version,
            "cuda_version": manifest.cuda_version,
            "git_commit": manifest.git_commit,
            "git_dirty": manifest.git_dirty,
            "world_sizes": manifest.world_sizes,
            "metrics_step": manifest.metrics_step,
            "data_position": manifest.data_position,
        }
    return {
        **as_json(one.verification),
        **known,
        "bytes": one.bytes,
        "saved_at": one.saved_at or None,
        "verified": {"depth": checked.depth, "time": checked.time, "seconds": checked.seconds} if checked else None,
        "held_by": one.held.holder if one.held else None,
        "held_because": one.held.reason if one.held else None,
        "copies": copies.of(one),
    }


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """With rich at a terminal that has it; else columns as wide as they must be, without those that say nothing."""
    kept = [index for index in range(len(HEADERS)) if index == 0 or any(row[index] != "-" for row in rows)]
    headers = [HEADERS[index] for index in kept]
    cells = [[row[index] for index in kept] for row in rows]
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text
        except ImportError:
            pass
        else:
            table = Table(*headers, box=None, header_style="bold", pad_edge=False)
            for row in cells:
                bad = headers[-1] == "PROBLEM" and row[-1] != "-"
                table.add_row(*(Text(cell, style="red" if bad and cell == row[-1] else "") for cell in row))
            Console().print(table)
            return
    widths = [max(len(row[index]) for row in [headers, *cells]) for index in range(len(headers))]
    for row in [headers, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _plain(text: str) -> str:
    """Without anything that could steer a terminal: names of files and hosts come from outside."""
    return "".join(c if c.isprintable() else " " for c in text)
