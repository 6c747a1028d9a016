"""Offers a checkpoint to the tiers: decides who wants it, secures it by links, and writes the jobs.

Called by the plugin's manifest thread after each manifest, by the end of a run for the archive, and by
``checkpoints backup``. Cheap: no content is read. The links keep the files while the jobs wait, though verl's own
retention may delete the directory, or a resumed run save into it again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from exporter.protocol import CheckpointCopied, Tier
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.layout import MANIFEST_NAME, OURS_PREFIX
from trainer_entry.checkpoints.manifest import Manifest, read_manifest
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.jobs import Job, TierState, Workplace, new_job_id
from trainer_entry.checkpoints.tiers.left_behind import forget_left_behind
from trainer_entry.checkpoints.tiers.linking import link_checkpoint, remove_tree
from trainer_entry.checkpoints.tiers.naming import copy_name, step_of_name
from trainer_entry.checkpoints.tiers.policy import Policy, TierPolicy
from trainer_entry.checkpoints.tiers.triggers import Wanted, wants

STAGING_NAME = ".verl_sentinel_staging"
"""In the run's own directory, since links need the same file system; verl looks at ``global_step_N`` only."""

STAGED_SECONDS = 3600.0
"""What is staged and has no job is kept for so long: a job is written moments after."""

_DOOMED = "." + OURS_PREFIX + "doomed_"


def offer(workplace: Workplace, policy: Policy, directory: str, manifest: Manifest) -> list[Job]:
    """After a save: write a job for each place of each tier that wants it. Returns them; raises OSError."""
    metrics: Mapping[str, object] = manifest.metrics
    waiting = workplace.jobs()
    made: list[Job] = []
    for tier in policy.tiers:
        wanted = wants(tier, manifest.step, metrics, _last(workplace, tier.tier, waiting))
        if wanted is not None:
            made += _enqueue(workplace, tier, directory, manifest, wanted)
    for tier in policy.tiers:
        drop_oldest(workplace, tier, policy.limits.waiting)
    workplace.ask_for_pruning()
    return made


def offer_to(workplace: Workplace, tier: TierPolicy, directory: str, manifest: Manifest, reason: str) -> list[Job]:
    """Put a checkpoint into one tier whatever its trigger says: by hand, or at the end of a run. Raises OSError."""
    metrics: Mapping[str, object] = manifest.metrics
    loss, metric = None, ""
    if tier.loss is not None and (found := wants(tier, manifest.step, metrics, None)) is not None:
        loss, metric = found.loss, found.metric
    return _enqueue(workplace, tier, directory, manifest, Wanted(reason, loss, metric))


def drop_oldest(workplace: Workplace, tier: TierPolicy, limit: int) -> None:
    """Give up the oldest copies that wait for a place which cannot be reached, or is slower than checkpoints come, so
    that their links do not fill the disk. An archive is never given up, nor the copy that is being made.
    """
    if tier.tier == "archive":
        return
    for index in range(len(tier.places)):
        jobs = [job for job in workplace.jobs() if job.tier == tier.tier and job.place == index]
        at_work = workplace.id_at_work()  # after the jobs: one of them may just have been begun
        waiting = [job for job in jobs if job.id != at_work]
        for job in waiting[: max(0, len(waiting) - limit)]:
            when = f"after {job.attempts} attempts" if job.attempts else "before it was tried"
            reason = f"Given up {when}, since {limit} newer ones wait. {job.last_error}".rstrip()
            workplace.report(
                CheckpointCopied(
                    time=time.time(),
                    step=job.step,
                    tier=job.tier,
                    name=job.name,
                    place=tier.places[index].url,
                    ok=False,
                    reason=reason[:1000],
                )
            )
            finish(workplace, job)


def finish(workplace: Workplace, job: Job) -> None:
    """Take the job away, and its links when no other job needs them. Raises OSError."""
    workplace.take_away(job)
    if job.staged and not any(other.staged == job.staged for other in workplace.jobs()):
        _unstage(Path(job.staged).parent)


