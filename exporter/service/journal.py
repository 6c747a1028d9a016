"""The journal: every entry that changes state, in order, on disk before it counts. Called by the recorders.

One SQLite file in WAL mode with two things in it. The *entries*, which only ever are added:

- ``batch``: an accepted push;
- ``beat``: a push that only says "still here" (nothing but open phases);
- ``look``: what the live detectors said at a moment at which it changed an incident;
- ``mark``: a person or a recovery changed an incident;
- ``start``: an exporter began to watch again.

And one *snapshot* a run: its whole state after the entry at the snapshot's position. State is rebuilt from the
snapshots and the entries that came after them, so what is before them may go: :mod:`exporter.service.archivist` moves
it to the history.

Every entry and snapshot carries a checksum, because SQLite itself notices damage only where it breaks a page's
structure.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from exporter.service.identity import identity
from exporter.service.stored import (
    Entry,
    JournalDamaged,
    JournalForeign,
    JournalUnavailable,
    Snapshot,
    is_damage,
    read_entries,
    read_snapshot,
    unreadable,
)

_T = TypeVar("_T")

FILE_NAME = "verl-sentinel.sqlite3"
VERSION = 2
ROWS = 256 if sqlite3.sqlite_version_info >= (3, 32) else 120
"""Most rows of one INSERT. One statement for many rows, because the thread that writes has to win back the
interpreter's lock after each, against an event loop that is busy. Before 3.32 a statement has at most 999 values."""

PART_BYTES = 64 * 1024
"""Most bytes of bodies in one INSERT; a larger body goes alone. Python keeps a statement for each number of rows, and a
statement that is kept keeps what it wrote last."""

