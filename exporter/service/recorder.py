"""Recorders: bring entries into the journal and say when they are there. Called by the core.

Two of them. :class:`DirectRecorder` writes at once, in the caller's thread; :class:`ThreadedRecorder` has a thread of
its own that writes all that has gathered in one transaction (group commit), so that the disk never holds up the event
loop. Both call back in the order of the journal, which is the order in which state changes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from exporter.service.journal import Entry, Journal, JournalUnavailable

GROUP = 256
"""Most entries of one transaction."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """How it went: ``position`` in the journal, 0 for a duplicate; or ``error``, and then nothing was written."""

    position: int
    error: str = ""


Done = Callable[[Entry, Recorded], None]


class Recorder(Protocol):
    """Writes entries; ``done`` is called once for each, in the order of the journal."""

    def record(self, entry: Entry, done: Done) -> None: ...

    def delivered(self, position: int) -> None:
        """The recovery engine has been told of everything up to ``position``; written with the next entry."""


class DirectRecorder:
    """Writes at once. For tests and for tools that have no event loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._delivered = 0

    def record(self, entry: Entry, done: Done) -> None:
        try:
            position = self._journal.append([entry], delivered=self._delivered)[0]
        except JournalUnavailable as error:
            done(entry, Recorded(0, str(error)))
            return
        done(entry, Recorded(position))

    def delivered(self, position: int) -> None:
        self._delivered = position


class ThreadedRecorder:
    """Writes in a thread of its own; ``call_soon`` brings the answers back to the event loop, in order.

    Args:
        journal: used by this recorder's thread alone from :meth:`start` to :meth:`close`.
        call_soon: schedules a call on the event loop from any thread (``loop.call_soon_threadsafe``).
    """

    def __init__(self, journal: Journal, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._journal = journal
        self._call_soon = call_soon
        self._queue: queue.SimpleQueue[tuple[Entry, Done] | None] = queue.SimpleQueue()
        self._delivered = 0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def record(self, entry: Entry, done: Done) -> None:
        self._queue.put((entry, done))

    def delivered(self, position: int) -> None:
        self._delivered = position

    def close(self, timeout: float = 10.0) -> None:
        """Write what is waiting, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            group, last = self._next_group()
            if group:
                self._write(group)
            if last:
                return

    def _next_group(self) -> tuple[list[tuple[Entry, Done]], bool]:
        group: list[tuple[Entry, Done]] = []
        item = self._queue.get()
        while item is not None:
            group.append(item)
            if len(group) >= GROUP or self._queue.empty():
                return group, False
            item = self._queue.get()
        return group, True

    def _write(self, group: Sequence[tuple[Entry, Done]]) -> None:
        try:
            positions = self._journal.append([entry for entry, _ in group], delivered=self._delivered)
            outcomes = [Recorded(position) for position in positions]
        except Exception as error:  # noqa: BLE001 - the thread has to live on, and every caller waits for an answer
            outcomes = [Recorded(0, str(error) or repr(error))] * len(group)

        def answer() -> None:
            for (entry, done), outcome in zip(group, outcomes, strict=True):
                done(entry, outcome)

        self._call_soon(answer)
