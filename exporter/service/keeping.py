"""Which runs are snapshotted and when, and which entries of the journal are therefore not needed any more.

Used by the core. A snapshot is taken on the thread that changes state, so it is of one moment; it is written by the
recorder, behind every entry that was given before. Until it is on disk, nothing counts on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from exporter.service import snapshot
from exporter.service.recorder import Recorder
from exporter.service.stored import Snapshot
from exporter.service.watch import WatchedRun

log = logging.getLogger("exporter.keeping")

SNAPSHOT_ENTRIES = 2000
"""A run is snapshotted after as many entries, if it is not due before."""

MOST_A_TICK = 16
"""A snapshot takes some milliseconds of the event loop; a tick takes no more of them than this."""


@dataclass(slots=True)
class _Kept:
    """How far one run is on disk. Positions of the journal; 0 means none."""

    applied: int = 0
    """Newest entry that had its effect."""
    first: int = 0
    """Oldest entry that no snapshot on disk covers."""
    since: float = 0.0
    """When that entry came, Unix seconds."""
    entries: int = 0
    """Entries since the last snapshot was taken."""
    taken: int = 0
    """Position of a snapshot that is on its way to disk."""
    first_after: int = 0
    """Oldest entry after that one."""
    since_after: float = 0.0


def heard(run: WatchedRun) -> float:
    """When a run was last heard, Unix seconds."""
    state = run.state
    return max(state.last_push, state.supervisor_heard or 0.0, state.first_seen)


class Keeper:
    """``recorder`` writes the snapshots, of each run that changed after ``seconds``; ``fault`` hears where one could
    not be taken."""

    def __init__(self, recorder: Recorder, seconds: float, fault: Callable[[], None]) -> None:
        self._recorder = recorder
        self._seconds = seconds
        self._fault = fault
        self._kept: dict[str, _Kept] = {}
        self.applied = 0
        """Newest entry of any run that had its effect."""

    def note(self, run_id: str, position: int, at: float) -> None:
        """An entry of the run had its effect; ``run_id`` is empty where it was of no run that is known."""
        self.applied = max(self.applied, position)
        if not run_id:
            return
        kept = self._kept.get(run_id)
        if kept is None:
            kept = self._kept[run_id] = _Kept()
        kept.applied = position
        kept.entries += 1
        if not kept.first:
            kept.first, kept.since = position, at
        elif kept.taken and not kept.first_after:
            kept.first_after, kept.since_after = position, at

    def restored(self, run_id: str, position: int) -> None:
        """The run is on disk as it was after that entry."""
        self.applied = max(self.applied, position)
        self._kept[run_id] = _Kept(applied=position)

    def covered_upto(self) -> int:
        """Entries up to this position are in snapshots on disk, every one."""
        dirty = [kept.first for kept in self._kept.values() if kept.first]
        return min(dirty) - 1 if dirty else self.applied

    def has(self, run_id: str, position: int) -> bool:
        """Whether the entry had its effect already."""
        kept = self._kept.get(run_id)
        return kept is not None and position <= kept.applied

    def is_covered(self, run_id: str) -> bool:
        """Whether the run on disk is the run in memory."""
        kept = self._kept.get(run_id)
        return kept is not None and not kept.first

    def take_due(self, runs: Mapping[str, WatchedRun], hidden: Callable[[WatchedRun], bool], now: float) -> None:
        """Snapshot some of the runs that are due: those that changed long ago, or that nobody looks at any more."""
        most = MOST_A_TICK
        for run_id, kept in self._kept.items():
            if not kept.first or kept.taken:
                continue
            # A clock that was set back must not put a snapshot off for ever.
            due = kept.entries >= SNAPSHOT_ENTRIES or not 0 <= now - kept.since < self._seconds
            run = runs.get(run_id)
            if run is not None and (due or hidden(run)):
                self._try_to_take(run, kept, now)
                most -= 1
                if most == 0:
                    return

    def distrust(self, run_ids: Iterable[str]) -> None:
        """What the disk has of these runs may be gone: they have to be snapshotted again."""
        for run_id in run_ids:
            kept = self._kept.setdefault(run_id, _Kept(applied=self.applied))
            kept.first, kept.taken = kept.first or kept.applied or 1, 0

    def take_all(self, runs: Iterable[WatchedRun]) -> None:
        """Snapshot every run that changed: before the exporter ends, so that the next start has nothing to do."""
        for run in runs:
            kept = self._kept.get(run.state.run_id)
            if kept is not None and kept.first and kept.taken != kept.applied:
                self._try_to_take(run, kept, kept.since)

    def forget(self, run_id: str) -> None:
        """The run is not known any more."""
        self._kept.pop(run_id, None)

    def _try_to_take(self, run: WatchedRun, kept: _Kept, now: float) -> None:
        try:
            self._take(run, kept)
        except Exception:
            # A fault of ours with one run must not keep the others from disk. Its entries stay until it goes well.
            self._fault()
            log.exception("Run %s could not be snapshotted", run.state.run_id)
            kept.since, kept.entries = now, 0

    def _take(self, run: WatchedRun, kept: _Kept) -> None:
        run_id = run.state.run_id
        taken = Snapshot(run_id, kept.applied, heard(run), snapshot.take(run), snapshot.summarise(run))
        kept.taken, kept.entries = taken.position, 0
        kept.first_after, kept.since_after = 0, 0.0
        self._recorder.keep(taken, lambda error: self._written(run_id, taken.position, error))

    def _written(self, run_id: str, position: int, error: str) -> None:
        kept = self._kept.get(run_id)
        if kept is None or kept.taken != position:
            return
        kept.taken = 0
        if not error:
            kept.first, kept.since = kept.first_after, kept.since_after
        kept.first_after, kept.since_after = 0, 0.0
