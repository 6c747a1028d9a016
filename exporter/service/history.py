"""The history: the steps of every run, compressed, for export. Written by the archivist, read by whoever exports.

One SQLite file of its own, so that writing it never waits for the journal, nor the journal for it. A *block* is some
consecutive entries of one run, compressed; ``upto`` is the position up to which everything has been moved here from the
journal. A block goes when it is older than the retention, and the oldest go first when the file is too large.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from backports import zstd

from exporter.protocol import decode_batch, number
from exporter.service.identity import identity
from exporter.service.journal import FILE_NAME as JOURNAL_FILE_NAME
from exporter.service.stored import (
    Entry,
    JournalDamaged,
    JournalUnavailable,
    Snapshot,
    damaged,
    is_damage,
    read_entries,
    read_snapshot,
    unreadable,
)

FILE_NAME = "history.sqlite3"
LEVEL = 3
GIB = 1024**3
MIB = 1024**2
SLICE_BYTES = 4 * MIB
"""Pushes that are read at a time."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    last_position INTEGER NOT NULL,
    last_at REAL NOT NULL,
    body BLOB NOT NULL,
    crc INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS blocks_of_run ON blocks (run_id, last_position);
CREATE INDEX IF NOT EXISTS blocks_by_age ON blocks (last_at);
"""


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``retention`` section of the configuration."""

    days: float = 30.0
    """Steps, and runs that nobody heard of, go after as long."""
    gigabytes: float = 20.0
    """Size of the history (GiB); beyond it the oldest steps of any run go first."""
    journal_megabytes: float = 64.0
    """Pushes that stay in the journal (MiB) before they are compressed into the history: the more at once, the smaller
    they become."""
    snapshot_seconds: float = 300.0
    """A run that changed is written as a whole after as long: what a start after a crash has to work through again."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be more than 0")


class ArchivedStep(msgspec.Struct, frozen=True):
    """Metrics of one step, or of a part of it, as they were pushed."""

    step: int
    attempt: int
    at: float
    """When it arrived, Unix seconds of the exporter's clock."""
    sender: str
    metrics: dict[str, float]
    """Under verl's own keys."""


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a block: the push as it is in the journal."""

    position: int
    at: float
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_packed = msgspec.msgpack.Decoder(list[_Packed])


@dataclass(frozen=True, slots=True)
class Block:
    """Pushes of one run, in order, compressed."""

    run_id: str
    last_position: int
    last_at: float
    body: bytes


def pack(entries: Iterable[Entry]) -> list[Block]:
    """Entries in the order of the journal as blocks, one a run; only batches are kept."""
    by_run: dict[str, list[_Packed]] = {}
    for entry in entries:
        if entry.kind == "batch":
            by_run.setdefault(entry.run_id, []).append(_Packed(entry.position, entry.at, entry.body))
    return [
        Block(run_id, those[-1].position, those[-1].at, zstd.compress(_encode(those), LEVEL))
        for run_id, those in by_run.items()
    ]


def _steps_of(body: bytes, at: float) -> Iterator[ArchivedStep]:
    """The steps of one push. Raises ``msgspec.DecodeError`` where it cannot be read."""
    batch = decode_batch(body)
    for step in batch.steps:
        metrics = {key: number(value) for key, value in step.metrics.items()}
        yield ArchivedStep(step.step, batch.run.attempt, at, batch.sender.id, metrics)


class History:
    """The file, for writing. One thread at a time may use it. Raises :class:`JournalUnavailable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            try:
                # Freed pages are given back to the file system; has to be set before there is a table.
                self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                # Some builds of SQLite write zeros over what is deleted, which doubles what a deletion costs.
                self._db.execute("PRAGMA secure_delete = OFF")
                self._db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
            except sqlite3.Error:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise self._failed("opened", error) from error
        self._file = identity(path)

    def close(self) -> None:
        self._db.close()

    def in_place(self) -> bool:
        """Whether what is open is what others find under the name: it may have been deleted, or replaced."""
        return self._file is not None and self._file == identity(self.path)

    def upto(self) -> int:
        """Position up to which the entries of the journal are here."""
        with self._reading():
            return _upto(self._db)

    def add(self, blocks: Sequence[Block], upto: int) -> None:
        """Write blocks that hold all steps up to a position of the journal, in one transaction."""
        with self._writing():
            self._db.executemany(
                "INSERT INTO blocks (run_id, last_position, last_at, body, crc) VALUES (?, ?, ?, ?, ?)",
                [(b.run_id, b.last_position, b.last_at, b.body, zlib.crc32(b.body)) for b in blocks],
            )
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('upto', ?)", (upto,))

    def forget(self, run_ids: Sequence[str]) -> None:
        """Remove all blocks of these runs."""
        with self._writing():
            for run_id in run_ids:
                self._db.execute("DELETE FROM blocks WHERE run_id = ?", (run_id,))

    def trim(self, *, before: float, most_bytes: int, slice_blocks: int = 500) -> int:
        """Remove some of what the retention says: blocks older than ``before`` (Unix seconds), then the oldest while
        the file is too large. At most ``slice_blocks``; how many went."""
        with self._writing():
            gone = self._db.execute(
                "DELETE FROM blocks WHERE number IN"
                " (SELECT number FROM blocks WHERE last_at < ? ORDER BY last_at LIMIT ?)",
                (before, slice_blocks),
            ).rowcount
            if not gone and self.bytes() > most_bytes:
                gone = self._db.execute(
                    "DELETE FROM blocks WHERE number IN (SELECT number FROM blocks ORDER BY number LIMIT ?)",
                    (max(1, slice_blocks // 10),),
                ).rowcount
        with self._reading():
            # As a script: of a statement that gives no rows, execute() takes one step, which frees a single page.
            self._db.executescript("PRAGMA incremental_vacuum(2000)")
        return gone

    def bytes(self) -> int:
        """Size of what is in the file, without pages that are free."""
        with self._reading():
            pages, free, size = (
                int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * size

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            raise self._failed("written", error) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failed("read", error) from error

    def _failed(self, what: str, error: sqlite3.Error) -> JournalUnavailable:
        return JournalUnavailable(f"The history {self.path} cannot be {what}: {error}.")


class Archive:
    """Reads journal and history of a data folder, also while an exporter writes them. Any thread; one at a time.

    Every call opens the files anew, so nothing is held between two calls.
    """

    def __init__(self, data_dir: Path) -> None:
        self._journal = data_dir / JOURNAL_FILE_NAME
        self._history = data_dir / FILE_NAME

    def steps(self, run_id: str) -> Iterator[ArchivedStep]:
        """All steps of a run, in the order in which they arrived; parts of one step may come as several.

        Raises :class:`JournalUnavailable` where a file cannot be read.
        """
        at = 0
        while True:
            moved = self.moved_upto()
            if moved > at:
                yield from self._archived(run_id, at, moved)
                at = moved
            with _reader(self._journal) as journal:
                found = _bounded(read_entries(journal, self._journal, at, run_id=run_id), SLICE_BYTES)
            if self.moved_upto() > at:
                continue  # what was moved meanwhile is missing here; it is in the history now
            if not found:
                return
            for entry in found:
                try:
                    yield from _steps_of(entry.body, entry.at)
                except msgspec.DecodeError as error:
                    raise damaged(self._journal, f"entry {entry.position}: {error}") from error
            at = found[-1].position

    def _archived(self, run_id: str, after: int, upto: int) -> Iterator[ArchivedStep]:
        with _reader(self._history) as history:
            try:
                query = (
                    "SELECT number, body, crc FROM blocks WHERE run_id = ? AND last_position > ? ORDER BY last_position"
                )
                for block, body, crc in history.execute(query, (run_id, after)):
                    if zlib.crc32(body) != crc:
                        raise _damaged(self._history, f"block {block} does not match its checksum")
                    for packed in _packed.decode(zstd.decompress(body)):
                        if after < packed.position <= upto:
                            yield from _steps_of(packed.body, packed.at)
            except sqlite3.Error as error:
                raise _unreadable(self._history, error) from error
            except (zstd.ZstdError, msgspec.DecodeError) as error:
                raise _damaged(self._history, str(error)) from error

    def entries(self, after: int, limit: int, most_bytes: int = SLICE_BYTES) -> list[Entry]:
        """Entries of the journal with a position above ``after``, in order: at most ``limit``, and no more of them than
        have ``most_bytes`` together, but one in any case."""
        with _reader(self._journal) as journal:
            return _bounded(read_entries(journal, self._journal, after, limit=limit), most_bytes)

    def snapshot(self, run_id: str) -> Snapshot | None:
        """The snapshot of a run."""
        with _reader(self._journal) as journal:
            return read_snapshot(journal, self._journal, run_id)

    def run_ids(self) -> set[str]:
        """Runs that have a snapshot."""
        with _reader(self._journal) as journal:
            try:
                return {run_id for (run_id,) in journal.execute("SELECT run_id FROM snapshots")}
            except sqlite3.Error as error:
                raise unreadable(self._journal, error) from error

    def first_position(self) -> int:
        """Position of the oldest entry that is still in the journal; 0 where it is empty."""
        return self._one("SELECT min(position) FROM journal")

    def last_position(self) -> int:
        """Position of the newest entry that was ever written, also where it is not in the journal any more."""
        return self._one(
            "SELECT max(coalesce((SELECT max(position) FROM journal), 0),"
            " coalesce((SELECT value FROM journal_meta WHERE key = 'highest'), 0))"
        )

    def moved_upto(self) -> int:
        """Position up to which the journal's entries were moved to the history."""
        if not self._history.exists():
            return 0
        with _reader(self._history) as history:
            try:
                return _upto(history)
            except sqlite3.Error as error:
                raise _unreadable(self._history, error) from error

    def pushed_bytes(self) -> int:
        """Size of all pushes in the journal."""
        return self._one("SELECT sum(length(body)) FROM journal WHERE kind = 'batch'")

    def _one(self, query: str) -> int:
        with _reader(self._journal) as journal:
            try:
                return int(journal.execute(query).fetchone()[0] or 0)
            except sqlite3.Error as error:
                raise unreadable(self._journal, error) from error


def _bounded(entries: Iterator[Entry], most_bytes: int) -> list[Entry]:
    found: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.body)
        if found and size > most_bytes:
            break
        found.append(entry)
    return found


def _damaged(history: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"The history {history} cannot be read: {what}. Restore it from a backup, or delete it while the exporter is "
        "stopped: then the steps in it are missing from exports, and nothing else."
    )


def _unreadable(history: Path, error: Exception) -> JournalUnavailable:
    if is_damage(error):
        return _damaged(history, str(error))
    return JournalUnavailable(f"The history {history} cannot be read: {error}.")


@contextlib.contextmanager
def _reader(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads. Raises :class:`JournalUnavailable`."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.Error as error:
        raise JournalUnavailable(f"{path} cannot be read: {error}.") from error
    with contextlib.closing(db):
        yield db


def _upto(db: sqlite3.Connection) -> int:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return 0  # it is being made
    row = db.execute("SELECT value FROM meta WHERE key = 'upto'").fetchone()
    return int(row[0]) if row else 0
