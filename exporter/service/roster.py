"""The runs that are known: those in memory, and those that only are on disk. Used by the core.

A run that nobody looks at any more (ended, grace time over) leaves memory once its snapshot is on disk, and is read
again when somebody pushes for it or asks for it. So memory is bounded by the runs that are watched, not by those that
were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from exporter.service import snapshot
from exporter.service.keeping import Keeper
from exporter.service.stored import JournalDamaged, Snapshot
from exporter.service.watch import WatchedRun

log = logging.getLogger("exporter.roster")


class Roster:
    """Runs by id.

    Args:
        keeper: knows what is on disk.
        read: the snapshot of a run; None where there is none.
        restore: a snapshot's body as a run. Raises :class:`exporter.service.snapshot.SnapshotUnreadable`.
    """

    def __init__(
        self, keeper: Keeper, read: Callable[[str], Snapshot | None], restore: Callable[[bytes], WatchedRun]
    ) -> None:
        self._keeper = keeper
        self._read = read
        self._restore = restore
        self.runs: dict[str, WatchedRun] = {}
        """In memory."""
        self.dormant: dict[str, snapshot.RunSummary] = {}
        """On disk only."""

    def load(self, known: Iterable[Snapshot], awake: Callable[[snapshot.RunSummary], bool]) -> Iterable[str]:
        """Take over all runs at start, one at a time: into memory those for which ``awake`` says so.

        Raises :class:`JournalUnavailable` where a snapshot cannot be read.
        """
        for one in known:
            try:
                summary = snapshot.read_summary(one.summary)
            except snapshot.SnapshotUnreadable as error:
                raise JournalDamaged(f"The snapshot of run {one.run_id} cannot be read: {error}.") from error
            self.dormant[one.run_id] = summary
            self._keeper.restored(one.run_id, one.position)
            if awake(summary):
                self.find(one.run_id)
            yield one.run_id

    def find(self, run_id: str) -> WatchedRun | None:
        """The run, read from disk where it is not in memory; None where it is not known.

        Raises :class:`JournalUnavailable` where it is on disk and cannot be read.
        """
        run = self.runs.get(run_id)
        if run is not None or run_id not in self.dormant:
            return run
        stored = self._read(run_id)
        if stored is None:
            raise JournalDamaged(f"The snapshot of run {run_id} is gone from the journal.")
        try:
            run = self._restore(stored.body)
        except snapshot.SnapshotUnreadable as error:
            raise JournalDamaged(
                f"The snapshot of run {run_id} cannot be read: {error}. Start the release of verl-sentinel that wrote "
                "it, restore the journal from a backup, or drop it with 'verl-sentinel journal repair'."
            ) from error
        del self.dormant[run_id]
        self.runs[run_id] = run
        return run

    def add(self, run: WatchedRun) -> None:
        """A run that is new."""
        self.runs[run.state.run_id] = run

    def put_to_sleep(self, run_id: str) -> None:
        """Drop a run from memory; nothing where the disk does not have all of it."""
        if self._keeper.is_covered(run_id):
            run = self.runs.pop(run_id)
            self.dormant[run_id] = snapshot.read_summary(snapshot.summarise(run))

    def forget(self, run_id: str) -> None:
        """The run is not known any more."""
        self.runs.pop(run_id, None)
        self.dormant.pop(run_id, None)
        self._keeper.forget(run_id)

    def clear(self) -> None:
        """Nothing is known any more: everything will be read again."""
        for run_id in (*self.runs, *self.dormant):
            self.forget(run_id)
