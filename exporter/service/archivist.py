"""The archivist: keeps the journal short and the history within its bounds, in the background. Run by the app.

What snapshots cover is not needed to rebuild state. So it goes from the journal: heartbeats and the like at once,
pushes into the history, compressed, when the journal has grown. Reading and compressing happen in another thread on a
connection of its own; only deleting goes through the recorder, between two transactions of the ingest, in slices.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from exporter.service.core import Core
from exporter.service.history import FILE_NAME, GIB, MIB, Archive, History, Retention, pack
from exporter.service.journal import FILE_NAME as JOURNAL_FILE_NAME
from exporter.service.recorder import Recorder, maintained
from exporter.service.repair import check_structure
from exporter.service.stored import Entry, JournalDamaged, JournalUnavailable

log = logging.getLogger("exporter.archivist")

MOVE_ENTRIES = 20_000
"""Most entries that are read, compressed and moved in one go; fewer where they are large."""
DELETE_SLICE = 500
"""Positions that are deleted in one transaction, and no more of them than have :data:`DELETE_BYTES` of pushes: the
ingest waits for as long."""

DELETE_BYTES = 256 * 1024
CLOCK_SET_SECONDS = 60.0
"""A clock that differs by more from what has passed since the last round was set."""


@dataclass
class ArchivistHealth:
    """Figures for ``/metrics``."""

    journal_bytes: int = 0
    """Pushes in the journal that are not in the history yet, as far as they were counted."""
    history_bytes: int = 0
    moved_entries: int = 0
    trimmed_blocks: int = 0
    """Blocks of the history that the retention removed."""
    forgotten_runs: int = 0
    failures: int = 0
    error: str = ""
    """Why the newest round failed; empty where it did not."""


class Archivist:
    """One data folder.

    Args:
        core: knows what snapshots cover.
        recorder: deletes from the journal.
        data_dir: the folder.
        retention: what may stay, and for how long.
        needed_from: position up to which every reader with a cursor (a sink) has read; what comes after it stays.
        settling: seconds for which nothing is taken for old after the start, and after the clock was set: one that is
            months ahead for a moment must not be the end of everything.
        monotonic: seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        core: Core,
        recorder: Recorder,
        data_dir: Path,
        retention: Retention,
        needed_from: Callable[[], int | None],
        *,
        settling: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._recorder = recorder
        self._archive = Archive(data_dir)
        self._journal = data_dir / JOURNAL_FILE_NAME
        self._history_path = data_dir / FILE_NAME
        self._history: History | None = None
        self._turn = asyncio.Lock()
        """Who has it may use the history; a run is not forgotten while its steps are on their way there."""
        self._retention = retention
        self._needed_from = needed_from
        self._keep_bytes = int(retention.journal_megabytes * MIB)
        self._pruned = 0
        self._settling = settling
        self._monotonic = monotonic
        self._clock: tuple[float, float] | None = None
        """Both clocks at the last round."""
        self._steady_since = 0.0
        self.health = ArchivistHealth()

    def close(self) -> None:
        if self._history is not None:
            self._history.close()
            self._history = None

    def _open_history(self) -> History:
        """The history, opened anew where its file was deleted: what went into the old one would be read by nobody.

        Raises :class:`JournalUnavailable`: a history that is damaged stops no ingest.
        """
        if self._history is not None and not self._history.in_place():
            self.close()
        if self._history is None:
            self._history = History(self._history_path)
        return self._history

    async def round(self, now: float) -> None:
        """One round of everything; what fails is noted in :attr:`health` and tried again in the next."""
        old = now - self._retention.days * 86_400.0 if self._is_steady(now) else -inf
        try:
            await asyncio.to_thread(check_structure, self._journal)
            await self._prune()
            await self._move()
            await self._trim(old)
            await self._forget_old(old)
            self.health.error = ""
        except JournalUnavailable as error:
            self.health.failures += 1
            if isinstance(error, JournalDamaged):
                self._recorder.health.damaged = str(error)
            if str(error) != self.health.error:
                log.error("%s The journal grows until it can.", error)
            self.health.error = str(error)

    async def forget(self, run_ids: list[str]) -> None:
        """Remove runs from journal and history. Raises :class:`JournalUnavailable`."""
        # First, and before anybody else has a turn: pushes that come from now on are those of a new run.
        await maintained(self._recorder, lambda journal: journal.forget(run_ids))
        async with self._turn:
            history = await asyncio.to_thread(self._open_history)
            await asyncio.to_thread(history.forget, run_ids)

    async def _prune(self) -> None:
        """Beats, looks and marks that a snapshot covers are of no use to anybody."""
        covered = self._core.keeper.covered_upto()
        await self._delete(self._pruned, covered, batches=False)
        self._pruned = max(self._pruned, covered)

    async def _move(self) -> None:
        async with self._turn:
            history = await asyncio.to_thread(self._open_history)
            done = await asyncio.to_thread(history.upto)
            # A start after a crash in between: moved already, and not deleted yet. A journal that was restored from a
            # backup may have entries of then that none of its snapshots covers.
            await self._delete(0, min(done, self._core.keeper.covered_upto()), batches=True)
        total = await asyncio.to_thread(self._archive.pushed_bytes)
        self.health.journal_bytes = total
        while total > self._keep_bytes:
            async with self._turn:
                moved = await self._move_some(history)
            if not moved:
                return
            total -= moved
            self.health.journal_bytes = max(total, 0)

    async def _move_some(self, history: History) -> int:
        """Some of the oldest pushes; how many bytes they had."""
        covered, needed = self._core.keeper.covered_upto(), self._needed_from()
        upto = covered if needed is None else min(covered, needed)
        done = await asyncio.to_thread(history.upto)
        entries = await asyncio.to_thread(self._next, done, upto)
        if not entries:
            return 0
        last = entries[-1].position
        blocks = await asyncio.to_thread(pack, entries)
        await asyncio.to_thread(history.add, blocks, last)
        for end in _slices(entries):
            await self._delete_slice(done, end, batches=True)
            done = end
        self.health.moved_entries += len(entries)
        return sum(len(entry.body) for entry in entries)

    def _next(self, after: int, upto: int) -> list[Entry]:
        return [entry for entry in self._archive.entries(after, MOVE_ENTRIES) if entry.position <= upto]

    async def _delete(self, after: int, upto: int, *, batches: bool) -> None:
        first = await asyncio.to_thread(self._archive.first_position)
        # Positions go into the billions; those before the first entry are not there.
        for start in range(max(after, first - 1) if first else upto, upto, DELETE_SLICE):
            await self._delete_slice(start, min(start + DELETE_SLICE, upto), batches=batches)

    async def _delete_slice(self, after: int, upto: int, *, batches: bool) -> None:
        await maintained(self._recorder, lambda journal: journal.delete(after, upto, batches=batches))

    def _is_steady(self, now: float) -> bool:
        """Whether the clock has gone on like time for long enough to say how old something is."""
        passed = self._monotonic()
        if self._clock is None or abs(now - self._clock[0] - (passed - self._clock[1])) > CLOCK_SET_SECONDS:
            self._steady_since = passed
        self._clock = now, passed
        return passed - self._steady_since >= self._settling

    async def _trim(self, before: float) -> None:
        most = int(self._retention.gigabytes * GIB)
        gone = 1
        while gone:
            async with self._turn:
                history = await asyncio.to_thread(self._open_history)
                gone = await asyncio.to_thread(history.trim, before=before, most_bytes=most)
                self.health.history_bytes = await asyncio.to_thread(history.bytes)
            self.health.trimmed_blocks += gone

    async def _forget_old(self, cutoff: float) -> None:
        old = [
            run_id
            for run_id, it in self._core.roster.dormant.items()
            if max(it.last_push, it.first_seen, it.ended_at or 0.0) < cutoff
        ]
        if old:
            for run_id in old:
                self._core.roster.forget(run_id)
            await self.forget(old)
            self.health.forgotten_runs += len(old)
            log.info("Forgot %d runs that were last heard more than %g days ago", len(old), self._retention.days)


def _slices(entries: Sequence[Entry]) -> Iterator[int]:
    """Positions up to which to delete in one transaction each, the last one at the end."""
    size = count = 0
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        size += len(entry.body)
        count += 1
        if following is None or count >= DELETE_SLICE or size + len(following.body) > DELETE_BYTES:
            yield entry.position
            size = count = 0
