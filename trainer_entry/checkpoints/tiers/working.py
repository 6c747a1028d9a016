"""The keeper's work: carry out what is due, one after the other, apply retention, and leave a report of each.

Called by the keeper's process, and by ``checkpoints backup|prune`` in the foreground. Whatever goes wrong with one job
is that job's: it is reported, waits longer each time, and the next one is tried.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from exporter.protocol import CheckpointCopied
from trainer_entry.checkpoints.choosing import newest_verified
from trainer_entry.checkpoints.layout import step_directories
from trainer_entry.checkpoints.manifest import Manifest
from trainer_entry.checkpoints.marks import ABANDONED_NAME
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.copying import Copied, GivenUp, copy
from trainer_entry.checkpoints.tiers.jobs import Job, Report, TierState, Workplace
from trainer_entry.checkpoints.tiers.left_behind import left_behind
from trainer_entry.checkpoints.tiers.offering import finish, offer_to, sweep_staged
from trainer_entry.checkpoints.tiers.own_directory import checked, prune_own
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import Policy, TierPolicy
from trainer_entry.checkpoints.tiers.pruning import Decision, prune_tier
from trainer_entry.checkpoints.tiers.stores import StoreError
from trainer_entry.supervisor.state import StateDir, StateError

PaceFor = Callable[[str, int], Pace]
"""Makes the pace of one piece of work: what it is, for a person, and how many bytes it has (0: not known)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt at a job ended; ``event`` is what is told. ``copied`` is None where it failed."""

    job: Job
    event: CheckpointCopied
    copied: Copied | None


class Worker:
    """Works for one run; the caller holds the workplace's lock. ``pace_for`` limits, watches and shows each job."""

    def __init__(
        self, state_dir: str | os.PathLike[str], run_id: str, policy: Policy, pace_for: PaceFor | None = None
    ) -> None:
        self._state_dir = os.fspath(state_dir)
        self._run_id = run_id
        self._policy = policy
        self._pace_for = pace_for or (lambda what, size: Pace(bytes_per_second=policy.limits.bytes_per_second))
        self.workplace = Workplace(state_dir)

    def due(self, now: float | None = None) -> Job | None:
        """The next job whose time has come."""
        moment = time.time() if now is None else now
        # A clock that was set back would let a job wait for ever: what is due in more than the longest wait is due now.
        return next((job for job in self.workplace.jobs() if not moment < job.not_before < moment + 3700), None)

    def carry_out(self, job: Job) -> Outcome:
        """One attempt at a job. Raises Stopped, and OSError where not even that can be written down."""
        with self.workplace.at_work(job):
            return self._attempt(job)

    def _attempt(self, job: Job) -> Outcome:
        tier = self._policy.tier(job.tier)
        began = time.monotonic()
        if tier is None or job.place >= len(tier.places):
            reason = f"The policy {self._policy.source} has no such place for the tier {job.tier} any more."
            return self._ended(job, "", reason, began, final=True)
        place = tier.places[job.place].url
        try:
            pace = self._pace_for(f"{job.tier} {job.name} → {place}", 0)
            copied = copy(job, tier, self._run_id, pace, scratch=self.workplace.path / "sealed")
        except Stopped:
            raise
        except GivenUp as error:
            return self._ended(job, place, str(error), began, final=True)
        except (CheckpointError, StoreError) as error:
            return self._ended(job, place, str(error), began)
        except OSError as error:
            what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
            where = f" ({error.filename})" if error.filename else ""
            return self._ended(job, place, f"The copy of {job.name} failed: {what}{where}.", began)
        except Exception as error:  # noqa: BLE001 - a store's client may raise anything; the next job must still be tried
            return self._ended(job, place, f"The copy of {job.name} failed: {type(error).__name__}: {error}.", began)
        return self._done(job, tier, place, copied, began)

    def settle_archive(self) -> None:
        """Make the job of the archive that the end of a run asked for, of the newest checkpoint that verifies in full.

        By its content, since what has rotted would be found out by its copy only, when no older one is tried any more.
        A save that had returned but was not hashed when the trainer ended is hashed first. Raises Stopped, OSError.
        """
        if not self.workplace.archive_wanted:
            return
        tier, root = self._policy.tier("archive"), self._root()
        if tier is not None and root:
            try:
                pace = self._pace_for("archive: the newest good one", 0)
                choice = newest_verified(root, depth="content", progress=pace.took)
                for rotten in choice.refused:
                    if rotten.problem == "content":
                        self.workplace.report(checked(rotten))
                chosen = choice.chosen
                if chosen is None or chosen.manifest is None:
                    raise CheckpointError(f"There is no checkpoint in {root} that verifies, so none is archived.")
                offer_to(self.workplace, tier, os.fspath(chosen.path), chosen.manifest, "the end of the run")
            except CheckpointError as error:
                place = tier.places[0].url
                event = CheckpointCopied(
                    time=time.time(), step=0, tier="archive", name="", place=place, ok=False, reason=str(error)[:1000]
                )
                self.workplace.report(event)
        self.workplace.archive_settled()

    def prune(self, *, dry_run: bool = False, checkpoint_dir: str = "") -> list[Decision]:
        """Apply retention everywhere: the run's own directory, then each tier. A place that cannot be used is told as
        a decision to keep all there. Raises Stopped, OSError.
        """
        decisions: list[Decision] = []
        waiting = self.workplace.jobs()
        root = checkpoint_dir or self._root()
        if root:
            found: list[Decision]
            try:
                needed = needed_paths(self._state_dir, root) | {job.source for job in waiting if not job.staged}
                found, reports = prune_own(root, self._policy.own, self._state_dir, needed, dry_run=dry_run)
            except CheckpointError as error:
                found, reports = [Decision(root, root, -1, False, str(error))], []
            decisions += found
            self._tell(reports, dry_run)
            if not dry_run:
                sweep_staged(self.workplace, root, self._run_id)
        left = left_behind(root) if root else {}
        for tier in self._policy.tiers:
            pace = self._pace_for(f"{tier.tier}: what may go", 0)
            tell = _nobody if dry_run else self.workplace.report
            decisions += prune_tier(tier, self._run_id, waiting, pace, tell, dry_run=dry_run, left=left)
        if not dry_run:
            self.workplace.pruned()
        return decisions

    def _tell(self, reports: list[Report], dry_run: bool) -> None:
        for report in reports:
            if not dry_run:
                self.workplace.report(report)

    def _done(self, job: Job, tier: TierPolicy, place: str, copied: Copied, began: float) -> Outcome:
        event = CheckpointCopied(
            time=time.time(),
            step=job.step,
            tier=job.tier,
            name=job.name,
            place=place,
            ok=True,
            bytes=copied.record.bytes,
            stored_bytes=copied.sent_bytes,
            seconds=time.monotonic() - began,
            reason=job.reason,
        )
        # Told before it is taken away: a kill in between tells it twice, which loses nothing.
        self.workplace.report(event)
        others = [one for one in self.workplace.jobs() if one.tier == job.tier and one.name == job.name]
        if len(others) <= 1:
            self.workplace.set_tier_state(
                job.tier,
                TierState(step=job.step, name=job.name, loss=job.loss, metric=job.metric, time=time.time()),
            )
        finish(self.workplace, job)
        self.workplace.ask_for_pruning()
        return Outcome(job, event, copied)

    def _ended(self, job: Job, place: str, reason: str, began: float, *, final: bool = False) -> Outcome:
        event = CheckpointCopied(
            time=time.time(),
            step=job.step,
            tier=job.tier,
            name=job.name,
            place=place,
            ok=False,
            seconds=time.monotonic() - began,
            reason=reason[:1000],
        )
        self.workplace.report(event)
        if final:
            finish(self.workplace, job)
        else:
            self.workplace.put_back(job, reason, time.time())
        return Outcome(job, event, None)

    def _root(self) -> str:
        try:
            run = StateDir(self._state_dir).read_run()
        except StateError:
            run = None
        if run is not None:
            return run.checkpoint_dir
        note = self.workplace.run_note()
        return note.checkpoint_dir if note is not None else ""


