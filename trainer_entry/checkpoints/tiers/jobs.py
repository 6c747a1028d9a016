"""What is to be copied, as files that survive a kill: ``<state_dir>/checkpoints/{jobs,reports,…}``.

The plugin's thread and the command line put jobs in, the keeper carries them out and leaves reports, and whoever is
connected to the exporter (the trainer's plugin, else the supervisor) takes the reports out. Every record is one small
file that is replaced atomically.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from exporter.protocol import CheckpointChecked, CheckpointCopied, CheckpointPruned, Tier
from trainer_entry.checkpoints.atomic import write_json_atomically
from trainer_entry.checkpoints.problems import CheckpointError

Report = CheckpointCopied | CheckpointChecked | CheckpointPruned

ORDER: dict[Tier, int] = {"snapshot": 0, "milestone": 1, "archive": 2}
FIRST_WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 3600.0
_CLAIM_SECONDS = 60.0
_MAX_BYTES = 1 << 20
_MAX_FILES = 10_000


class Busy(CheckpointError):
    """Another process works on the copies of this run."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of one checkpoint to one place. ``staged`` is a linked copy of the source that is ours, or empty.

    ``not_before`` (Unix seconds) is when the next attempt is due; ``attempts`` counts those that failed.
    """

    id: str
    tier: Tier
    place: int
    step: int
    source: str
    name: str
    staged: str = ""
    loss: float | None = None
    metric: str = ""
    reason: str = ""
    created_at: float = 0.0
    attempts: int = 0
    not_before: float = 0.0
    last_error: str = ""


class TierState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest copy that a tier has in all its places. ``metric`` is the name of what ``loss`` was read from."""

    step: int
    name: str
    loss: float | None = None
    metric: str = ""
    time: float = 0.0


class RunNote(msgspec.Struct, frozen=True, kw_only=True):
    """``<state_dir>/checkpoints/run.json``: what commands by hand need to know of a run, with a supervisor or not."""

    run_id: str
    checkpoint_dir: str = ""
    policy: str = ""


