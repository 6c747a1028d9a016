"""``checkpoints backup`` and ``prune``: what a run's tiers keep, by hand. Mounted by :mod:`.copy_arguments`."""

from __future__ import annotations

import argparse
import contextlib
import os

from trainer_entry.checkpoint_commands.places import policy_of, run_of, stopping, tier_of
from trainer_entry.checkpoints.choosing import list_checkpoints
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.progress import shown_progress, size_in_words
from trainer_entry.checkpoints.tiers.jobs import Workplace
from trainer_entry.checkpoints.tiers.offering import offer_to
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.working import Worker, manifest_for
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.state import StateDir


def backup(parsed: argparse.Namespace) -> int:
    """Copy one checkpoint into a tier, or carry on with what waits."""
    state, run_id = run_of(parsed)
    policy = policy_of(parsed, state)
    workplace = Workplace(state.path)
    with stopping() as told, workplace.locked():
        if parsed.waiting:
            rate = policy.limits.bytes_per_second
            looking = Worker(
                state.path, run_id, policy, lambda what, size: Pace(bytes_per_second=rate, stop=told.is_set)
            )
            looking.settle_archive()
            jobs = workplace.jobs()
        else:
            tier = tier_of(parsed, policy)
            directory = _chosen(parsed, state, workplace)
            manifest = manifest_for(directory)
            jobs = offer_to(workplace, tier, directory, manifest, "by hand")
        if not jobs:
            print("Nothing waits.")
        failed = 0
        for job in jobs:
            with contextlib.ExitStack() as shown:

                def pace(what: str, size: int, shown: contextlib.ExitStack = shown) -> Pace:
                    advance = shown.enter_context(shown_progress(what, size))
                    limit = policy.limits.bytes_per_second
                    return Pace(bytes_per_second=limit, stop=told.is_set, advance=advance)

                event = Worker(state.path, run_id, policy, pace).carry_out(job).event
            if event.ok:
                sent = (
                    f"{size_in_words(event.stored_bytes)} sent"
                    if event.stored_bytes
                    else "nothing to send (shared, or there already)"
                )
                print(
                    f"{event.name} is at {event.place} and verified there: {size_in_words(event.bytes)}, {sent}, "
                    f"{event.seconds:.1f} s."
                )
            else:
                failed += 1
                say(f"{event.name} could not be copied to {event.place or job.tier}. {event.reason}")
    return exitcodes.OK if not failed else exitcodes.NOT_ALL


def prune(parsed: argparse.Namespace) -> int:
    """Apply retention, or say what it would do."""
    state, run_id = run_of(parsed)
    policy = policy_of(parsed, state)
    workplace = Workplace(state.path)
    root = os.path.abspath(parsed.checkpoint_dir) if parsed.checkpoint_dir else ""
    with stopping() as told, workplace.locked():
        worker = Worker(state.path, run_id, policy, lambda what, size: Pace(stop=told.is_set))
        decisions = worker.prune(dry_run=parsed.dry_run, checkpoint_dir=root)
    freed = 0
    for decision in decisions:
        verb = ("would go" if parsed.dry_run else "deleted") if decision.delete else "kept"
        freed += decision.bytes if decision.delete else 0
        print(f"{verb}\t{decision.where}\t{decision.what}\t{decision.reason}")
    gone = sum(decision.delete for decision in decisions)
    print(f"{gone} of {len(decisions)} {'would go' if parsed.dry_run else 'deleted'}, {size_in_words(freed)}.")
    return exitcodes.NOT_ALL if any(decision.step < 0 for decision in decisions) else exitcodes.OK


def _chosen(parsed: argparse.Namespace, state: StateDir, workplace: Workplace) -> str:
    """The directory of the checkpoint that is to be copied. Raises CheckpointError."""
    if parsed.checkpoint is not None:
        return os.path.abspath(str(parsed.checkpoint))
    record, note = state.read_run(), workplace.run_note()
    root = parsed.checkpoint_dir or (record.checkpoint_dir if record else "") or (note.checkpoint_dir if note else "")
    if not root:
        raise CheckpointError("It is not known where the run saves; give --checkpoint-dir or --checkpoint.")
    if parsed.step is not None:
        return os.path.join(os.path.abspath(root), f"global_step_{parsed.step}")
    found = list_checkpoints(root, "sizes")
    for result in found:
        if result.ok:
            return os.fspath(result.path)
    raise CheckpointError(f"There is no checkpoint in {root} that verifies.", "missing_file")