def sweep_staged(workplace: Workplace, root: str | os.PathLike[str], run_id: str, *, now: float | None = None) -> None:
    """Delete what a kill left staged in the run's own directory: what was half deleted, and what no job names.

    Call it with the workplace locked. Left are young ones, whose job may be written in a moment, and another run's.
    """
    moment = time.time() if now is None else now
    staging = Path(root, STAGING_NAME)
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = sorted(path for path in staging.iterdir() if path.is_dir() and not path.is_symlink())
    for tree in found:
        with contextlib.suppress(OSError):
            if tree.name.startswith(_DOOMED):
                remove_tree(tree)
            elif _is_forsaken(tree, workplace, run_id, moment):
                _unstage(tree)
    if found:
        with contextlib.suppress(OSError):  # others are still in it
            staging.rmdir()


def stage(directory: str, name: str) -> str:
    """Link a checkpoint into the staging folder beside it; returns the linked directory, or "" where links do not
    work there. What is staged under that name already holds the same content. Raises CheckpointError, OSError.
    """
    source = Path(directory)
    target = source.parent / STAGING_NAME / name / source.name
    if (target / MANIFEST_NAME).exists():
        with contextlib.suppress(FileNotFoundError):  # taken away just now, so it is linked anew
            os.utime(target.parent)  # it is young again: not swept before its job is written
            return os.fspath(target)
    remove_tree(target.parent)  # half linked by a process that was killed
    return os.fspath(target) if link_checkpoint(source, target) is not None else ""


def _unstage(tree: Path) -> None:
    """Rename first: what has its name is whole, or was never finished and has no manifest. Raises OSError."""
    doomed = tree.with_name(f"{_DOOMED}{os.getpid()}_{time.time_ns()}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(tree, doomed)
    remove_tree(doomed)
    with contextlib.suppress(OSError):  # others are still in it, or it is gone already
        tree.parent.rmdir()


def _is_forsaken(tree: Path, workplace: Workplace, run_id: str, now: float) -> bool:
    step = step_of_name(tree.name)
    if step is None or any(job.staged and job.name == tree.name for job in workplace.jobs()):
        return False
    # Its age after the jobs: whoever stages makes the tree young, and then writes the job.
    if now - tree.stat().st_mtime <= STAGED_SECONDS:
        return False
    with contextlib.suppress(OSError, CheckpointError), opened_directory(tree / f"global_step_{step}") as root:
        return read_manifest(root, step).run_id in ("", run_id)
    return True  # half linked


def _enqueue(workplace: Workplace, tier: TierPolicy, directory: str, manifest: Manifest, wanted: Wanted) -> list[Job]:
    name = copy_name(manifest)
    forget_left_behind(os.path.dirname(os.path.abspath(directory)), name)
    try:
        staged = stage(directory, name)
    except (CheckpointError, OSError):
        staged = ""  # the copy itself then says what is wrong with the source, if anything is
    jobs = []
    for index in range(len(tier.places)):
        job = Job(
            id=new_job_id(tier.tier, manifest.step),
            tier=tier.tier,
            place=index,
            step=manifest.step,
            source=os.path.abspath(directory),
            name=name,
            staged=staged,
            loss=wanted.loss,
            metric=wanted.metric,
            reason=wanted.reason,
            created_at=time.time(),
        )
        workplace.put(job)
        jobs.append(job)
    return jobs


def _last(workplace: Workplace, tier: Tier, waiting: list[Job]) -> TierState | None:
    """The newest copy of a tier, made or waiting: a job that waits counts, so that no two are made for one reason."""
    mine = [job for job in waiting if job.tier == tier]
    if mine:
        newest = max(mine, key=lambda job: job.created_at)
        return TierState(
            step=newest.step, name=newest.name, loss=newest.loss, metric=newest.metric, time=newest.created_at
        )
    return workplace.tier_state(tier)
