"""A journal that turns out damaged while the exporter runs is put together anew. Called by the exporter's tick.

Memory has the whole state of every run that is watched, so nothing that was acknowledged loses its effect: what can be
read of the old file goes into a new one, and every run in memory is snapshotted into it. Only the raw steps of the
damaged part are gone from later exports.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from exporter.service.core import Core
from exporter.service.history import Archive
from exporter.service.journal import Journal
from exporter.service.recorder import Recorder, maintained
from exporter.service.repair import Salvage, put_back, salvage
from exporter.service.stored import JournalUnavailable

log = logging.getLogger("exporter.journal")


class Mender:
    """Watches for damage.

    Args:
        core: has the runs in memory.
        recorder: its thread alone uses the journal.
        archive: tells which of the runs that are not in memory are still on disk.
    """

    def __init__(self, core: Core, recorder: Recorder, archive: Archive) -> None:
        self._core = core
        self._recorder = recorder
        self._archive = archive
        self._error = ""
        """Why the newest try failed."""

    async def look(self, now: float) -> None:
        """Mend the journal where it is damaged; where that fails it is tried again at the next look."""
        health, damage = self._recorder.health, self._recorder.health.damaged
        if damage:
            self._core.mending = f"{damage} It is put together anew."
        elif not self._core.mending:
            return
        try:
            if damage:
                found = await self._salvage(int(now))
                health.damaged = ""
                health.lost_entries += found.lost_entries
                log.error("%s It is put together anew; of the file: %s.", damage, found.sentence)
                self._core.keeper.distrust(self._core.runs)
            await self._write_memory()
            await self._drop_lost_runs()
        except JournalUnavailable as error:
            if str(error) != self._error:
                log.error("The damaged journal could not be put together anew, it is tried every second: %s", error)
            self._error = str(error)
            return
        self._error = ""
        health.mended += 1
        self._core.mending = self._core.journal_error = ""
        log.error("The journal has been put together anew, from memory and from what could be read.")

    async def _write_memory(self) -> None:
        """Snapshot all runs in memory, whose entries may be gone. Raises :class:`JournalUnavailable`."""
        self._core.snapshot_all()
        await maintained(self._recorder, lambda _: None)
        missing = sum(not self._core.keeper.is_covered(run_id) for run_id in self._core.runs)
        if missing:
            raise JournalUnavailable(f"The snapshots of {missing} runs could not be written.")

    async def _salvage(self, stamp: int) -> Salvage:
        found: list[Salvage] = []

        def work(journal: Journal) -> None:
            highest = journal.position
            copy = None if journal.in_place() else _rescued(journal)

            def replace(path: Path) -> Salvage:
                if copy is not None:
                    put_back(copy, path, stamp)
                return salvage(path, stamp, highest=highest)

            found.append(journal.replaced(replace))

        await maintained(self._recorder, work)
        return found[0]

    async def _drop_lost_runs(self) -> None:
        on_disk = await asyncio.to_thread(self._archive.run_ids)
        for run_id in [run_id for run_id in self._core.roster.dormant if run_id not in on_disk]:
            log.error("Run %s was not in memory, and its snapshot is lost", run_id)
            self._core.roster.forget(run_id)
            self._recorder.health.lost_runs += 1


def _rescued(journal: Journal) -> Path | None:
    """A copy of a journal whose file was deleted or replaced; None where another file is there and ours cannot be read.

    The latter is a disk that was taken away and came back: the file is ours, only no longer the one that is open.
    Raises :class:`JournalUnavailable` where there is neither.
    """
    copy = journal.path.with_name(f"{journal.path.name}.copy")
    copy.unlink(missing_ok=True)
    try:
        journal.copy_to(copy)
    except JournalUnavailable:
        copy.unlink(missing_ok=True)
        if journal.path.is_file():
            return None
        raise
    return copy
