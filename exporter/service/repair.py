"""A damaged journal: what is wrong with it, and a new one from all that can still be read. Used by the app and the CLI.

The old file is never changed: it is kept under another name, and the new one takes its place in one step. What was in
the damaged part is gone, and is counted; where the exporter is running, its memory makes up for it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.service.journal import COLUMNS, VERSION, Journal
from exporter.service.stored import JournalUnavailable, Snapshot, damaged

CHUNK = 512
"""Positions that are read at once; where that fails, in halves."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """What came of it."""

    entries: int
    """Entries in the new file."""
    lost_entries: int
    """Entries that were there and cannot be read; more may have been, where the damage hides them."""
    snapshots: int
    lost_snapshots: int
    kept: Path
    """Where the damaged file is now."""

    @property
    def sentence(self) -> str:
        lost = f"{self.lost_entries} entries and {self.lost_snapshots} snapshots of runs could not be read"
        return f"{self.entries} entries and {self.snapshots} snapshots were kept, {lost}; the old file is {self.kept}"


def problems(path: Path) -> list[str]:
    """What is wrong with a journal, as sentences; empty when nothing is. Reads all of it.

    Raises :class:`JournalUnavailable` where it is not there or is no journal of this version.
    """
    with _old(path, mode="ro") as old:
        found = _structure(old)
        for query, what, all_of_them in (
            ("SELECT position, body, crc FROM journal", "Entry", "The entries"),
            ("SELECT run_id, body, crc FROM snapshots", "The snapshot of run", "The snapshots"),
        ):
            try:
                for name, body, crc in old.execute(query):
                    if zlib.crc32(body) != crc:
                        found.append(f"{what} {name} does not match its checksum.")
            except sqlite3.Error as error:
                found.append(f"{all_of_them} cannot be read to the end: {error}.")
    return found


def check_structure(path: Path) -> None:
    """Let SQLite look at every page. Raises :class:`JournalUnavailable`, :class:`JournalDamaged` where one is wrong."""
    with _old(path, mode="ro") as old:
        found = _structure(old)
        if found:
            raise damaged(path, found[0].removesuffix("."))


def salvage(path: Path, stamp: int, *, highest: int = 0) -> Salvage:
    """Put a new journal in the place of a damaged one. Nobody else may use the file meanwhile.

    Args:
        path: the journal.
        stamp: goes into the name under which the old file is kept, Unix seconds.
        highest: a position that is known to have been given; positions go on above it.

    Raises :class:`JournalUnavailable` where it is no journal at all, or the new one cannot be written.
    """
    new_path, kept = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in ("", "-wal", "-shm"):
        new_path.with_name(new_path.name + suffix).unlink(missing_ok=True)
    new = Journal(new_path)
    try:
        with _old(path, mode="rw") as old:
            lost = _Lost()
            entries = new.take_over(_rows(old, lost), highest=max(highest, _highest(old)), delivered=_delivered(old))
            snapshots = 0
            for snapshot in _snapshots(old, lost):
                new.append([], [snapshot])
                snapshots += 1
            with contextlib.suppress(sqlite3.Error):
                # As much as can be into the file itself: until it is exchanged, a crash must find all of it there.
                old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        new.close()
    try:
        _exchange(new_path, path, kept)
    except OSError as error:
        raise JournalUnavailable(f"The repaired journal cannot be put in its place: {error}.") from error
    return Salvage(entries, lost.entries, snapshots, lost.snapshots, kept)


def put_back(copy: Path, path: Path, stamp: int) -> None:
    """Give a copy of the journal its name again; what has the name is kept beside it. Nobody else may use either.

    Raises :class:`JournalUnavailable`.
    """
    try:
        if path.exists():
            path.replace(path.with_name(f"{path.name}.replaced-{stamp}"))
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        copy.replace(path)
    except OSError as error:
        raise JournalUnavailable(f"The journal cannot be put back in its place: {error}.") from error


@dataclass
class _Lost:
    entries: int = 0
    snapshots: int = 0


@contextlib.contextmanager
def _old(path: Path, *, mode: str) -> Iterator[sqlite3.Connection]:
    """Only who may exchange the file opens it for writing (``rw``): the last writing connection tidies up the log by
    its name, and that may be another file's by then."""
    if not path.is_file():
        raise JournalUnavailable(f"There is no journal at {path}.")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.Error as error:
        raise JournalUnavailable(f"{path} cannot be opened: {error}.") from error
    with contextlib.closing(db):
        try:
            version = db.execute("SELECT value FROM journal_meta WHERE key = 'version'").fetchone()
        except sqlite3.Error as error:
            raise JournalUnavailable(f"{path} is no journal that can be read at all: {error}.") from error
        if version is None or version[0] != VERSION:
            raise JournalUnavailable(f"{path} is a journal of another version than {VERSION}.")
        yield db


def _structure(old: sqlite3.Connection) -> list[str]:
    try:
        said = [str(row[0]) for row in old.execute("PRAGMA quick_check(20)")]
    except sqlite3.Error as error:
        said = [str(error)]
    return [] if said == ["ok"] else [f"{' '.join(line.split())}." for line in said]


def _one(old: sqlite3.Connection, query: str) -> int:
    try:
        row = old.execute(query).fetchone()
    except sqlite3.Error:
        return 0
    return int(row[0] or 0) if row else 0


def _highest(old: sqlite3.Connection) -> int:
    queries = (
        "SELECT position FROM journal ORDER BY position DESC LIMIT 1",
        "SELECT value FROM journal_meta WHERE key = 'highest'",
        "SELECT max(position) FROM snapshots",
    )
    return max(_one(old, query) for query in queries)


def _delivered(old: sqlite3.Connection) -> int:
    return _one(old, "SELECT value FROM journal_meta WHERE key = 'delivered'")


def _rows(old: sqlite3.Connection, lost: _Lost) -> Iterator[tuple[Any, ...]]:
    """Every row of the journal that can be read and is as it was written."""
    first = _one(old, "SELECT position FROM journal ORDER BY position LIMIT 1") or 1
    waiting = [(start, start + CHUNK) for start in range(first, _highest(old) + 1, CHUNK)][::-1]
    while waiting:
        start, end = waiting.pop()
        try:
            query = f"SELECT {COLUMNS} FROM journal WHERE position >= ? AND position < ? ORDER BY position"
            rows = old.execute(query, (start, end)).fetchall()
        except sqlite3.Error:
            middle = (start + end) // 2
            if end - start > 1:
                waiting += [(middle, end), (start, middle)]
            else:
                lost.entries += 1
            continue
        for row in rows:
            if isinstance(row[6], bytes) and zlib.crc32(row[6]) == row[7]:
                yield row
            else:
                lost.entries += 1


def _snapshots(old: sqlite3.Connection, lost: _Lost) -> Iterator[Snapshot]:
    for number in range(1, _one(old, "SELECT max(rowid) FROM snapshots") + 1):
        query = "SELECT run_id, position, heard, body, summary, crc FROM snapshots WHERE rowid = ?"
        try:
            row = old.execute(query, (number,)).fetchone()
        except sqlite3.Error:
            lost.snapshots += 1
            continue
        if row is None:
            continue
        if isinstance(row[3], bytes) and zlib.crc32(row[3]) == row[5]:
            yield Snapshot(*row[:5])
        else:
            lost.snapshots += 1


def _exchange(new: Path, path: Path, kept: Path) -> None:
    """The old file gets another name, then the new one its name; a crash in between leaves the old one in place."""
    os.link(path, kept)
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            # What SQLite has beside the old file must never be taken for the new one's.
            beside.replace(kept.with_name(kept.name + suffix))
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
