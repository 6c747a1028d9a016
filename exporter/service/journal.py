"""The journal: every entry that changes state, in order, on disk before it counts. Called by the recorders.

One SQLite file in WAL mode. State is never written; it is rebuilt by reading the journal from its beginning. Entries:

- ``batch``: an accepted push, unique by (run, sender, sequence number);
- ``beat``: a push that only says "still here" (nothing but open phases). The next one of its sender replaces it, so a
  run of a week does not leave a million of them;
- ``look``: what the live detectors said at a moment at which it changed an incident;
- ``mark``: a person or a recovery changed an incident.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["batch", "beat", "look", "mark"]

FILE_NAME = "verl-sentinel.sqlite3"
VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    run_id TEXT NOT NULL,
    sender TEXT,
    seq INTEGER,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS journal_once ON journal (run_id, sender, seq) WHERE sender IS NOT NULL;
CREATE INDEX IF NOT EXISTS journal_beats ON journal (run_id, sender) WHERE kind = 'beat';
"""


class JournalUnavailable(Exception):
    """The journal cannot be opened, read or written; the text is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. ``at`` is the exporter's clock at arrival, Unix seconds; ``position`` is 0 until it is on disk."""

    kind: Kind
    at: float
    run_id: str
    body: bytes
    """msgpack."""
    sender: str | None = None
    seq: int | None = None
    position: int = 0


class Journal:
    """The journal file. One thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._db.execute("PRAGMA journal_mode = WAL")
            # FULL: what was acknowledged also survives a loss of power. Group commit pays for it.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO journal_meta VALUES ('version', ?)", (VERSION,))
        except sqlite3.Error as error:
            raise JournalUnavailable(
                f"The journal {path} cannot be opened: {error}. Check that the file is a SQLite database of this "
                "program and that its folder can be written, or name another data_dir."
            ) from error
        version = self._meta("version")
        if version != VERSION:
            self._db.close()
            raise JournalUnavailable(
                f"The journal {path} has version {version}, this program reads version {VERSION}: "
                "start the release of verl-sentinel that wrote it, or name another data_dir."
            )

    def append(self, entries: Sequence[Entry], *, delivered: int = 0) -> list[int]:
        """Write all entries in one transaction; the position of each, or 0 for one that was there already.

        ``delivered`` is the position up to which the recovery engine has been told; it is remembered with the entries.
        Raises :class:`JournalUnavailable`, and then none is written.
        """
        positions = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for entry in entries:
                positions.append(self._insert(entry))
            if delivered:
                self._db.execute("INSERT OR REPLACE INTO journal_meta VALUES ('delivered', ?)", (delivered,))
            self._db.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            if self._db.in_transaction:
                self._rollback()
            raise JournalUnavailable(f"The journal {self.path} cannot be written: {error}.") from error
        return positions

    def _insert(self, entry: Entry) -> int:
        cursor = self._db.execute(
            "INSERT OR IGNORE INTO journal (kind, at, run_id, sender, seq, body) VALUES (?, ?, ?, ?, ?, ?)",
            (entry.kind, entry.at, entry.run_id, entry.sender, entry.seq, entry.body),
        )
        if cursor.rowcount == 0 or cursor.lastrowid is None:
            return 0
        if entry.kind == "beat":
            self._db.execute(
                "DELETE FROM journal WHERE kind = 'beat' AND run_id = ? AND sender = ? AND position < ?",
                (entry.run_id, entry.sender, cursor.lastrowid),
            )
        return cursor.lastrowid

    def read(self) -> Iterator[Entry]:
        """Every entry in order. Raises :class:`JournalUnavailable` where the file is damaged."""
        try:
            columns = "kind, at, run_id, body, sender, seq, position"
            for row in self._db.execute(f"SELECT {columns} FROM journal ORDER BY position"):
                yield Entry(*row)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def count(self) -> int:
        """Entries in the file."""
        return int(self._db.execute("SELECT count(*) FROM journal").fetchone()[0])

    def delivered(self) -> int:
        """Position up to which the recovery engine has surely been told."""
        return self._meta("delivered")

    def forget_before(self, cutoff: float) -> int:
        """Remove every run whose newest entry is older than ``cutoff`` (Unix seconds); how many entries went."""
        try:
            cursor = self._db.execute(
                "DELETE FROM journal WHERE run_id IN (SELECT run_id FROM journal GROUP BY run_id HAVING max(at) < ?)",
                (cutoff,),
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return cursor.rowcount

    def close(self) -> None:
        """Close the file; the write-ahead log is folded into it."""
        self._db.close()

    def _unusable(self, error: sqlite3.Error) -> JournalUnavailable:
        return JournalUnavailable(
            f"The journal {self.path} cannot be read: {error}. Restore it from a backup, or name another data_dir."
        )

    def _meta(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM journal_meta WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _rollback(self) -> None:
        try:
            self._db.execute("ROLLBACK")
        except sqlite3.Error:
            # SQLite has ended the transaction by itself (a full disk does that): there is nothing left to undo.
            return
