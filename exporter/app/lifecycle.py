"""One exporter from start to end: opens the files, reads them, ticks, tidies up, closes. Made and run by the app."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import IO, Any

from exporter.app.mending import Mender
from exporter.config import Config, ConfigError
from exporter.postmortem.writer import PostmortemWriter
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.store import RecoveryStore
from exporter.service.admission import Refused
from exporter.service.archivist import Archivist, ArchivistHealth
from exporter.service.core import Core
from exporter.service.exposition import Exposition, Ingest
from exporter.service.forgetting import check_forgettable, note_forgotten
from exporter.service.history import Archive
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.recorder import ThreadedRecorder
from exporter.service.sinks.contract import SinkHealth
from exporter.service.stable_config import REFRESH_SECONDS
from exporter.service.stored import JournalForeign, JournalUnavailable

log = logging.getLogger("exporter")

RECOVERY_FILE_NAME = "recovery.sqlite3"
LOCK_FILE_NAME = "lock"
TICK_SECONDS = 1.0
TIDY_SECONDS = 30.0
"""Between two rounds of the archivist."""
CLOCK_SETTLES_SECONDS = 3600.0
"""After a start, and after the clock was set, nothing is removed for its age for as long."""
READ_SLICE_SECONDS = 0.05
"""Reading the journal lets others work after as long, so that health checks are answered during it."""
STABLE_CONFIGS_SECONDS = 30.0
"""The start waits for as long for what git has, and no longer: that repository may be on a disk that hangs."""
READ_AGAIN_SECONDS = 2.0
"""A journal that cannot be read is tried again after as long: its disk may come back, or a person restore it."""


class Exporter:
    """The service without its HTTP face.

    Args:
        config: checked; its ``data_dir`` is made where it is missing.
        clock: Unix seconds.

    Raises :class:`ConfigError` with a sentence where the data folder cannot be used. A journal that cannot be read is
    no such error: the exporter starts, says so, and tries again.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self.clock = clock
        self.version = _version()
        self._data_dir = Path(config.data_dir)
        self._lock = take_folder(self._data_dir)
        try:
            self._store = RecoveryStore(self._data_dir / RECOVERY_FILE_NAME)
        except OSError as error:
            raise ConfigError(str(error)) from error
        self._journal = self._open_journal()
        self._recorder = ThreadedRecorder()
        self.archive = Archive(self._data_dir)
        self.core = Core(
            self._recorder,
            RecoveryEngine(self._store, config.recovery),
            config.detector_plan(),
            read_snapshot=self.archive.snapshot,
            limits=config.limits,
            rules=config.incidents,
            ended_grace=config.ended_run_grace_seconds,
            snapshot_seconds=config.retention.snapshot_seconds,
            histogram=config.histogram,
        )
        self.postmortems = PostmortemWriter(self.core, self._data_dir, clock)
        self.mender = Mender(self.core, self._recorder, self.archive)
        self.ingest = Ingest()
        self.replayed = False
        self.archivist: Archivist | None = None
        self._sink = self._make_sink()
        self.exposition = Exposition(
            self.core,
            self.ingest,
            clock,
            self.version,
            lambda: self.replayed,
            sinks=self.sinks,
            archive=self._archive_health,
        )
        self._work: list[asyncio.Task[None]] = []

    def _archive_health(self) -> ArchivistHealth | None:
        return self.archivist.health if self.archivist is not None else None

    async def start(self) -> None:
        """Begin to read the journal, then to tick; returns at once."""
        self._work.append(asyncio.create_task(self._run(), name="exporter"))

    async def stop(self) -> None:
        """Stop ticking, write what is waiting and what a start would otherwise have to read again, close the files."""
        for task in self._work:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.postmortems.close()
        if self._sink is not None and self.replayed:
            await asyncio.to_thread(self._sink.stop)
        if self.replayed:
            if self.core.mending:
                # What is on disk of runs that did not change since may be gone too.
                self.core.keeper.distrust(self.core.runs)
            self.core.snapshot_all()
        await asyncio.to_thread(self._recorder.close)
        if self.archivist is not None:
            self.archivist.close()
        if self._journal is not None:
            self._journal.close()
        self._store.close()
        self._lock.close()

    def sinks(self) -> tuple[SinkHealth, ...]:
        """How each sink is."""
        return () if self._sink is None else (self._sink.health(),)

    def reasons_not_ready(self) -> list[str]:
        """Sentences; empty when pushes are taken and kept."""
        reasons = self.core.reasons_not_ready()
        if not self.replayed and not reasons:
            return ["The journal is being read."]
        return reasons

    def require_replayed(self) -> None:
        """Raise :class:`Refused` (503) while state is not there yet."""
        if not self.replayed:
            wait = 5 if self.core.journal_error else 1
            raise Refused("starting", f"{self.reasons_not_ready()[0]} Try again.", status=503, retry_after=wait)

    async def forget(self, run_id: str, who: str = "") -> None:
        """Remove a run from memory and from disk; that ``who`` did so, and its other lines, stay in the audit log.

        Raises :class:`Refused`: 404 where it is not known, 409 while something happens in it, 503 where the disk fails.
        """
        check_forgettable(self.core, run_id, self.clock())
        note_forgotten(self.core, run_id, who or "somebody", self.clock())
        assert self.archivist is not None, "there is no run before the journal has been read"
        self.core.roster.forget(run_id)
        try:
            await self.archivist.forget([run_id])
        except JournalUnavailable as error:
            message = f"{error} The run has left memory and comes back at the next start; send it again."
            raise Refused("journal", message, status=503, retry_after=5) from None

    async def _run(self) -> None:
        if self.core.link.stable_configs:
            await self._know_stable_configs()
        journal = await self._read_until_it_works()
        self.core.begin(journal.watched(), self.clock())
        self._recorder.start(journal, asyncio.get_running_loop().call_soon_threadsafe)
        self.replayed = True
        if self._sink is not None:
            self._sink.start()
        self._work.append(asyncio.create_task(self._tidy(), name="archivist"))
        if self.core.link.stable_configs:
            self._work.append(asyncio.create_task(self._read_stable_configs(), name="stable configurations"))
        while True:
            try:
                self.core.tick(self.clock())
                self.postmortems.look()
                await self.mender.look(self.clock())
            except Exception:
                # A fault in one run must not end the watch over all; it is logged, and counted, until it is mended.
                self.core.faults += 1
                log.exception("The tick failed")
            await asyncio.sleep(TICK_SECONDS)

    async def _read_until_it_works(self) -> Journal:
        while True:
            try:
                if self._journal is None:
                    self._journal = Journal(self._data_dir / FILE_NAME)
                if self.archivist is None:
                    self.archivist = Archivist(
                        self.core,
                        self._recorder,
                        self._data_dir,
                        self.config.retention,
                        self._needed_from,
                        settling=CLOCK_SETTLES_SECONDS,
                    )
                await self._read(self._journal)
            except Exception as error:
                # Any: a reader that died would leave an exporter that waits for ever, and says nothing.
                ours = not isinstance(error, JournalUnavailable)
                why = f"The journal cannot be read, by a fault of the exporter: {error!r}." if ours else str(error)
                if why != self.core.journal_error:
                    self.core.faults += ours
                    log.error("%s Pushes are answered 503 until it can.", why, exc_info=error if ours else None)
                self.core.journal_error = why
                self.core.clear()
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
                await asyncio.sleep(READ_AGAIN_SECONDS)
            else:
                self.core.journal_error = ""
                return self._journal

    async def _read(self, journal: Journal) -> None:
        began = time.monotonic()
        with contextlib.suppress(JournalUnavailable):
            # A journal that is new, or was restored from a backup: what the history has must not be given again.
            journal.go_on_above(await asyncio.to_thread(self.archive.moved_upto))
        await _in_slices(self.core.load(journal.snapshots(), self.clock()))
        entries = await _in_slices(self.core.replay(journal.read(), journal.delivered(), journal.watched()))
        self.core.keeper.applied = max(self.core.keeper.applied, journal.position)
        seconds, known = time.monotonic() - began, len(self.core.runs) + len(self.core.roster.dormant)
        log.info("Read the journal in %.2f s: %d runs, %d entries after their snapshots", seconds, known, entries)

    async def _tidy(self) -> None:
        assert self.archivist is not None
        while True:
            await asyncio.sleep(min(TIDY_SECONDS, self.config.retention.snapshot_seconds))
            try:
                await self.archivist.round(self.clock())
            except Exception:
                self.core.faults += 1
                log.exception("The archivist failed")

    async def _know_stable_configs(self) -> None:
        """Once before anything is decided: what the journal leads to may be answered with a configuration in git, and a
        rung that was passed over for want of it does not come again."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self.core.link.stable_configs.refresh), STABLE_CONFIGS_SECONDS)
        except asyncio.TimeoutError:
            log.warning("git has not answered within %g s; the start does not wait for it.", STABLE_CONFIGS_SECONDS)

    async def _read_stable_configs(self) -> None:
        """What recovery may go back to in git is read by a thread, so that no decision waits for it."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await asyncio.to_thread(self.core.link.stable_configs.refresh)

    def _open_journal(self) -> Journal | None:
        """None where it cannot be opened now: that may pass. That it is another program's does not."""
        try:
            return Journal(self._data_dir / FILE_NAME)
        except JournalForeign as error:
            raise ConfigError(str(error)) from error
        except JournalUnavailable:
            return None

    def _make_sink(self) -> Any:
        if self.config.influxdb is None:
            return None
        # Late: the client is large, and most exporters have no use for it.
        from exporter.service.sinks.influx import build_influx_sink

        return build_influx_sink(self.config.influxdb, self.archive, self._data_dir, os.environ, self.clock)

    def _needed_from(self) -> int | None:
        return None if self._sink is None else int(self._sink.needs_from()) - 1


async def _in_slices(work: Iterable[object]) -> int:
    """Do it all, and let others work in between; how many pieces it had."""
    count, slice_began = 0, time.monotonic()
    for _ in work:
        count += 1
        if time.monotonic() - slice_began > READ_SLICE_SECONDS:
            await asyncio.sleep(0)
            slice_began = time.monotonic()
    return count


def take_folder(folder: Path) -> IO[bytes]:
    """Make the data folder and lock it; the lock is held until the file is closed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / LOCK_FILE_NAME
        try:
            lock: IO[bytes] = file.open("ab")
        except OSError:
            # A disk that is read-only now may be written again later. Who has been here before can wait for that.
            lock = file.open("rb")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"The data folder {folder} cannot be written: {reason}. Name another with data_dir."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(
            f"Another exporter uses the data folder {folder}: stop it, or name another data_dir."
        ) from None
    return lock


def _version() -> str:
    try:
        return installed_version("verl-sentinel")
    except PackageNotFoundError:
        return "unknown"
