"""Somebody deletes, replaces or restores a file of the data folder: nothing that was acknowledged goes with it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from exporter_process import PUSH, push, running, wait_for
from exporter_scene import START, Scene, batch
from test_history import House

from exporter.app.mending import Mender
from exporter.detectors.registry import build_detectors
from exporter.protocol import RunFinished, Step, encode
from exporter.service.history import FILE_NAME as HISTORY
from exporter.service.history import Archive
from exporter.service.journal import FILE_NAME, VERSION, Journal
from exporter.service.repair import check_structure, salvage
from exporter.service.stored import JournalDamaged, JournalUnavailable

QUICK = "ended_run_grace_seconds: 0\nretention:\n  snapshot_seconds: 1\n  journal_megabytes: 0.000001\n"


def files_of(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}*"))


def test_a_new_journal_beside_an_old_history_loses_none_of_its_entries(tmp_path: Path) -> None:
    """The history says up to which position it has everything; a journal that begins anew must not stay below."""
    (tmp_path / "config.yml").write_text(QUICK)

    def steps(exporter: Any) -> int:
        return len(exporter.get("/api/v1/runs/r/steps").body.splitlines())

    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        for seq in range(1, 31):
            push(exporter, seq=seq, steps=[Step(step=seq, metrics={f"m{i}": 1.0 for i in range(20)})])
        archive = Archive(tmp_path / "data")
        wait_for(lambda: archive.pushed_bytes() == 0, exporter)
        before = archive.moved_upto()
        assert before >= 30
        exporter.stop()
        for file in files_of(tmp_path / "data", FILE_NAME):
            file.unlink()
        exporter.start()
        for seq in range(31, 41):
            push(exporter, seq=seq, steps=[Step(step=seq, metrics={"a": 1.0})])
        assert archive.last_position() >= before + 10
        assert steps(exporter) == 40
        wait_for(lambda: archive.pushed_bytes() == 0, exporter)
        assert steps(exporter) == 40
        exporter.kill()
        exporter.start()
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == 10


def test_entries_that_no_snapshot_covers_stay_whatever_the_history_says(tmp_path: Path) -> None:
    """A journal from a backup: its newest entries were moved to the history later, its snapshots are of before."""
    house = House(tmp_path)
    house.steps(1, 10)
    house.archivist._open_history().add([], 1000)
    asyncio.run(house.archivist.round(START))
    assert house.scene.journal.count() == 10
    house.restart()
    assert house.scene.run().state.steps_total == 10
    house.close()


def test_a_journal_that_is_deleted_under_the_exporter_is_put_back_with_all_that_was_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(QUICK)
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        push(exporter, run="asleep", seq=1, steps=[Step(step=7, metrics={"a": 1.0})])
        push(exporter, run="asleep", seq=2, events=[RunFinished(time=0.0, exit_code=0)])
        wait_for(lambda: 'verl_training_step{run="asleep"}' not in exporter.metrics(), exporter)
        for seq in range(1, 6):
            push(exporter, seq=seq, steps=[Step(step=seq, metrics={"a": 1.0})])
        for file in files_of(tmp_path / "data", FILE_NAME):
            file.unlink()
        answer = exporter.post(PUSH, encode(batch(seq=6, steps=[Step(step=6, metrics={"a": 1.0})])))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "was deleted" in answer.reason
        wait_for(exporter.ready, exporter)
        assert not push(exporter, seq=6, steps=[Step(step=6, metrics={"a": 1.0})]).duplicate
        exporter.kill()
        exporter.start()
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == 6
        assert len(exporter.get("/api/v1/runs/r/steps").body.splitlines()) == 6
        assert push(exporter, run="asleep", seq=2).duplicate


class Mended:
    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder, detectors=build_detectors)
        self.path = folder / FILE_NAME
        self.mender = Mender(self.scene.core, self.scene.core.recorder, Archive(folder))
        for step in range(1, 21):
            self.scene.step(step)

    def mend(self) -> None:
        self.scene.core.recorder.health.damaged = "The journal was replaced."
        asyncio.run(self.mender.look(START))
        assert self.scene.core.recorder.health.mended == 1


def test_another_file_in_the_place_of_the_journal_is_kept_and_ours_put_back(tmp_path: Path) -> None:
    house = Mended(tmp_path)
    other = tmp_path / "other"
    other.write_bytes(b"somebody's file")
    other.replace(house.path)
    with pytest.raises(JournalDamaged, match="replaced by another file"):
        house.scene.journal.append([], [])
    house.mend()
    (kept,) = tmp_path.glob("*.replaced-*")
    assert kept.read_bytes() == b"somebody's file"
    house.scene.restart()
    assert house.scene.run().state.steps_total == 20
    assert [found.step for found in Archive(tmp_path).steps("r")] == list(range(1, 21))
    house.scene.close()


def test_a_disk_that_came_back_as_another_device_is_taken_up_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open cannot be read any more; the file under the name is ours, as it was when the disk went."""
    house = Mended(tmp_path)
    house.scene.journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = tmp_path / "copy"
    copy.write_bytes(house.path.read_bytes())
    for step in range(21, 26):
        house.scene.step(step)
    for suffix in ("-wal", "-shm"):
        house.path.with_name(FILE_NAME + suffix).unlink()
    copy.replace(house.path)

    def gone(journal: Journal, path: Path) -> None:
        raise JournalUnavailable("disk I/O error")

    monkeypatch.setattr(Journal, "copy_to", gone)
    house.mend()
    house.scene.restart()
    assert house.scene.run().state.steps_total == 25
    house.scene.close()


