"""``checkpoints restore`` and ``drill``: bring a copy back, and prove that it can be trained from.

Mounted by :mod:`.copy_arguments`. A restore works where nothing of the run is left but its copies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from exporter.protocol import CheckpointChecked
from trainer_entry.checkpoint_commands.places import left_behind_at_hand, run_id_of, run_of, stopping, store_of
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.progress import age_in_words, shown_progress, size_in_words
from trainer_entry.checkpoints.tiers.copies import Copy, copies_of, runs_at
from trainer_entry.checkpoints.tiers.drill import drill
from trainer_entry.checkpoints.tiers.jobs import Workplace
from trainer_entry.checkpoints.tiers.left_behind import LeftBehind
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.restoring import choose_copy, restore
from trainer_entry.checkpoints.tiers.sealing import identities_of
from trainer_entry.checkpoints.tiers.stores import Store
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.hand import trainer_words
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.state import StateError


def restore_copy(parsed: argparse.Namespace) -> int:
    """Bring a copy back, or list what is at a place."""
    store = store_of(parsed)
    run_id = run_id_of(parsed)
    if parsed.list:
        return _listed(store, run_id, left_behind_at_hand(parsed))
    if parsed.to is None:
        say("It is not said where to; give an empty folder with --to.")
        return exitcodes.USAGE
    identities = identities_of(parsed.identity) if parsed.identity else []
    copy = _copy(parsed, store, run_id)
    began = time.monotonic()
    size = copy.record.bytes if copy.record else 0
    with stopping() as told, shown_progress(f"restoring {copy.name}", 2 * size) as advance:
        pace = Pace(stop=told.is_set, advance=advance)
        try:
            restored = restore(store, copy, parsed.to, identities, pace, beside=parsed.beside)
        except CheckpointError as error:
            if error.problem in ("content", "missing_file", "no_manifest"):  # the copy's own fault, not the caller's
                _report(parsed, copy, "content", False, time.monotonic() - began, str(error))
            raise
    seconds = time.monotonic() - began
    _report(parsed, copy, "content", True, seconds, "")
    print(f"{restored.path} is restored from {copy.name} and verified: {restored.bytes} bytes, {seconds:.1f} s.")
    return exitcodes.OK


def drill_copy(parsed: argparse.Namespace) -> int:
    """Restore, train, time, and leave nothing."""
    if parsed.steps < 1 or parsed.limit_seconds <= 0:
        say("--steps and --limit-seconds must be above 0.")
        return exitcodes.USAGE
    state, run_id = run_of(parsed)
    run = state.read_run()
    if run is None:
        raise CheckpointError(f"The state directory {state.path} has no run with a command to train with.")
    request = state.read_request(run.attempt) if run.attempt else None
    identities = identities_of(parsed.identity) if parsed.identity else []
    store = store_of(parsed)
    copy = _copy(parsed, store, run_id)
    began = time.monotonic()
    size = copy.record.bytes if copy.record else 0
    try:
        with stopping() as told, shown_progress(f"restoring {copy.name}", 2 * size) as advance:
            drilled = drill(
                store,
                copy,
                trainer_words(request.argv) if request is not None else run.argv,
                run.cwd,
                identities,
                Pace(stop=told.is_set, advance=advance),
                steps=parsed.steps,
                limit_seconds=parsed.limit_seconds,
                scratch=os.fspath(parsed.scratch) if parsed.scratch else None,
                say=say,
                stop=told.is_set,
            )
    except (CheckpointError, OSError) as error:
        _report(parsed, copy, "drill", False, time.monotonic() - began, str(error))
        raise
    _report(parsed, copy, "drill", True, drilled.total_seconds, "")
    figures = {name: getattr(drilled, name) for name in drilled.__slots__}
    if parsed.json:
        print(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in figures.items()}))
    else:
        print(
            f"{drilled.name} can be trained from: restored in {drilled.restore_seconds:.1f} s, first step "
            f"{drilled.first_step_seconds:.1f} s after the trainer's start, {drilled.steps} steps and the end in "
            f"{drilled.train_seconds:.1f} s, {drilled.total_seconds:.1f} s in all."
        )
    return exitcodes.OK


def _copy(parsed: argparse.Namespace, store: Store, run_id: str) -> Copy:
    copy, refused = choose_copy(
        store,
        run_id,
        name=parsed.name,
        step=parsed.step,
        not_after_step=parsed.not_after_step,
        left=left_behind_at_hand(parsed),
    )
    for one in refused:
        say(f"{one.name} is refused: {one.problem or one.left_behind}")
    return copy


def _listed(store: Store, run_id: str, left: Mapping[str, LeftBehind]) -> int:
    runs = [run_id] if run_id else runs_at(store)
    count = 0
    for run in runs:
        for copy in copies_of(store, run, left):
            count += 1
            record = copy.record
            if record is None:
                print(f"{run}\t{copy.step}\t{copy.name}\trefused\t{copy.problem}")
                continue
            age = age_in_words(time.time() - record.saved_at)
            size = size_in_words(record.stored_bytes)
            behind = ", left behind by a rollback" if copy.left_behind else ""
            print(f"{run}\t{copy.step}\t{copy.name}\t{record.tier}\t{size}, {age} old, {record.encoding}{behind}")
    if not count:
        print(f"There are no copies at {store.place}.")
    return exitcodes.OK


def _report(parsed: argparse.Namespace, copy: Copy, depth: Any, ok: bool, seconds: float, reason: str) -> None:
    """Leave the result for the exporter, where the run's state is there; a restore elsewhere has nobody to tell."""
    with contextlib.suppress(StateError, CheckpointError, OSError, ValueError):
        state, _ = run_of(parsed)
        Workplace(state.path).report(
            CheckpointChecked(
                time=time.time(),
                step=copy.step,
                depth=depth,
                ok=ok,
                tier=copy.record.tier if copy.record else "",
                name=copy.name,
                seconds=seconds,
                reason=reason[:1000],
            )
        )