class Workplace:
    """The folder of one run's copies. Methods raise OSError from the disk, and CheckpointError for damaged records."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(state_dir)) / "checkpoints"
        self._jobs = self.path / "jobs"
        self._reports = self.path / "reports"

    def create(self) -> None:
        """Make the folders, private to the user."""
        for folder in (self._jobs, self._reports):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def note_run(self, note: RunNote) -> None:
        """Write down which run this is; what is known already and not told anew stays."""
        known = self.run_note()
        if known is not None:
            note = RunNote(
                run_id=note.run_id,
                checkpoint_dir=note.checkpoint_dir or known.checkpoint_dir,
                policy=note.policy or known.policy,
            )
        if note != known:
            self.create()
            write_json_atomically(self.path / "run.json", note)

    def run_note(self) -> RunNote | None:
        """What was noted, or None."""
        try:
            return msgspec.json.decode(_small(self.path / "run.json"), type=RunNote)
        except (OSError, msgspec.DecodeError, RecursionError):
            return None

    # ------------------------------------------------------------------ jobs

    def jobs(self) -> list[Job]:
        """All that wait, in the order in which they are carried out. A damaged record is moved aside, and left."""
        found = []
        for path in _files(self._jobs):
            try:
                found.append(msgspec.json.decode(_small(path), type=Job))
            except (msgspec.DecodeError, RecursionError, FileNotFoundError):
                with contextlib.suppress(OSError):
                    os.replace(path, path.with_suffix(".damaged"))
        return sorted(found, key=lambda job: (ORDER[job.tier], job.created_at, job.id))

    def put(self, job: Job) -> None:
        """Add a job, or replace the one with its id."""
        self.create()
        write_json_atomically(self._jobs / f"{job.id}.json", job)

    def take_away(self, job: Job) -> None:
        """The job is done, or given up."""
        with contextlib.suppress(FileNotFoundError):
            (self._jobs / f"{job.id}.json").unlink()

    def put_back(self, job: Job, error: str, now: float) -> Job:
        """The attempt failed: due again after a time that doubles from 30 s to an hour."""
        wait = min(FIRST_WAIT_SECONDS * 2 ** min(job.attempts, 20), LONGEST_WAIT_SECONDS)
        later = msgspec.structs.replace(job, attempts=job.attempts + 1, not_before=now + wait, last_error=error[:500])
        self.put(later)
        return later

    @contextlib.contextmanager
    def at_work(self, job: Job) -> Iterator[None]:
        """While this is open, the job is known to be carried out. A kill leaves that word until the next job's turn."""
        path = self.path / "at-work.json"
        with contextlib.suppress(OSError):
            write_json_atomically(path, {"id": job.id})
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def id_at_work(self) -> str:
        """The job that is being carried out; empty where none is."""
        with contextlib.suppress(OSError, msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(_small(self.path / "at-work.json"), type=dict[str, str]).get("id", "")
        return ""

    # ------------------------------------------------------------- the tiers

    def tier_state(self, tier: Tier) -> TierState | None:
        """What the tier has, as it was last written down; None where it has nothing yet."""
        try:
            return msgspec.json.decode(_small(self.path / f"{tier}.json"), type=TierState)
        except (FileNotFoundError, msgspec.DecodeError, RecursionError):
            return None

    def set_tier_state(self, tier: Tier, state: TierState) -> None:
        """Write down the newest copy of a tier."""
        write_json_atomically(self.path / f"{tier}.json", state)

    def ask_for_pruning(self) -> None:
        """Something was saved: let the keeper look at what may go."""
        self.create()
        write_json_atomically(self.path / "prune-wanted.json", {"time": time.time()})

    @property
    def pruning_wanted(self) -> bool:
        """Whether somebody asked since :meth:`pruned`."""
        return (self.path / "prune-wanted.json").exists()

    def pruned(self) -> None:
        """Retention was looked at."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "prune-wanted.json").unlink()

    def ask_for_archive(self) -> None:
        """The run has ended by itself: its newest checkpoint is to be archived, once it is known whole."""
        self.create()
        write_json_atomically(self.path / "archive-wanted.json", {"time": time.time()})

    @property
    def archive_wanted(self) -> bool:
        """Whether the end of a run asked for its archive and no job was made of it yet."""
        return (self.path / "archive-wanted.json").exists()

    def archive_settled(self) -> None:
        """The job is written, or it is told why there is none."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "archive-wanted.json").unlink()

    @property
    def idle(self) -> bool:
        """Whether nothing waits, due or not."""
        return not (self.pruning_wanted or self.archive_wanted or self.jobs())

    # --------------------------------------------------------------- reports

    def report(self, event: Report) -> None:
        """Leave an event for whoever is connected to the exporter."""
        self.create()
        body = msgspec.json.encode(event)
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        write_json_atomically(self._reports / name, msgspec.Raw(body))

    @contextlib.contextmanager
    def reports(self) -> Iterator[list[Report]]:
        """Take out what was reported; what the block was given counts as told once the block ends without an error.

        Each report is claimed by a rename first, so that of two takers one gets it; a claim whose taker died is taken
        again after a minute.
        """
        taken: list[tuple[Path, Report]] = []
        for path in _files(self._reports):
            claimed = path.with_name(f".{path.name}.claimed")
            with contextlib.suppress(OSError):
                os.replace(path, claimed)
                os.utime(claimed)
                taken += _decoded(claimed)
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self._reports.glob(".*.claimed"))[:_MAX_FILES]:
                with contextlib.suppress(OSError):
                    if path not in [one for one, _ in taken] and time.time() - path.stat().st_mtime > _CLAIM_SECONDS:
                        os.utime(path)
                        taken += _decoded(path)
        yield [event for _, event in taken]
        for path, _ in taken:
            with contextlib.suppress(OSError):
                path.unlink()

    # ------------------------------------------------------------------ lock

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time copies and prunes. Raises Busy."""
        self.create()
        descriptor = os.open(self.path / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    f"Another process works on the copies of this run ({self.path}); try again when it is done."
                ) from None
            yield
        finally:
            os.close(descriptor)


def new_job_id(tier: Tier, step: int) -> str:
    """Sorts by time, and says what it is."""
    return f"{time.time_ns():020d}-{tier}-step{step}-{uuid.uuid4().hex[:6]}"


def _decoded(path: Path) -> list[tuple[Path, Report]]:
    try:
        return [(path, msgspec.json.decode(_small(path), type=Report))]
    except (msgspec.DecodeError, RecursionError):
        path.unlink()
        return []


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.glob("[0-9]*.json"))[:_MAX_FILES]
    except FileNotFoundError:
        return []


def _small(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES)