def _nobody(report: Report) -> None:
    """To tell nobody."""


def needed_paths(state_dir: str, root: str) -> set[str]:
    """Checkpoints that the next attempt starts from, or the current one was told to, until it has saved a newer one."""
    try:
        state = StateDir(state_dir)
        run = state.read_run()
        request = state.read_request(run.attempt) if run is not None and run.attempt else None
    except StateError:
        return {os.fspath(path) for _, path in step_directories(root)}  # not known: then all are needed
    needed = set()
    if run is not None and run.next_start is not None:
        needed.add(os.path.abspath(run.next_start.path))
    if request is not None and request.resume_path and request.resume_step is not None:
        step, since = request.resume_step, request.created_at
        if not any(newer > step and _made_since(path, since) for newer, path in step_directories(root)):
            needed.add(os.path.abspath(request.resume_path))
    return needed


def _made_since(path: os.PathLike[str], since: float) -> bool:
    manifest = os.path.join(path, "verl_sentinel_manifest.json")
    try:
        return os.stat(manifest).st_mtime > since and not os.path.exists(os.path.join(path, ABANDONED_NAME))
    except OSError:
        return False


def manifest_for(directory: str) -> Manifest:
    """The manifest of a checkpoint that is to be copied. Raises CheckpointError with the reason why there is none."""
    from trainer_entry.checkpoints.verification import verify

    result = verify(directory, "sizes", noted=False)
    if not result.ok or result.manifest is None:
        raise CheckpointError(f"{result.path} is not copied. {result.reason}", result.problem or "unreadable")
    return result.manifest
