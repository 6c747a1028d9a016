"""Recorders: bring entries and snapshots into the journal and say when they are there. Called by the core.

Two of them. :class:`DirectRecorder` writes at once, in the caller's thread; :class:`ThreadedRecorder` has a thread of
its own that writes all that has gathered in one transaction (group commit), so that the disk never holds up the event
loop. Both call back in the order of the journal, which is the order in which state changes.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from exporter.service.journal import Journal
from exporter.service.stored import Entry, JournalDamaged, JournalUnavailable, Snapshot

log = logging.getLogger("exporter.journal")

GROUP = 1024
"""Most entries of one transaction."""

QUEUE = 20_000
"""Most entries that wait for the disk; beyond it pushes are refused, so that a slow disk does not cost memory."""

COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds."""

DELIVERED_SECONDS = 1.0
"""How far the recovery engine has been told is written no more often than this."""

REOPEN_SECONDS = 1.0
"""A journal that cannot be written is opened again no more often than this."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """How it went: ``position`` in the journal; or ``error``, and then nothing was written."""

    position: int
    error: str = ""


Done = Callable[[Entry, Recorded], None]
Written = Callable[[str], None]
"""Called with why it did not work, empty where it did."""


@dataclass
class RecorderHealth:
    """Figures of a recorder, for ``/metrics``."""

    entries: int = 0
    """Entries written."""
    commits: int = 0
    """Transactions."""
    failures: int = 0
    """Transactions that failed."""
    commit_seconds: float = 0.0
    """Time of all transactions, with their fsync."""
    commit_counts: list[int] = field(default_factory=lambda: [0] * (len(COMMIT_BUCKETS) + 1))
    """Transactions by :data:`COMMIT_BUCKETS`, not cumulative, the last for those above all bounds."""
    snapshots: int = 0
    queued: int = 0
    """Entries that wait."""
    damaged: str = ""
    """Why the file is taken for damaged; empty where it is not."""
    mended: int = 0
    """Times that the file was put together anew."""
    lost_entries: int = 0
    """Entries that could not be read then: their effect is kept, they are missing from exports."""
    lost_runs: int = 0
    """Runs that were not in memory then, and whose snapshot could not be read."""
    faults: int = 0
    """Answers that could not be given, by a fault of ours."""

    def committed(self, entries: int, snapshots: int, seconds: float) -> None:
        self.entries += entries
        self.snapshots += snapshots
        self.commits += 1
        self.commit_seconds += seconds
        self.commit_counts[bisect_left(COMMIT_BUCKETS, seconds)] += 1


class Recorder(Protocol):
    """Writes entries; ``done`` is called once for each, in the order of the journal."""

    @property
    def health(self) -> RecorderHealth: ...

    def record(self, entry: Entry, done: Done) -> None: ...

    def full(self) -> bool:
        """Whether no more may be given for now."""

    def keep(self, snapshot: Snapshot, done: Written) -> None:
        """Write a snapshot, after every entry that was given before."""

    def delivered(self, position: int) -> None:
        """The recovery engine has been told of everything up to ``position``; written with the next entry."""

    def maintain(self, work: Callable[[Journal], None], done: Written) -> None:
        """Let ``work`` use the journal between two transactions; it has to be short."""


class DirectRecorder:
    """Writes at once. For tests and for tools that have no event loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._delivered = 0
        self.health = RecorderHealth()

    def record(self, entry: Entry, done: Done) -> None:
        try:
            position = self._journal.append([entry], delivered=self._delivered)[0]
            self._delivered = 0
        except JournalUnavailable as error:
            self.health.failures += 1
            done(entry, Recorded(0, str(error)))
            return
        self.health.committed(1, 0, 0.0)
        done(entry, Recorded(position))

    def full(self) -> bool:
        return False

    def keep(self, snapshot: Snapshot, done: Written) -> None:
        self.maintain(lambda journal: _keep(journal, snapshot), done)

    def delivered(self, position: int) -> None:
        self._delivered = position

    def maintain(self, work: Callable[[Journal], None], done: Written) -> None:
        try:
            work(self._journal)
        except JournalUnavailable as error:
            done(str(error))
            return
        done("")


def _keep(journal: Journal, snapshot: Snapshot) -> None:
    journal.append([], [snapshot])


@dataclass(frozen=True, slots=True)
class _Keep:
    """A snapshot in the queue."""

    snapshot: Snapshot
    done: Written


@dataclass(frozen=True, slots=True)
class _Work:
    """Maintenance in the queue."""

    work: Callable[[Journal], None]
    done: Written


_Item = tuple[Entry, Done] | _Keep


