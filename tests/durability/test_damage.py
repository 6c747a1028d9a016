"""A journal that is not what was written: found, said, never taken for the truth; and put together anew."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from exporter_process import PUSH, push, running, wait_for
from exporter_scene import START, Scene, batch
from typer.testing import CliRunner

from exporter.app.mending import Mender
from exporter.cli.program import app
from exporter.detectors.registry import build_detectors
from exporter.protocol import RunFinished, Step, encode
from exporter.service.history import Archive
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.repair import check_structure, problems, salvage
from exporter.service.stored import JournalDamaged, JournalUnavailable

PAGE = 4096


def fill(scene: Scene, steps: int = 200, run: str = "r") -> None:
    for step in range(1, steps + 1):
        scene.push(run=run, steps=[Step(step=step, metrics={f"m{i}": 1.0 for i in range(60)})])


def overwrite(path: Path, start: float, end: float) -> None:
    """Fill a part of the file, given as shares of it, with what was never there."""
    size = path.stat().st_size // PAGE
    with path.open("r+b") as file:
        for page in range(int(size * start), int(size * end)):
            file.seek(page * PAGE)
            file.write(b"\xa5" * PAGE)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The path of a journal of 200 steps and a snapshot of a run that ended, with its middle overwritten."""
    scene = Scene(tmp_path, detectors=build_detectors, ended_grace=1.0)
    scene.push(run="ended", seq=1, steps=[Step(step=7, metrics={"a": 1.0})])
    scene.push(run="ended", seq=2, events=[RunFinished(time=0.0, exit_code=0)])
    scene.tick(5.0)
    fill(scene)
    scene.close()
    overwrite(tmp_path / FILE_NAME, 0.4, 0.6)
    return tmp_path / FILE_NAME


