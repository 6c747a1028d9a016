"""A journal that turns out damaged while the exporter runs is put together anew. Called by the exporter's tick.

Memory has the whole state of every run that is watched, so nothing that was acknowledged loses its effect: what can be
read of the old file goes into a new one, and every run in memory is snapshotted into it. Only the raw steps of the
damaged part are gone from later exports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from exporter.service.core import Core
from exporter.service.history import Archive
from exporter.service.journal import Journal, JournalUnavailable
from exporter.service.recorder import Recorder
from exporter.service.repair import Salvage, salvage

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

    async def look(self, now: float) -> None:
        """Mend the journal where it is damaged; where that fails it is tried again at the next look."""
        damage = self._recorder.health.damaged
        if not damage:
            return
        self._core.mending = f"{damage} It is put together anew."
        try:
            found = await self._salvage(int(now))
            self._core.keeper.distrust(self._core.runs)
            self._core.snapshot_all()
            await self._on_the_recorder(lambda _: None)
            await self._drop_lost_runs()
        except JournalUnavailable as error:
            log.error("The damaged journal could not be put together anew, it is tried again: %s", error)
            return
        health = self._recorder.health
        health.mended += 1
        health.lost_entries += found.lost_entries
        health.damaged = ""
        self._core.mending = self._core.journal_error = ""
        log.error("%s It was put together anew from memory and from what could be read: %s.", damage, found.sentence)

    async def _salvage(self, stamp: int) -> Salvage:
        found: list[Salvage] = []

        def work(journal: Journal) -> None:
            highest = journal.position
            found.append(journal.replaced(lambda path: salvage(path, stamp, highest=highest)))

        await self._on_the_recorder(work)
        return found[0]

    async def _drop_lost_runs(self) -> None:
        on_disk = await asyncio.to_thread(self._archive.run_ids)
        for run_id in [run_id for run_id in self._core.roster.dormant if run_id not in on_disk]:
            log.error("Run %s was not in memory, and its snapshot is lost", run_id)
            self._core.roster.forget(run_id)
            self._recorder.health.lost_runs += 1

    async def _on_the_recorder(self, work: Callable[[Journal], None]) -> None:
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._recorder.maintain(work, lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error:
            raise JournalUnavailable(error)