COLUMNS = "position, kind, at, run_id, sender, seq, body, crc"
_BODY = COLUMNS.split(", ").index("body")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (
    position INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    run_id TEXT NOT NULL,
    sender TEXT,
    seq INTEGER,
    body BLOB NOT NULL,
    crc INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS snapshots (
    run_id TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    heard REAL NOT NULL,
    summary BLOB NOT NULL,
    body BLOB NOT NULL,
    crc INTEGER NOT NULL
);
"""
_INSERT = f"INSERT INTO journal ({COLUMNS}) VALUES "
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?)"


class Journal:
    """The journal file. One thread at a time may use it.

    Raises :class:`JournalUnavailable` where the file cannot be opened, :class:`JournalForeign` where it is not ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = self._open()
        self._file = identity(path)
        self.position = self._highest()
        """Of the newest entry that is on disk."""

    def _open(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                # FULL: what was acknowledged also survives a loss of power. Group commit pays for it.
                db.execute("PRAGMA synchronous = FULL")
                # Some builds of SQLite write zeros over what is deleted, which doubles what a deletion costs.
                db.execute("PRAGMA secure_delete = OFF")
                db.execute("PRAGMA journal_size_limit = 67108864")
                known = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if not known:
                    # In one transaction: half a journal would be taken for another program's at the next start.
                    version = f"INSERT OR IGNORE INTO journal_meta VALUES ('version', {VERSION});"
                    db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}{version}COMMIT;")
                row = db.execute("SELECT value FROM journal_meta WHERE key = 'version'").fetchone()
            except sqlite3.Error:
                db.close()
                raise
        except sqlite3.Error as error:
            raise JournalUnavailable(
                f"The journal {self.path} cannot be opened: {error}. Check that the file is a SQLite database of this "
                "program and that its folder can be written, or name another data_dir."
            ) from error
        found = int(row[0]) if row else 0
        if found != VERSION:
            db.close()
            raise JournalForeign(
                f"The journal {self.path} has version {found}, this program reads version {VERSION}: "
                "start the release of verl-sentinel that wrote it, or name another data_dir."
            )
        return db

    def go_on_above(self, position: int) -> None:
        """Give no position again up to this one, which is known from elsewhere: the file may be older than that."""
        self.position = max(self.position, position)

    def reopen(self) -> None:
        """Open the file again: what stood in the way (a disk that was full, read-only, gone) may have passed.

        Raises :class:`JournalUnavailable`, and then the old connection is kept; so it is where another file, or none,
        has the name now: what is open is then all there is, and :mod:`exporter.app.mending` has to judge.
        """
        if not self.in_place():
            return
        fresh = self._open()
        self._db.close()
        if not _can_write(fresh):
            # Connections of one process share what the first of them found: a disk that was read-only at the start.
            fresh.close()
            fresh = self._open()
        self._db = fresh
        self.position = max(self.position, self._highest())

    def replaced(self, replace: Callable[[Path], _T]) -> _T:
        """Let the file be replaced while it is closed, then open it again; what ``replace`` gives."""
        self._db.close()
        try:
            return replace(self.path)
        finally:
            self._db = self._open()
            self._file = identity(self.path)
            self.position = max(self.position, self._highest())

    def in_place(self) -> bool:
        """Whether what is open is what the next start finds under the name."""
        return self._file is not None and self._file == identity(self.path)

    def copy_to(self, path: Path) -> None:
        """Write all of what is open to a new file, also where its name is gone. Raises :class:`JournalUnavailable`."""
        try:
            with contextlib.closing(sqlite3.connect(path)) as copy:
                self._db.backup(copy)
        except sqlite3.Error as error:
            raise JournalUnavailable(f"The journal cannot be copied to {path}: {error}.") from error

    def append(self, entries: Sequence[Entry], snapshots: Sequence[Snapshot] = (), *, delivered: int = 0) -> list[int]:
        """Write all of it in one transaction; the position of each entry.

        ``delivered`` is the position up to which the recovery engine has been told; it is remembered with the entries.
        Raises :class:`JournalUnavailable`, and then nothing is written.
        """
        if not self.in_place():
            # SQLite goes on to write a file that no name leads to any more, and nobody would read it again.
            raise JournalDamaged(
                f"The journal {self.path} was deleted, or replaced by another file, while it was open."
            )
        first = self.position + 1
        rows = [
            (first + index, e.kind, e.at, e.run_id, e.sender, e.seq, e.body, zlib.crc32(e.body))
            for index, e in enumerate(entries)
        ]
        parts = _parts(rows)
        # A statement alone is a transaction, and saves two others.
        alone = len(parts) <= 1 and not snapshots and not delivered
        try:
            with contextlib.nullcontext() if alone else self._writing():
                self._insert(parts)
                for s in snapshots:
                    self._db.execute(
                        "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET"
                        " position = excluded.position, heard = excluded.heard, summary = excluded.summary,"
                        " body = excluded.body, crc = excluded.crc",
                        (s.run_id, s.position, s.heard, s.summary, s.body, zlib.crc32(s.body)),
                    )
                if delivered:
                    self._set_meta("delivered", delivered)
        except (sqlite3.Error, OverflowError) as error:
            raise self._not_written(error) from error
        self.position += len(rows)
        return list(range(first, first + len(rows)))

    def _insert(self, parts: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        for part in parts:
            values = [value for row in part for value in row]
            self._db.execute(_INSERT + ", ".join([_ROW] * len(part)), values)

    def take_over(self, rows: Iterable[tuple[Any, ...]], *, highest: int, delivered: int) -> int:
        """Fill an empty journal with rows of another one, as :data:`COLUMNS`; how many there were.

        Positions go on above ``highest``. Raises :class:`JournalUnavailable`.
        """
        count = 0
        with self._writing():
            for row in rows:
                self._insert([[row]])
                count += 1
            self._set_meta("highest", highest)
            self._set_meta("delivered", delivered)
        self.position = max(self.position, highest)
        return count

    def probe(self) -> None:
        """Write something that means nothing, as large as a push. Raises :class:`JournalUnavailable`."""
        try:
            self._db.execute("INSERT OR REPLACE INTO journal_meta VALUES ('probe', zeroblob(65536))")
            self._db.execute("DELETE FROM journal_meta WHERE key = 'probe'")
        except sqlite3.Error as error:
            raise self._not_written(error) from error

    def delete(self, after: int, upto: int, *, batches: bool) -> None:
        """Remove the entries at positions above ``after`` up to ``upto``: all, or (``batches`` false) all but batches.

        The highest position is remembered, for the file may be empty afterwards. Raises :class:`JournalUnavailable`.
        """
        what = "" if batches else " AND kind != 'batch'"
        with self._writing():
            self._set_meta("highest", self.position)
            self._db.execute(f"DELETE FROM journal WHERE position > ? AND position <= ?{what}", (after, upto))

    def forget(self, run_ids: Sequence[str]) -> None:
        """Remove all that is known of these runs. Raises :class:`JournalUnavailable`."""
        with self._writing():
            self._set_meta("highest", self.position)
            for start in range(0, len(run_ids), ROWS):
                # Many in one statement: each goes through the whole journal, and the ingest waits for it.
                some = run_ids[start : start + ROWS]
                marks = ", ".join("?" * len(some))
                self._db.execute(f"DELETE FROM snapshots WHERE run_id IN ({marks})", some)
                self._db.execute(f"DELETE FROM journal WHERE run_id IN ({marks})", some)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            self._roll_back()
            raise self._not_written(error) from error

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Every entry in order. Raises :class:`JournalDamaged` where the file is not what was written."""
        return read_entries(self._db, self.path, after)

    def snapshots(self) -> Iterator[Snapshot]:
        """Position and summary of every run's snapshot, those heard last first; the bodies are read one by one.

        Raises :class:`JournalDamaged`.
        """
        try:
            query = "SELECT run_id, position, heard, x'', summary FROM snapshots ORDER BY heard DESC"
            for fields in self._db.execute(query):
                yield Snapshot(*fields)
        except sqlite3.Error as error:
            raise unreadable(self.path, error) from error

    def snapshot(self, run_id: str) -> Snapshot | None:
        """The snapshot of one run. Raises :class:`JournalDamaged`."""
        return read_snapshot(self._db, self.path, run_id)

    def count(self) -> int:
        """Entries in the file."""
        return int(self._db.execute("SELECT count(*) FROM journal").fetchone()[0])

    def delivered(self) -> int:
        """Position up to which the recovery engine has surely been told."""
        return self._meta("delivered")

    def watched(self) -> float:
        """When an exporter was last here and looked, Unix seconds; 0 where none was."""
        return self._meta("watched") / 1000.0

    def note_watching(self, now: float) -> None:
        """The exporter is here, and looks. Raises :class:`JournalUnavailable`."""
        with self._writing():
            self._set_meta("watched", int(now * 1000))

    def close(self) -> None:
        """Close the file; the write-ahead log is folded into it."""
        self._db.close()

    def _highest(self) -> int:
        try:
            newest = self._db.execute("SELECT max(position) FROM journal").fetchone()[0] or 0
            covered = self._db.execute("SELECT max(position) FROM snapshots").fetchone()[0] or 0
            return max(int(newest), int(covered), self._meta("highest"))
        except sqlite3.Error as error:
            raise unreadable(self.path, error) from error

    def _meta(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM journal_meta WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _set_meta(self, key: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO journal_meta VALUES (?, ?)", (key, value))

    def _not_written(self, error: Exception) -> JournalUnavailable:
        kind = JournalDamaged if is_damage(error) else JournalUnavailable
        return kind(f"The journal {self.path} cannot be written: {error}.")

    def _roll_back(self) -> None:
        try:
            # SQLite may have ended the transaction by itself (a full disk does that).
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            return


def _can_write(db: sqlite3.Connection) -> bool:
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True


def _parts(rows: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Rows as they go together into one INSERT each."""
    parts: list[list[tuple[Any, ...]]] = []
    size = 0
    for row in rows:
        size += len(row[_BODY])
        if not parts or len(parts[-1]) == ROWS or size > PART_BYTES:
            parts.append([])
            size = len(row[_BODY])
        parts[-1].append(row)
    return parts