def test_a_whole_journal_has_no_problems(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    fill(scene, 20)
    scene.core.snapshot_all()
    assert problems(tmp_path / FILE_NAME) == []
    check_structure(tmp_path / FILE_NAME)
    scene.close()


def test_damage_is_found_by_looking_at_every_page(damaged: Path) -> None:
    assert any(line.startswith("The entries cannot be read to the end: ") for line in problems(damaged))
    with pytest.raises(JournalDamaged, match="verl-sentinel journal repair"):
        check_structure(damaged)


def test_what_can_be_read_is_kept_in_order_and_positions_go_on(damaged: Path) -> None:
    found = salvage(damaged, 1234)
    assert 20 < found.entries < 200
    assert found.lost_entries > 10
    assert found.snapshots == 1
    assert found.kept.name == f"{FILE_NAME}.damaged-1234"
    assert found.kept.is_file()
    assert problems(damaged) == []
    journal = Journal(damaged)
    positions = [entry.position for entry in journal.read()]
    assert positions == sorted(set(positions))
    assert len(positions) == found.entries
    assert journal.position == 202
    journal.close()


def test_the_command_checks_and_repairs_and_leaves_a_whole_journal_alone(damaged: Path) -> None:
    folder = str(damaged.parent)
    checked = CliRunner().invoke(app, ["journal", "check", folder])
    assert checked.exit_code == 1
    repaired = CliRunner().invoke(app, ["journal", "repair", folder])
    assert repaired.exit_code == 0, repaired.output
    assert "entries could not be read" in " ".join(repaired.output.split()) or "could not be read" in repaired.output
    assert CliRunner().invoke(app, ["journal", "check", folder]).exit_code == 0
    again = CliRunner().invoke(app, ["journal", "repair", folder])
    assert "nothing to do" in " ".join(again.output.split())


@pytest.mark.parametrize("command", ["check", "repair"])
def test_the_command_says_where_there_is_no_journal(tmp_path: Path, command: str) -> None:
    found = CliRunner().invoke(app, ["journal", command, str(tmp_path)])
    assert found.exit_code == 2
    assert "There is no journal" in found.output
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all" * 500)
    found = CliRunner().invoke(app, ["journal", command, str(tmp_path)])
    assert found.exit_code == 2
    assert "no journal that can be read" in " ".join(found.output.split())


def test_an_exporter_in_the_folder_is_not_disturbed_by_a_repair(tmp_path: Path) -> None:
    with running(tmp_path):
        found = CliRunner().invoke(app, ["journal", "repair", str(tmp_path / "data")])
        assert found.exit_code == 2
        assert "Another exporter uses the data folder" in " ".join(found.output.split())


class Mended:
    """A core over a journal that its mender may exchange."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder, detectors=build_detectors, ended_grace=1.0)
        self.path = folder / FILE_NAME
        self.mender = Mender(self.scene.core, self.scene.core.recorder, Archive(folder))

    def look(self) -> None:
        asyncio.run(self.mender.look(START))


def test_a_running_exporter_loses_no_state_by_damage_to_its_journal(tmp_path: Path) -> None:
    house = Mended(tmp_path)
    scene = house.scene
    fill(scene)
    before = scene.run().state.steps_total, scene.run().state.durations.total
    scene.journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite(house.path, 0.3, 0.7)
    with pytest.raises(JournalDamaged):
        check_structure(house.path)
    scene.core.recorder.health.damaged = "The journal is damaged."
    house.look()
    assert (house.scene.core.recorder.health.mended, scene.core.mending, scene.core.recorder.health.damaged) == (
        1,
        "",
        "",
    )
    assert house.scene.core.recorder.health.lost_entries > 10
    assert problems(house.path) == []
    scene.step(201)
    scene.restart()
    assert (scene.run().state.steps_total, scene.run().state.durations.total) == (before[0] + 1, before[1])
    assert scene.push(seq=100).duplicate
    scene.close()


def test_while_it_cannot_be_mended_pushes_are_refused_and_afterwards_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Mended(tmp_path)
    scene = house.scene
    fill(scene, 5)
    scene.core.recorder.health.damaged = "The journal is damaged."

    def no_room(path: Path, stamp: int, *, highest: int) -> Any:
        raise JournalUnavailable("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr("exporter.app.mending.salvage", no_room)
        house.look()
    with pytest.raises(Exception, match="put together anew") as refused:
        scene.step(6)
    assert refused.value.status == 503  # type: ignore[attr-defined]
    assert scene.core.reasons_not_ready()
    house.look()
    scene.step(6)
    assert scene.core.reasons_not_ready() == []
    scene.close()


def test_a_run_that_was_not_in_memory_and_whose_snapshot_is_gone_is_dropped_and_counted(tmp_path: Path) -> None:
    house = Mended(tmp_path)
    scene = house.scene
    for run in ("gone", "kept"):
        scene.push(run=run, seq=1, steps=[Step(step=7, metrics={"a": 1.0})])
        scene.push(run=run, seq=2, events=[RunFinished(time=0.0, exit_code=0)])
    scene.tick(5.0)
    assert set(scene.core.roster.dormant) == {"gone", "kept"}
    scene.journal._db.execute("UPDATE snapshots SET body = x'00' WHERE run_id = 'gone'")
    scene.core.recorder.health.damaged = "The journal is damaged."
    house.look()
    assert house.scene.core.recorder.health.lost_runs == 1
    assert set(scene.core.roster.dormant) == {"kept"}
    assert not scene.push(run="gone", seq=1, steps=[Step(step=1, metrics={"a": 1.0})]).duplicate
    scene.close()


QUICK = "retention:\n  snapshot_seconds: 1\n"


def test_the_real_process_finds_damage_by_itself_mends_it_and_goes_on_without_a_gap(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(QUICK)
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        for seq in range(1, 400):
            push(exporter, seq=seq, steps=[Step(step=seq, metrics={f"m{i}": 1.0 for i in range(60)})])
        file = tmp_path / "data" / FILE_NAME
        with sqlite3.connect(file) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        stop, refused, taken = threading.Event(), [], [399]

        def go_on() -> None:
            while not stop.is_set():
                answer = exporter.post(
                    PUSH, encode(batch(seq=taken[0] + 1, steps=[Step(step=taken[0] + 1, metrics={"m0": 1.0})]))
                )
                if answer.status == 200:
                    taken[0] += 1
                else:
                    refused.append(answer)
                stop.wait(0.01)

        sender = threading.Thread(target=go_on)
        sender.start()
        overwrite(file, 0.3, 0.6)
        wait_for(lambda: list((tmp_path / "data").glob("*.damaged-*")), exporter)
        wait_for(exporter.ready, exporter)
        stop.set()
        sender.join()
        assert all((answer.status, answer.headers["retry-after"]) == (503, "5") for answer in refused)
        assert "put together anew" in exporter.log
        exporter.kill()
        exporter.start()
        assert exporter.metrics()['verl_training_step{run="r"}'] == taken[0]
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == taken[0]
        assert problems(file) == []


def test_a_journal_that_is_restored_while_the_exporter_waits_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        for seq in range(1, 200):
            push(exporter, seq=seq, steps=[Step(step=seq, metrics={f"m{i}": 1.0 for i in range(60)})])
        exporter.kill()
        file = tmp_path / "data" / FILE_NAME
        with sqlite3.connect(file) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        whole = file.read_bytes()
        overwrite(file, 0.3, 0.6)
        exporter.start(until_ready=False)
        wait_for(lambda: exporter.metrics().get("verl_sentinel_journal_error") == 1, exporter)
        answer = exporter.post(PUSH, encode(batch(seq=500)))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "cannot be read" in exporter.get("/readyz").json["reasons"][0]
        assert exporter.get("/healthz").status == 200
        restored = file.with_name("restored")
        restored.write_bytes(whole)
        restored.replace(file)
        wait_for(exporter.ready, exporter)
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == 199
        assert push(exporter, seq=199).duplicate