def test_after_a_failure_no_new_journal_is_begun_where_the_old_one_is_gone(tmp_path: Path) -> None:
    """A disk that was taken away leaves an empty folder: what would be written there is hidden when it comes back."""
    house = Mended(tmp_path)
    for file in files_of(tmp_path, FILE_NAME):
        file.unlink()
    house.scene.journal.reopen()
    assert files_of(tmp_path, FILE_NAME) == []
    house.mend()
    house.scene.restart()
    assert house.scene.run().state.steps_total == 20
    house.scene.close()


def test_a_history_that_is_deleted_under_the_archivist_is_begun_anew(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.steps(1, 10)
    house.tidy()
    for file in files_of(tmp_path, HISTORY):
        file.unlink()
    house.steps(11, 20)
    house.tidy()
    assert house.exported() == list(range(11, 21))
    house.close()


def test_a_history_that_is_no_database_stops_no_ingest(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / HISTORY).write_bytes(b"not a database at all" * 500)
    (tmp_path / "config.yml").write_text(QUICK)
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        push(exporter, seq=1, steps=[Step(step=1, metrics={f"m{i}": 1.0 for i in range(200)})])
        wait_for(lambda: exporter.metrics()["verl_sentinel_history_failures_total"] > 0, exporter)
        assert "history.sqlite3 cannot be opened" in exporter.log
        (tmp_path / "data" / HISTORY).unlink()
        wait_for(lambda: Archive(tmp_path / "data").moved_upto() > 0, exporter)


def test_a_journal_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    """A process that is killed while it makes one must not leave what the next start takes for another program's."""
    seen: list[list[str]] = []

    def read_by_another() -> list[str]:
        with sqlite3.connect(f"file:{tmp_path / FILE_NAME}?mode=ro", uri=True) as db:
            return [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]

    class Watched(sqlite3.Connection):
        def executescript(self, script: str, /) -> sqlite3.Cursor:
            # SQLite asks after every ten instructions, so this sees each state that a kill could leave.
            self.set_progress_handler(lambda: seen.append(read_by_another()), 10)
            try:
                return super().executescript(script)
            finally:
                self.set_progress_handler(None, 0)

    with pytest.MonkeyPatch.context() as patch:
        connect = sqlite3.connect

        def watched(path: Any, **options: Any) -> sqlite3.Connection:
            return connect(path, **options) if options.get("uri") else connect(path, factory=Watched, **options)

        patch.setattr("exporter.service.journal.sqlite3.connect", watched)
        journal = Journal(tmp_path / FILE_NAME)
    journal.close()
    whole = read_by_another()
    assert seen
    assert all(state in ([], whole) for state in seen)
    assert {"journal", "journal_meta", "snapshots"} <= set(whole)
    assert Journal(tmp_path / FILE_NAME)._meta("version") == VERSION


def test_who_only_looks_never_deletes_the_log_of_a_journal_that_is_exchanged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's last writing connection to a file deletes the ``-wal`` of its name, whosever that is by then."""
    house = Mended(tmp_path)
    journal = house.scene.journal
    opened, exchanged = threading.Event(), threading.Event()

    def slow(old: sqlite3.Connection) -> list[str]:
        old.execute("SELECT count(*) FROM journal").fetchone()
        opened.set()
        assert exchanged.wait(30)
        return []

    monkeypatch.setattr("exporter.service.repair._structure", slow)
    looking = threading.Thread(target=check_structure, args=(house.path,))
    looking.start()
    assert opened.wait(30)
    journal.replaced(lambda path: salvage(path, 1))
    house.scene.step(21)
    log = house.path.with_name(FILE_NAME + "-wal")
    before = os.stat(log).st_ino
    exchanged.set()
    looking.join()
    assert log.exists()
    assert os.stat(log).st_ino == before
    assert len(Archive(tmp_path).entries(0, 100)) == 21
    house.scene.close()


def test_a_journal_is_mended_only_when_memory_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then nothing may be taken: what the damage took is in memory alone."""
    house = Mended(tmp_path)
    append = Journal.append

    def full(journal: Journal, entries: Any, snapshots: Any = (), **more: Any) -> Any:
        if snapshots and journal is house.scene.journal:
            raise JournalUnavailable("disk full")
        return append(journal, entries, snapshots, **more)

    house.scene.core.recorder.health.damaged = "The journal is damaged."
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        for _ in range(3):
            asyncio.run(house.mender.look(START))
    assert house.scene.core.mending
    assert sum("it is tried every second" in record.getMessage() for record in caplog.records) == 1
    assert house.scene.core.recorder.health.mended == 0
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    asyncio.run(house.mender.look(START))
    assert (house.scene.core.mending, house.scene.core.recorder.health.mended) == ("", 1)
    house.scene.close()
