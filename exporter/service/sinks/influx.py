"""The InfluxDB sink: a thread that reads the journal from a place of its own and writes what it finds. Made by the app.

The journal is the queue. Nothing waits in memory, a push is never held up, and an exporter or a server that dies loses
nothing: the place moves on only after the server has taken what is before it. What is bounded is how far behind it may
be; what is dropped beyond that is counted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporter.service.sinks.contract import EntrySource, SinkHealth
from exporter.service.sinks.cursor import Cursor
from exporter.service.sinks.points import Lines
from exporter.service.sinks.server import InfluxServer, NotAllowed, Unavailable
from exporter.service.sinks.settings import InfluxSettings
from exporter.service.stored import Entry, JournalUnavailable

log = logging.getLogger("exporter.sinks")

NAME = "influxdb"
CURSOR_FILE_NAME = "influxdb-cursor.json"

MOST_ENTRIES = 1000
"""Of the journal, read at a time; fewer where they are large."""
BATCH_LINES = 5000
BATCH_BYTES = 2**20
"""A request has no more lines, and not much more bytes before compression."""


@dataclass(frozen=True)
class Pace:
    """How long the thread waits, in seconds."""

    poll: float = 1.0
    """For something new, when all is sent."""
    first_retry: float = 1.0
    """After a failure; doubled with each further one."""
    longest_retry: float = 60.0
    """Also after being refused."""
    save: float = 2.0
    """Between two writes of the place in the journal."""
    rest: float = 3.0
    """After each round, times the processor time that it took: 3 leaves the event loop three quarters of a core."""


class InfluxSink:
    """Reads, writes, remembers its place.

    Args:
        settings: where to write, and how far behind it may be.
        source: the journal.
        cursor_path: file for the place in the journal, in the data folder.
        environment: holds the token where the settings name a variable.
        clock: Unix seconds, the exporter's: how old an entry is.
        pace: how long to wait.
        jitter: between 0 and 1, so that many exporters do not all come back at once.
    """

    name = NAME

    def __init__(
        self,
        settings: InfluxSettings,
        source: EntrySource,
        cursor_path: Path,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._source = source
        self._cursor = Cursor(cursor_path, settings.target)
        self._server = InfluxServer(settings, environment)
        self._clock = clock
        self._pace = pace or Pace()
        self._jitter = jitter
        self._thread = threading.Thread(target=self._run, name=f"sink {NAME}", daemon=True)
        self._stopping = threading.Event()
        self._stop_at = 0.0
        self._lines: Lines | None = None
        self._limit = 64
        self._fresh = False
        """No place was known at the start: what is too old now was never meant for this server."""
        self._position: int | None = None
        self._saved_at = 0.0
        self._waiting_since: float | None = None
        self._lag = 0
        self._written = self._rejected = self._failed = self._dropped = 0
        self._error = ""
        self._in_a_row = 0
        self._source_failed = False
        self._unreadable_upto = 0
        self._rejection_said = ""
        self._drop_said = ""

    def start(self) -> None:
        """Begin to send, in a thread; returns at once."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Send what is there, for ``timeout`` seconds at most, then end. What is left is sent at the next start."""
        self._stop_at = time.monotonic() + timeout
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def health(self) -> SinkHealth:
        """How it is now. Any thread."""
        since = self._waiting_since
        return SinkHealth(
            name=NAME,
            up=not self._error,
            lag_entries=self._lag,
            lag_seconds=max(0.0, self._clock() - since) if since is not None else 0.0,
            written_points=self._written,
            rejected_points=self._rejected,
            failed_writes=self._failed,
            dropped_entries=self._dropped,
            last_error=self._error,
        )

    def needs_from(self) -> int:
        """Position of the oldest entry that it may still ask for. Any thread.

        The journal should not be emptied from here on. It comes nearer also while the server is away, because the
        sink gives up what is beyond its bound.
        """
        return 0 if self._position is None else self._position + 1

    # The thread

    def _run(self) -> None:
        while True:
            began = time.thread_time()
            try:
                full = self._round()
                pause = (time.thread_time() - began) * self._pace.rest if full else self._pace.poll
                done = self._lag == 0
            except Exception as error:  # noqa: BLE001 - a sink that died would stay silent for ever
                pause = self._failure(error)
                done = True
            if not self._stopping.is_set():
                self._wait(pause)
            elif done or time.monotonic() >= self._stop_at:
                break
        self._save(now=True)
        self._server.close()

    def _round(self) -> bool:
        """Send some of what is there; whether that filled a request. Raises what the source and the server raise."""
        if self._lines is None:
            self._lines = Lines(self._settings.tags)
        last = max(self._source.last_position(), self._source.moved_upto())
        position = self._give_up_what_is_too_far(self._place(last), last)
        entries = self._source.entries(position, self._limit)
        self._give_up_what_was_moved(position, entries)
        if self._source_failed:
            self._lag = max(0, last - position)
            self._waiting_since = entries[0].at if entries else None
            self._well()
        if not entries:
            # Positions without an entry: heartbeats that were replaced, runs that were forgotten.
            self._reach(max(position, last), last, None)
            self._fresh = False
            return False
        more = len(entries) >= self._limit
        recent = self._give_up_what_is_too_old(entries)
        if not recent:
            self._reach(entries[-1].position, last, None)
            return True
        self._fresh = False
        self._lag = last - recent[0].position + 1
        self._waiting_since = recent[0].at
        lines, count = self._gather(self._lines, recent)
        self._limit = min(MOST_ENTRIES, max(1, count * 2))
        for first in range(0, len(lines), BATCH_LINES):
            self._send(lines[first : first + BATCH_LINES])
        left = recent[count:]
        self._reach(recent[count - 1].position, last, left[0].at if left else None)
        return more or bool(left)

    def _place(self, last: int) -> int:
        """The position up to which all is done."""
        if self._position is None:
            self._position = self._cursor.load()
        if self._position is None or self._position > last:
            # None yet, or one of a journal that is no more.
            self._fresh = True
            self._position = 0
        return self._position

    def _give_up_what_is_too_far(self, position: int, last: int) -> int:
        """Leave out what is beyond the bound in entries; the position from which to go on."""
        bound = last - self._settings.max_lag_entries
        while position < bound:
            entries = [e for e in self._source.entries(position, self._limit) if e.position <= bound]
            count = sum(entry.kind == "batch" for entry in entries)
            self._drop(count, "more was waiting than max_lag_entries allows")
            position = entries[-1].position if entries else bound
            self._advance(position)
        return position

    def _give_up_what_was_moved(self, position: int, entries: Sequence[Entry]) -> None:
        """Count what the journal itself no longer has; asked after it was read, so that nothing goes in between."""
        moved = self._source.moved_upto()
        missing = (min(moved, entries[0].position - 1) if entries else moved) - position
        if missing > 0:
            # How many of these positions were pushes cannot be told any more; the count is never too low.
            self._drop(missing, "the journal had moved them to the history")
            self._advance(position + missing)

    def _give_up_what_is_too_old(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Leave out what is beyond the bound in hours; the others."""
        horizon = self._clock() - self._settings.max_lag_hours * 3600.0
        index = next((i for i, entry in enumerate(entries) if entry.at >= horizon), len(entries))
        if index:
            count = sum(entry.kind == "batch" for entry in entries[:index])
            self._drop(count, "they were older than max_lag_hours allows")
            self._advance(entries[index - 1].position)
        return entries[index:]

    def _drop(self, count: int, why: str) -> None:
        if count and not self._fresh:
            self._dropped += count
            if why != self._drop_said:
                self._drop_said = why
                log.warning("Pushes that wait for InfluxDB are dropped and counted, %d first: %s.", count, why)

    def _gather(self, encode: Lines, entries: Sequence[Entry]) -> tuple[list[bytes], int]:
        """Lines for about one request, and of how many entries they are."""
        lines: list[bytes] = []
        size = count = 0
        for entry in entries:
            try:
                found = encode.of(entry)
            except Exception as error:  # noqa: BLE001 - one entry must not hold up all that come after it
                self._unreadable(entry, error)
                found = []
            lines.extend(found)
            size += sum(map(len, found))
            count += 1
            if len(lines) >= BATCH_LINES or size >= BATCH_BYTES:
                break
        return lines, count

    def _unreadable(self, entry: Entry, error: Exception) -> None:
        """Count it once, though it may be met again while the server is away."""
        if entry.position > self._unreadable_upto:
            self._unreadable_upto = entry.position
            self._dropped += 1
            log.warning("Entry %d of the journal cannot be sent to InfluxDB: %s", entry.position, error)

    def _send(self, lines: list[bytes]) -> None:
        taken = self._server.write_lines(lines)
        self._written += taken.written
        self._rejected += taken.rejected
        if taken.rejected:
            self._say_rejected(taken.why)
        self._well()
        self._drop_said = ""

    def _say_rejected(self, message: str) -> None:
        """Once for each message, so that a field that conflicts with every step does not fill the log."""
        if message != self._rejection_said:
            self._rejection_said = message
            log.warning("InfluxDB refuses points, which are left out and counted. %s", message)

    def _well(self) -> None:
        """Note that it works, and say so once where it did not."""
        if self._error:
            log.info(
                "The sink %s works again after %d failed tries. It is behind by %d entries of the journal, "
                "the oldest of them %.0f s old.",
                NAME,
                self._in_a_row,
                self._lag,
                self.health().lag_seconds,
            )
        self._error = ""
        self._in_a_row = 0
        self._source_failed = False

    def _failure(self, error: Exception) -> float:
        """Note a failure; the seconds to wait."""
        self._failed += 1
        self._source_failed = isinstance(error, JournalUnavailable)
        expected = isinstance(error, (Unavailable, NotAllowed, JournalUnavailable))
        message = str(error) if expected else f"A fault in the sink: {error!r}"
        if message != self._error:
            log.warning("The sink %s waits: %s", NAME, message, exc_info=None if expected else error)
        self._error = message
        self._in_a_row += 1
        if isinstance(error, NotAllowed):
            pause = self._pace.longest_retry
        else:
            pause = min(self._pace.longest_retry, self._pace.first_retry * 2.0 ** min(self._in_a_row - 1, 30))
        pause *= 0.5 + 0.5 * self._jitter()
        return max(pause, error.retry_after) if isinstance(error, Unavailable) else pause

    def _wait(self, seconds: float) -> None:
        """Wait, and keep the lag that is told true meanwhile."""
        until = time.monotonic() + seconds
        while not self._stopping.wait(min(self._pace.poll, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return
            try:
                self._lag = max(0, self._source.last_position() - (self._position or 0))
            except Exception:  # noqa: BLE001 - the next round says it
                return

    def _reach(self, position: int, last: int, waiting_since: float | None) -> None:
        """All up to a position is done."""
        self._lag = max(0, last - position)
        self._waiting_since = waiting_since
        self._advance(position)

    def _advance(self, position: int) -> None:
        self._position = position
        self._save()

    def _save(self, *, now: bool = False) -> None:
        if self._position is None or (not now and time.monotonic() - self._saved_at < self._pace.save):
            return
        self._saved_at = time.monotonic()
        try:
            self._cursor.save(self._position)
        except OSError as error:
            # It goes on from memory; after a crash some is sent again.
            log.warning("The place of the sink %s cannot be written to %s: %s", NAME, self._cursor.path, error)


def build_influx_sink(
    settings: InfluxSettings,
    source: EntrySource,
    data_dir: Path,
    environment: Mapping[str, str],
    clock: Callable[[], float] = time.time,
) -> InfluxSink:
    """The sink as the exporter runs it; the caller starts and stops it."""
    return InfluxSink(settings, source, data_dir / CURSOR_FILE_NAME, environment, clock=clock)
