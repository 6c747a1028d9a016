"""SQLite store of the recovery engine: recoveries, alerts seen, audit log. Made by the app, used by the engine only.

One transaction covers a change of state and its audit line, and it is on disk before the caller goes on, so a process
that is killed at any moment finds the state as it last said it was. The audit table refuses UPDATE and DELETE.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from exporter.recovery.facts import Alert
from exporter.recovery.record import ACTIVE, AuditEntry, Recovery, spell_numbers

SEEN_SECONDS = 30 * 86_400.0
"""Alerts that were last heard longer ago are forgotten; the incidents answered by a recovery never are."""

_ACTIVE_SQL = ", ".join(f"'{stage}'" for stage in ACTIVE)

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS recoveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    has_result INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS recoveries_of_run ON recoveries (run_id, number);
CREATE UNIQUE INDEX IF NOT EXISTS one_active_recovery_a_run ON recoveries (run_id) WHERE stage IN ({_ACTIVE_SQL});
CREATE TABLE IF NOT EXISTS aborts_asked (
    recovery_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS alerts_seen (
    fingerprint TEXT NOT NULL,
    starts_at TEXT NOT NULL,
    run_id TEXT NOT NULL,
    state TEXT NOT NULL,
    kind TEXT NOT NULL,
    recovery_id TEXT NOT NULL,
    first_at REAL NOT NULL,
    last_at REAL NOT NULL,
    times INTEGER NOT NULL,
    alert BLOB NOT NULL,
    PRIMARY KEY (fingerprint, starts_at)
);
CREATE INDEX IF NOT EXISTS alerts_pending ON alerts_seen (run_id) WHERE state = 'pending';
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    run_id TEXT NOT NULL,
    recovery_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    summary TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_of_run ON audit (run_id, id);
CREATE INDEX IF NOT EXISTS audit_of_recovery ON audit (recovery_id, id);
CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
"""

_encode = msgspec.json.encode
_recovery = msgspec.json.Decoder(Recovery)
_alert = msgspec.json.Decoder(Alert)
_data = msgspec.json.Decoder(dict[str, Any])


