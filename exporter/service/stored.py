"""What the journal holds, how it is read from a connection, and what can be wrong with it.

Used by :mod:`exporter.service.journal`, which writes, and by everything that reads the file beside it.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["batch", "beat", "look", "mark", "start"]


class JournalUnavailable(Exception):
    """The journal cannot be opened, read or written; the text is a sentence for a person."""


class JournalDamaged(JournalUnavailable):
    """The file is there, and what is in it is not what was written."""


class JournalForeign(JournalUnavailable):
    """The file is of another version of this program: waiting does not mend that."""


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one run after the entry at ``position``."""

    run_id: str
    position: int
    heard: float
    """When the run was last heard, Unix seconds."""
    body: bytes
    summary: bytes = b""
    """What a list shows of a run that is not in memory."""


def read_entries(
    db: sqlite3.Connection, path: Path, after: int, *, run_id: str | None = None, limit: int = -1
) -> Iterator[Entry]:
    """Entries with a position above ``after``, in order, checked; of one run and at most ``limit`` where given.

    Raises :class:`JournalDamaged`.
    """
    only = "" if run_id is None else " AND run_id = ? AND kind = 'batch'"
    given = (after, limit) if run_id is None else (after, run_id, limit)
    query = (
        "SELECT kind, at, run_id, body, sender, seq, position, crc FROM journal"
        f" WHERE position > ?{only} ORDER BY position LIMIT ?"
    )
    try:
        for *fields, crc in db.execute(query, given):
            entry = Entry(*fields)
            if zlib.crc32(entry.body) != crc:
                raise damaged(path, f"entry {entry.position} does not match its checksum")
            yield entry
    except sqlite3.Error as error:
        raise unreadable(path, error) from error


def read_snapshot(db: sqlite3.Connection, path: Path, run_id: str) -> Snapshot | None:
    """The snapshot of one run, checked. Raises :class:`JournalDamaged`."""
    try:
        query = "SELECT run_id, position, heard, body, summary, crc FROM snapshots WHERE run_id = ?"
        row = db.execute(query, (run_id,)).fetchone()
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    if row is None:
        return None
    *fields, crc = row
    if zlib.crc32(fields[3]) != crc:
        raise damaged(path, f"the snapshot of run {run_id} does not match its checksum")
    return Snapshot(*fields)


def is_damage(error: Exception) -> bool:
    """Whether SQLite says that the file is not what it wrote; what the disk does is an ``OperationalError``."""
    return type(error) is sqlite3.DatabaseError


def unreadable(path: Path, error: Exception) -> JournalUnavailable:
    """What to raise for an error of SQLite while reading."""
    if is_damage(error):
        return damaged(path, str(error))
    return JournalUnavailable(f"The journal {path} cannot be read: {error}.")


def damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal {path} cannot be read: {what}. Restore it from a backup, keep what can be read with "
        "'verl-sentinel journal repair', or name another data_dir."
    )