class ThreadedRecorder:
    """Writes in a thread of its own, from :meth:`start` on; what was given before waits."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Item | _Work | None] = queue.SimpleQueue()
        self._delivered = 0
        self._delivered_at = 0.0
        self._failed_at: float | None = None
        self._thread: threading.Thread | None = None
        self._health = RecorderHealth()

    @property
    def health(self) -> RecorderHealth:
        self._health.queued = self._queue.qsize()
        return self._health

    def start(self, journal: Journal, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Begin to write.

        Args:
            journal: used by this recorder's thread alone until :meth:`close`.
            call_soon: schedules a call on the event loop from any thread (``loop.call_soon_threadsafe``).
        """
        self._journal, self._call_soon = journal, call_soon
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def record(self, entry: Entry, done: Done) -> None:
        self._queue.put((entry, done))

    def full(self) -> bool:
        return self._queue.qsize() >= QUEUE

    def keep(self, snapshot: Snapshot, done: Written) -> None:
        self._queue.put(_Keep(snapshot, done))

    def maintain(self, work: Callable[[Journal], None], done: Written) -> None:
        self._queue.put(_Work(work, done))

    def delivered(self, position: int) -> None:
        self._delivered = position

    def close(self, timeout: float = 30.0) -> None:
        """Write what is waiting, then end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            group, work, last = self._next_group()
            if group or last:
                self._write(group, last=last)
            if work is not None:
                self._maintain(work)
            if last:
                return

    def _next_group(self) -> tuple[list[_Item], _Work | None, bool]:
        """Entries and snapshots up to the next maintenance; they are written in one go."""
        group: list[_Item] = []
        item = self._queue.get()
        while item is not None:
            if isinstance(item, _Work):
                return group, item, False
            group.append(item)
            if len(group) >= GROUP or self._queue.empty():
                return group, None, False
            item = self._queue.get()
        return group, None, True

    def _write(self, group: Sequence[_Item], *, last: bool) -> None:
        entries = [item[0] for item in group if not isinstance(item, _Keep)]
        snapshots = [item.snapshot for item in group if isinstance(item, _Keep)]
        began, error, positions = time.perf_counter(), "", [0] * len(entries)
        # Once a second is enough: what the engine is told twice, after a crash, changes nothing.
        told = last or bool(snapshots) or began - self._delivered_at > DELIVERED_SECONDS
        delivered = self._delivered if told else 0
        try:
            self._recover()
            positions = self._journal.append(entries, snapshots, delivered=delivered)
        except Exception as failed:  # noqa: BLE001 - the thread has to live on, and every caller waits for an answer
            error = str(failed) or repr(failed)
            self._note_failure(failed)
        else:
            self._works()
            if delivered:
                self._delivered_at = began
            self._health.committed(len(entries), len(snapshots), time.perf_counter() - began)

        def answer() -> None:
            place = iter(positions)
            for item in group:
                try:
                    if isinstance(item, _Keep):
                        item.done(error)
                    else:
                        item[1](item[0], Recorded(next(place), error))
                except Exception:
                    # A fault of ours with one must not leave the others of the group without an answer.
                    self._health.faults += 1
                    log.exception("What was written could not be answered")

        self._call_soon(answer)

    def _maintain(self, item: _Work) -> None:
        error = ""
        try:
            self._recover()
            item.work(self._journal)
            self._works()
        except Exception as failed:  # noqa: BLE001 - as above
            error = str(failed) or repr(failed)
            self._note_failure(failed)
        self._call_soon(lambda: item.done(error))

    def _recover(self) -> None:
        """After a failure, open the file anew: SQLite holds on to a file that was replaced, or mounted again."""
        if self._failed_at is not None and time.monotonic() - self._failed_at >= REOPEN_SECONDS:
            self._failed_at = time.monotonic()
            self._journal.reopen()

    def _works(self) -> None:
        if self._failed_at is not None:
            log.warning("The journal %s can be written again", self._journal.path)
            self._failed_at = None

    def _note_failure(self, error: Exception) -> None:
        self._health.failures += 1
        if isinstance(error, JournalDamaged):
            self._health.damaged = str(error)
        if self._failed_at is None:
            log.error("%s Pushes are answered 503 until it can.", error)
            self._failed_at = time.monotonic()


async def maintained(recorder: Recorder, work: Callable[[Journal], None]) -> None:
    """Let ``work`` use the journal, and wait until it has. Raises :class:`JournalUnavailable` where it failed."""
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    recorder.maintain(work, lambda error: None if done.done() else done.set_result(error))
    error = await done
    if error:
        raise JournalUnavailable(error)
