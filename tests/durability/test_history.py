"""Old pushes leave the journal for the history, and go by age and size; whoever reads finds everything once."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from exporter_scene import START, Scene

from exporter.detectors.registry import build_detectors
from exporter.protocol import OpenPhase, PhaseReport, Step
from exporter.service.archivist import Archivist
from exporter.service.history import FILE_NAME, MIB, Archive, Block, History, Retention, pack
from exporter.service.stored import Entry, JournalDamaged, JournalUnavailable

DAY = 86_400.0


class House:
    """A scene with an archivist."""

    def __init__(self, folder: Path, needed: int | None = None, **retention: float) -> None:
        self.scene = Scene(folder, detectors=build_detectors, ended_grace=60.0)
        self.folder = folder
        self.needed = needed
        self.retention = Retention(**{"journal_megabytes": 0.001, **retention})
        self.archive = Archive(folder)
        self._furnish()

    def _furnish(self) -> None:
        core = self.scene.core
        self.archivist = Archivist(core, core.recorder, self.folder, self.retention, lambda: self.needed)

    def steps(self, first: int, last: int, run: str = "r") -> None:
        for step in range(first, last + 1):
            metrics: dict[str, Any] = {f"own/metric {i}": step + i / 7 for i in range(20)}
            self.scene.push(run=run, steps=[Step(step=step, metrics=metrics)])

    def tidy(self) -> None:
        self.scene.core.snapshot_all()
        asyncio.run(self.archivist.round(self.scene.now))

    def exported(self, run: str = "r") -> list[int]:
        return [found.step for found in self.archive.steps(run)]

    def restart(self) -> None:
        self.archivist.close()
        self.scene.restart()
        self._furnish()

    def close(self) -> None:
        self.archivist.close()
        self.scene.close()


@pytest.fixture
def house(tmp_path: Path) -> Any:
    house = House(tmp_path)
    yield house
    house.close()


def test_what_moved_to_the_history_is_exported_as_it_was_pushed_and_in_order(house: House) -> None:
    house.steps(1, 20)
    house.steps(1, 5, run="other")
    house.tidy()
    assert house.scene.journal.count() == 0
    house.steps(21, 25)
    assert house.exported() == list(range(1, 26))
    assert house.exported("other") == [1, 2, 3, 4, 5]
    assert house.exported("unknown") == []
    last = [*house.archive.steps("r")][-1]
    assert last.metrics == {f"own/metric {i}": 25 + i / 7 for i in range(20)}
    assert (last.attempt, last.at, last.sender) == (1, START, "trainer-1")
    house.restart()
    assert house.scene.run().state.steps_total == 25
    assert house.archivist.health.error == ""


def test_what_no_snapshot_covers_stays_in_the_journal(house: House) -> None:
    house.steps(1, 10)
    house.scene.core.snapshot_all()
    house.steps(11, 20)
    asyncio.run(house.archivist.round(house.scene.now))
    assert [entry.position for entry in house.scene.journal.read()] == list(range(11, 21))
    house.restart()
    assert house.scene.run().state.steps_total == 20
    assert house.exported() == list(range(1, 21))


def test_what_a_sink_has_not_sent_yet_stays_in_the_journal(tmp_path: Path) -> None:
    house = House(tmp_path, needed=4)
    house.steps(1, 10)
    house.tidy()
    assert [entry.position for entry in house.archive.entries(0, 100)] == [5, 6, 7, 8, 9, 10]
    assert (house.archive.moved_upto(), house.archive.last_position()) == (4, 10)
    house.close()


def test_heartbeats_leave_no_trace_once_a_snapshot_covers_them(tmp_path: Path) -> None:
    house = House(tmp_path, journal_megabytes=64.0)
    house.steps(1, 1)
    for _ in range(50):
        house.scene.push(phase=PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=1.0)]))
    house.tidy()
    assert [entry.kind for entry in house.scene.journal.read()] == ["batch"]
    house.close()


def test_a_crash_between_moving_and_deleting_neither_loses_nor_doubles(house: House) -> None:
    house.steps(1, 10)
    house.scene.core.snapshot_all()
    history = History(house.folder / FILE_NAME)
    history.add(pack(house.scene.journal.read()), 6)  # says 6, though blocks hold all ten: only `upto` counts below
    history.close()
    assert house.exported()[:10] == list(range(1, 11))
    house.restart()
    house.tidy()
    assert house.scene.journal.count() == 0
    house.restart()
    assert house.scene.run().state.steps_total == 10


def test_reading_while_pushes_are_moved_finds_every_step_once(tmp_path: Path) -> None:
    house = House(tmp_path, journal_megabytes=0.002)
    done = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        known = 0
        while not done.is_set():
            found = house.exported()
            if found != list(range(1, len(found) + 1)) or len(found) < known:
                wrong.append(found)
                return
            known = len(found)

    reader = threading.Thread(target=read)
    reader.start()
    for first in range(1, 300, 6):
        house.steps(first, first + 5)
        house.tidy()
    done.set()
    reader.join()
    assert not wrong
    assert house.archivist.health.moved_entries > 200
    house.close()


def test_steps_go_when_they_are_too_old(tmp_path: Path) -> None:
    house = House(tmp_path, days=2.0)
    house.steps(1, 5)
    house.tidy()
    house.scene.now += 1.5 * DAY
    house.steps(6, 8)
    house.tidy()
    assert house.exported() == list(range(1, 9))
    house.scene.now += 1.0 * DAY
    house.tidy()
    assert house.exported() == [6, 7, 8]
    assert house.scene.run().state.steps_total == 8, "the run itself goes on"
    house.close()


def test_the_oldest_steps_go_when_the_history_is_too_large(tmp_path: Path) -> None:
    history = History(tmp_path / FILE_NAME)
    numbers = itertools.count(1)
    for _ in range(200):
        history.add([Block("r", next(numbers), 1.0, bytes(100_000))], 1)
    assert history.bytes() > 19 * MIB
    while history.trim(before=0.0, most_bytes=5 * MIB):
        assert history.bytes() > 0
    assert history.bytes() <= 5 * MIB
    left = [row[0] for row in history._db.execute("SELECT last_position FROM blocks ORDER BY number")]
    assert left
    assert left == list(range(201 - len(left), 201))
    history.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 8 * MIB, "the space is given back to the file system"


def test_a_run_nobody_heard_of_for_long_is_forgotten_whole(tmp_path: Path) -> None:
    house = House(tmp_path, days=10.0)
    house.steps(1, 5, run="old")
    house.tidy()
    house.scene.now += 11 * DAY
    house.steps(1, 5, run="new")
    house.scene.tick()
    house.tidy()
    assert house.archivist.health.forgotten_runs == 1
    house.restart()
    assert house.scene.core.find("old") is None
    assert house.exported("old") == []
    assert house.exported("new") == [1, 2, 3, 4, 5]
    house.close()


def test_a_history_that_cannot_be_written_is_said_and_tried_again(house: House) -> None:
    house.steps(1, 10)
    house.archivist._open_history()._db.execute("PRAGMA query_only = 1")
    house.tidy()
    assert "history" in house.archivist.health.error
    assert house.archivist.health.failures == 1
    assert house.scene.journal.count() == 10
    house.archivist._open_history()._db.execute("PRAGMA query_only = 0")
    house.tidy()
    assert house.archivist.health.error == ""
    assert house.scene.journal.count() == 0
    assert house.exported() == list(range(1, 11))


def test_a_block_that_does_not_match_its_checksum_ends_the_export_with_a_sentence(house: House) -> None:
    house.steps(1, 10)
    house.tidy()
    with sqlite3.connect(house.folder / FILE_NAME) as db:
        db.execute("UPDATE blocks SET body = x'00'")
    db.close()
    # `journal repair` has nothing to do with this file.
    with pytest.raises(JournalDamaged, match=r"^The history .* does not match its checksum\. .* or delete it"):
        house.exported()


def test_an_archive_of_no_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="cannot be read"):
        list(Archive(tmp_path / "none").steps("r"))


@pytest.mark.parametrize("wrong", [{"days": 0}, {"gigabytes": -1}, {"journal_megabytes": float("nan")}])
def test_a_retention_that_keeps_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="it must be more than 0"):
        Retention(**wrong)


def test_only_batches_are_packed_and_a_run_has_one_block() -> None:
    entries = [Entry("batch", 1.0, "r", b"\x80", "s", seq, seq) for seq in (1, 2)]
    blocks = pack([*entries, Entry("look", 1.0, "r", b"", None, None, 3), Entry("batch", 2.0, "q", b"\x80", "s", 1, 4)])
    assert [(block.run_id, block.last_position) for block in blocks] == [("r", 2), ("q", 4)]