class SeenAlert(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one alert, by its identity (fingerprint, startsAt)."""

    alert: Alert
    state: str
    """``pending``, ``decided``, ``refused`` or ``resolved``."""
    kind: str
    """Kind of the last answer, so that the same answer is audited once."""
    recovery_id: str
    first_at: float
    times: int


class RecoveryStore:
    """``path`` is a file of its own in the data directory, or ``:memory:``. Not locked: the engine holds a lock."""

    def __init__(self, path: Path | str) -> None:
        """A disk that does not work now is found at each use, as ``sqlite3.OperationalError``, until it does.

        Raises ``OSError`` with a sentence where the file is not such a database: that does not pass.
        """
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._listed: dict[str, frozenset[str]] = {}
        self._listed_at = -1
        self._found_read_only = False
        self._audit_counts: Counter[str] = Counter()
        self._counted_upto = 0  # id of the newest line of the audit log that is in them
        try:
            self._opened = _opened(path)
        except sqlite3.OperationalError:
            return
        except sqlite3.Error as error:
            raise OSError(f"The recovery store {path} cannot be used ({error}): check the data directory.") from error

    @property
    def _db(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = _opened(self._path)
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def changes(self) -> int:
        """Grows with every write, so that a reader knows whether what it read before still holds."""
        return 0 if self._opened is None else self._opened.total_changes

    def run_ids(self) -> list[str]:
        """Runs that have had a recovery."""
        return [run_id for (run_id,) in self._db.execute("SELECT DISTINCT run_id FROM recoveries")]

    def concerned(self) -> frozenset[str]:
        """Runs with an active recovery or an alert that waits."""
        return self._runs_of("active") | self._runs_of("pending")

    def _runs_of(self, what: str) -> frozenset[str]:
        """Runs with an active recovery, or with an alert that waits: asked at every step, and nearly always none."""
        if self._listed_at != self.changes:
            active = self._db.execute(f"SELECT run_id FROM recoveries WHERE stage IN ({_ACTIVE_SQL})").fetchall()
            pending = self._db.execute("SELECT DISTINCT run_id FROM alerts_seen WHERE state = 'pending'").fetchall()
            aborts = self._db.execute("SELECT DISTINCT run_id FROM aborts_asked").fetchall()
            rows = {"active": active, "pending": pending, "aborts": aborts}
            self._listed = {name: frozenset(run_id for (run_id,) in found) for name, found in rows.items()}
            self._listed_at = self.changes
        return self._listed[what]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on disk when it returns."""
        if self._found_read_only:
            # A connection that found the disk read-only stays so when the disk can be written again.
            self.close()
            self._opened = None
            self._found_read_only = False
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            self._listed_at = -1
            self._found_read_only = isinstance(error, sqlite3.OperationalError) and "readonly" in str(error)
            # SQLite may have ended the transaction by itself (a full disk does that): the reason must not be lost.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def save(self, recovery: Recovery) -> None:
        """Insert or update. Raises ``sqlite3.IntegrityError`` if the run has another active recovery."""
        self._db.execute(
            "INSERT INTO recoveries (id, run_id, stage, has_result, record) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET stage = excluded.stage, has_result = excluded.has_result,"
            " record = excluded.record",
            (recovery.id, recovery.run_id, recovery.stage, recovery.has_result, _encode(recovery)),
        )
        if recovery.stage == "aborted":
            if recovery.abort_answered:
                self._db.execute("DELETE FROM aborts_asked WHERE recovery_id = ?", (recovery.id,))
            else:
                asked = (recovery.id, recovery.run_id)
                self._db.execute("INSERT OR IGNORE INTO aborts_asked VALUES (?, ?)", asked)

    def get(self, recovery_id: str) -> Recovery | None:
        row = self._db.execute("SELECT record FROM recoveries WHERE id = ?", (recovery_id,)).fetchone()
        return None if row is None else _recovery.decode(row[0])

    def active(self, run_id: str) -> Recovery | None:
        if run_id not in self._runs_of("active"):
            return None
        row = self._db.execute(
            f"SELECT record FROM recoveries WHERE run_id = ? AND stage IN ({_ACTIVE_SQL})", (run_id,)
        ).fetchone()
        return None if row is None else _recovery.decode(row[0])

    def all_active(self) -> list[Recovery]:
        rows = self._db.execute(f"SELECT record FROM recoveries WHERE stage IN ({_ACTIVE_SQL}) ORDER BY number")
        return [_recovery.decode(row[0]) for row in rows]

    def unanswered_aborts(self, run_id: str | None = None) -> list[Recovery]:
        """Aborted recoveries, of one run or of all, whose supervisor has not said what became of the command."""
        if run_id not in self._runs_of("aborts") if run_id is not None else not self._runs_of("aborts"):
            return []
        rows = self._db.execute(
            "SELECT record FROM recoveries WHERE id IN (SELECT recovery_id FROM aborts_asked)"
            " AND run_id = COALESCE(?, run_id) ORDER BY number",
            (run_id,),
        )
        return [_recovery.decode(row[0]) for row in rows]

    def history(self, run_id: str) -> list[Recovery]:
        """All recoveries of a run, newest first."""
        rows = self._db.execute("SELECT record FROM recoveries WHERE run_id = ? ORDER BY number DESC", (run_id,))
        return [_recovery.decode(row[0]) for row in rows]

    def last(self, run_id: str) -> Recovery | None:
        """The newest recovery of a run."""
        row = self._db.execute(
            "SELECT record FROM recoveries WHERE run_id = ? ORDER BY number DESC LIMIT 1", (run_id,)
        ).fetchone()
        return None if row is None else _recovery.decode(row[0])

    def last_with_result(self, run_id: str) -> Recovery | None:
        """The newest recovery of a run with :attr:`Recovery.has_result`."""
        row = self._db.execute(
            "SELECT record FROM recoveries WHERE run_id = ? AND has_result ORDER BY number DESC LIMIT 1", (run_id,)
        ).fetchone()
        return None if row is None else _recovery.decode(row[0])

    def newest(self, limit: int) -> list[Recovery]:
        rows = self._db.execute("SELECT record FROM recoveries ORDER BY number DESC LIMIT ?", (limit,))
        return [_recovery.decode(row[0]) for row in rows]

    def outcomes(self, run_id: str) -> dict[str, int]:
        """Number of recoveries of a run by stage."""
        return dict(
            self._db.execute("SELECT stage, COUNT(*) FROM recoveries WHERE run_id = ? GROUP BY stage", (run_id,))
        )

    def seen(self, alert: Alert) -> SeenAlert | None:
        row = self._db.execute(
            "SELECT alert, state, kind, recovery_id, first_at, times FROM alerts_seen"
            " WHERE fingerprint = ? AND starts_at = ?",
            (alert.fingerprint, alert.starts_at),
        ).fetchone()
        return None if row is None else _seen(row)

    def mark(self, alert: Alert, state: str, kind: str, recovery_id: str, now: float) -> None:
        """Record what became of an alert; the first time it was heard is kept."""
        self._db.execute(
            "INSERT INTO alerts_seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?)"
            " ON CONFLICT (fingerprint, starts_at) DO UPDATE SET state = excluded.state, kind = excluded.kind,"
            " recovery_id = excluded.recovery_id, last_at = excluded.last_at, times = times + 1",
            (alert.fingerprint, alert.starts_at, alert.run_id, state, kind, recovery_id, now, now, _encode(alert)),
        )

    def pending(self, run_id: str) -> list[SeenAlert]:
        if run_id not in self._runs_of("pending"):
            return []
        rows = self._db.execute(
            "SELECT alert, state, kind, recovery_id, first_at, times FROM alerts_seen"
            " WHERE run_id = ? AND state = 'pending' ORDER BY first_at",
            (run_id,),
        ).fetchall()
        return [_seen(row) for row in rows]

    def forget_alerts(self, now: float) -> None:
        """Drop alerts that are long past, so that the table does not grow for ever."""
        self._db.execute("DELETE FROM alerts_seen WHERE last_at < ? AND state <> 'pending'", (now - SEEN_SECONDS,))

    def note(self, now: float, run_id: str, recovery_id: str, kind: str, summary: str, *, data: dict[str, Any]) -> None:
        """Append one line to the audit log."""
        self._db.execute(
            "INSERT INTO audit (at, run_id, recovery_id, kind, summary, data) VALUES (?, ?, ?, ?, ?, ?)",
            (now, run_id, recovery_id, kind, summary, _encode(spell_numbers(data))),
        )

    def audit_counts(self) -> dict[str, int]:
        """Lines of the audit log by kind. Only those since the last call are counted: none is changed or deleted."""
        counted = self._db.execute(
            "SELECT kind, COUNT(*), MAX(id) FROM audit WHERE id > ? GROUP BY kind", (self._counted_upto,)
        )
        for kind, count, newest in counted.fetchall():
            self._audit_counts[kind] += count
            self._counted_upto = max(self._counted_upto, newest)
        return dict(self._audit_counts)

    def audit(
        self, limit: int, *, run_id: str = "", recovery_id: str = "", kind: str = "", before: int | None = None
    ) -> list[AuditEntry]:
        """Newest first; those of a run, of a recovery, of a kind, and older than the line ``before``."""
        wanted = {"run_id = ?": run_id, "recovery_id = ?": recovery_id, "kind = ?": kind, "id < ?": before}
        given = {condition: value for condition, value in wanted.items() if value not in ("", None)}
        where = f" WHERE {' AND '.join(given)}" if given else ""
        rows = self._db.execute(
            f"SELECT id, at, run_id, recovery_id, kind, summary, data FROM audit{where} ORDER BY id DESC LIMIT ?",
            (*given.values(), limit),
        )
        return [
            AuditEntry(
                id=row[0], at=row[1], run_id=row[2], recovery_id=row[3], kind=row[4], summary=row[5],
                data=_data.decode(row[6]),
            )
            for row in rows
        ]  # fmt: skip


def _opened(path: Path | str) -> sqlite3.Connection:
    # Nobody else has business with this file. Where a person's shell locks it, the event loop waits for as long, so the
    # engine is rather told later.
    db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=0.25)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _seen(row: tuple[Any, ...]) -> SeenAlert:
    return SeenAlert(
        alert=_alert.decode(row[0]), state=row[1], kind=row[2], recovery_id=row[3], first_at=row[4], times=row[5]
    )
