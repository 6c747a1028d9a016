"""One exporter from start to end: opens the files, replays the journal, ticks, closes. Made and run by the app."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import IO, Any

from prometheus_client import CollectorRegistry

from exporter.config import Config, ConfigError
from exporter.detectors.registry import build_detectors
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.store import RecoveryStore
from exporter.service.admission import Refused
from exporter.service.core import Core
from exporter.service.exposition import Collector, Ingest
from exporter.service.journal import FILE_NAME, Entry, Journal, JournalUnavailable
from exporter.service.recorder import Done, Recorder, ThreadedRecorder

log = logging.getLogger("exporter")

RECOVERY_FILE_NAME = "recovery.sqlite3"
LOCK_FILE_NAME = "lock"
TICK_SECONDS = 1.0
REPLAY_SLICE_SECONDS = 0.05
"""Replay lets others work after as long, so that health checks are answered during it."""
RETENTION_SECONDS = 30 * 86_400.0
"""A run that nobody heard of for longer leaves the journal at the next start."""


class _LateRecorder:
    """Stands where the recorder will be: the core is made before there is an event loop to answer to."""

    def __init__(self) -> None:
        self.real: Recorder | None = None

    def record(self, entry: Entry, done: Done) -> None:
        assert self.real is not None, "nothing is recorded before the exporter has started"
        self.real.record(entry, done)

    def delivered(self, position: int) -> None:
        if self.real is not None:
            self.real.delivered(position)


class Exporter:
    """The service without its HTTP face.

    Args:
        config: checked; its ``data_dir`` is made where it is missing.
        clock: Unix seconds.

    Raises :class:`ConfigError` with a sentence where the data folder cannot be used.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self.clock = clock
        self.version = _version()
        self._lock = _take_folder(Path(config.data_dir))
        try:
            self._journal = Journal(Path(config.data_dir) / FILE_NAME)
            self._store = RecoveryStore(Path(config.data_dir) / RECOVERY_FILE_NAME)
        except (JournalUnavailable, OSError) as error:
            raise ConfigError(str(error)) from error
        self._recorder = _LateRecorder()
        options: Mapping[str, Mapping[str, Any]] = config.detectors
        self.core = Core(
            self._recorder,
            RecoveryEngine(self._store, config.recovery),
            lambda: build_detectors(options),
            limits=config.limits,
            rules=config.incidents,
            ended_grace=config.ended_run_grace_seconds,
        )
        self.ingest = Ingest()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(Collector(self.core, self.ingest, clock, self.version, lambda: self.replayed))
        self.replayed = False
        self._replay_error = ""
        self._threaded: ThreadedRecorder | None = None
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to replay, then to tick; returns at once."""
        self._work = asyncio.create_task(self._run(), name="exporter")

    async def stop(self) -> None:
        """Stop ticking, write what is waiting, close the files."""
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
        if self._threaded is not None:
            await asyncio.to_thread(self._threaded.close)
        self._journal.close()
        self._store.close()
        self._lock.close()

    def reasons_not_ready(self) -> list[str]:
        """Sentences; empty when pushes are taken and kept."""
        if self._replay_error:
            return [self._replay_error]
        if not self.replayed:
            return ["The journal is being read."]
        return self.core.reasons_not_ready()

    def require_replayed(self) -> None:
        """Raise :class:`Refused` (503) while state is not there yet."""
        if not self.replayed:
            raise Refused("starting", f"{self.reasons_not_ready()[0]} Try again.", status=503, retry_after=1)

    async def _run(self) -> None:
        try:
            await self._replay()
        except JournalUnavailable as error:
            self._replay_error = str(error)
            log.error("%s", error)
            return
        self._threaded = ThreadedRecorder(self._journal, asyncio.get_running_loop().call_soon_threadsafe)
        self._threaded.start()
        self._recorder.real = self._threaded
        self.replayed = True
        while True:
            try:
                self.core.tick(self.clock())
            except Exception:
                # A fault in one run must not end the watch over all; it is logged, and counted, until it is mended.
                self.core.faults += 1
                log.exception("The tick failed")
            await asyncio.sleep(TICK_SECONDS)

    async def _replay(self) -> None:
        began = time.monotonic()
        forgotten = self._journal.forget_before(self.clock() - RETENTION_SECONDS)
        if forgotten:
            log.info("Forgot %d entries of runs that were last heard more than 30 days ago", forgotten)
        count, slice_began = 0, began
        for _ in self.core.replay(self._journal.read(), self._journal.delivered()):
            count += 1
            if time.monotonic() - slice_began > REPLAY_SLICE_SECONDS:
                await asyncio.sleep(0)
                slice_began = time.monotonic()
        seconds = time.monotonic() - began
        log.info("Read %d entries of the journal in %.2f s: %d runs", count, seconds, len(self.core.runs))


def _take_folder(folder: Path) -> IO[bytes]:
    """Make the data folder and lock it; the lock is held until the file is closed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE_NAME).open("ab")
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
