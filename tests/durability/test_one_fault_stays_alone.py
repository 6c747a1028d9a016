"""What goes wrong with one run, one entry or one clock does not reach the others."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from exporter_process import push, running, wait_for
from exporter_scene import Scene, verdict
from test_history import DAY, House

from exporter.detectors.base import LiveView, Severity
from exporter.protocol import RolloutCounts, RunFinished, Step
from exporter.service import archivist, recovery_link, snapshot
from exporter.service.admission import MAX_INTEGER, Refused
from exporter.service.archivist import Archivist
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.recorder import Recorded, ThreadedRecorder
from exporter.service.stored import Entry, Snapshot


def test_a_run_that_cannot_be_snapshotted_keeps_its_entries_and_the_others_get_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, snapshot_seconds=10.0)
    for run in ("bad", "good"):
        scene.step(1, run=run)
    take = snapshot.take

    def fails(run: Any) -> bytes:
        if run.state.run_id == "bad":
            raise OverflowError("an integer of more than 64 bits")
        return take(run)

    with monkeypatch.context() as patch:
        patch.setattr("exporter.service.keeping.snapshot.take", fails)
        scene.tick(11.0)
        scene.tick(times=5)
        assert scene.core.faults == 1
        scene.core.snapshot_all()
        assert [kept.run_id for kept in scene.journal.snapshots()] == ["good"]
        assert scene.core.keeper.covered_upto() == 0
    scene.tick(11.0)
    assert {kept.run_id for kept in scene.journal.snapshots()} == {"bad", "good"}
    scene.close()


def test_totals_of_many_senders_stay_within_what_can_be_written_down(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    most = RolloutCounts(succeeded=MAX_INTEGER - 1, failed=MAX_INTEGER - 1, cancelled=0, in_flight=MAX_INTEGER - 1)
    for number in range(2100):
        scene.push(sender=f"s{number}", seq=1, rollout=most)
    scene.core.snapshot_all()
    assert scene.core.faults == 0
    scene.restart()
    counts = scene.run().state.rollouts()
    assert (counts.succeeded, counts.failed, counts.cancelled) == (MAX_INTEGER, MAX_INTEGER, 0)
    assert counts.in_flight <= MAX_INTEGER
    scene.close()


def test_a_fault_in_one_answer_leaves_no_other_of_the_group_without_one(tmp_path: Path) -> None:
    answered: list[int] = []
    recorder = ThreadedRecorder()
    journal = Journal(tmp_path / FILE_NAME)

    def done(entry: Entry, outcome: Recorded) -> None:
        answered.append(outcome.position)
        if outcome.position == 1:
            raise RuntimeError("a fault")

    for _ in range(3):
        recorder.record(Entry("batch", 1.0, "r", b"\x80", "s", 1), done)
    recorder.start(journal, lambda call: call())
    recorder.close()
    assert answered == [1, 2, 3]
    assert recorder.health.faults == 1
    journal.close()


class Alarm:
    """Critical at every look."""

    name = "alarm"

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        return None

    def look(self, view: LiveView) -> list[Any]:
        return [verdict("alarm", "x", Severity.CRITICAL, view.step, 2.0)]

    def resumed(self, step: int, attempt: int) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        return None


class Alarmed:
    step: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.live = (Alarm(),)


def test_a_run_does_not_leave_memory_while_an_acknowledgement_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, detectors=Alarmed)
    scene.step(1)
    scene.tick()
    (incident,) = scene.run().book
    scene.tick(8 * DAY)
    assert scene.core.runs == {}, "nobody has heard of it for a week"
    waiting: list[Any] = []
    record = scene.core.recorder.record
    monkeypatch.setattr(scene.core.recorder, "record", lambda entry, done: waiting.append((entry, done)))
    answers: list[Any] = []
    for who in ("ada", "bob"):
        scene.core.acknowledge(incident.id, who, scene.now, answers.append)
    monkeypatch.undo()
    scene.tick()
    record(*waiting.pop(0))
    scene.tick()
    record(*waiting.pop(0))
    assert not any(isinstance(answer, Refused) for answer in answers)
    assert answers[-1].acknowledged_by
    scene.tick(times=2)
    assert scene.core.runs == {}
    scene.restart()
    assert next(iter(scene.run().book)).acknowledged_by
    scene.close()


def test_a_run_that_is_forgotten_while_its_steps_move_leaves_none_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path)
    for run in ("gone", "kept"):
        house.steps(1, 20, run=run)
    house.scene.core.snapshot_all()

    async def both() -> None:
        loop, packing = asyncio.get_running_loop(), asyncio.Event()
        pack = archivist.pack

        def slow(entries: Any) -> Any:
            loop.call_soon_threadsafe(packing.set)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.2), loop).result(30)
            return pack(entries)

        monkeypatch.setattr(archivist, "pack", slow)
        moving = asyncio.create_task(house.archivist.round(house.scene.now))
        await packing.wait()
        house.scene.core.roster.forget("gone")
        await house.archivist.forget(["gone"])
        await moving

    asyncio.run(both())
    assert house.archivist.health.error == ""
    assert house.exported("gone") == []
    assert house.exported("kept") == list(range(1, 21))
    house.close()


def test_forgetting_many_runs_goes_through_the_journal_a_few_times_not_once_for_each(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.step(1, run="kept")
    scene.step(1, run="run 999")
    said: list[str] = []
    scene.journal._db.set_trace_callback(said.append)
    scene.journal.forget([f"run {number}" for number in range(1000)])
    scene.journal._db.set_trace_callback(None)
    assert sum("FROM journal " in one for one in said) <= 10
    assert [entry.run_id for entry in scene.journal.read()] == ["kept"]
    scene.close()


def test_what_is_deleted_from_a_journal_begins_where_the_journal_begins(tmp_path: Path) -> None:
    """After a year there are billions of positions; a start must not go through all of them."""
    house = House(tmp_path)
    house.scene.journal.go_on_above(50_000_000_000)
    house.steps(1, 10)
    house.tidy()
    assert house.exported() == list(range(1, 11))
    assert house.scene.journal.count() == 0
    house.close()


def test_a_clock_that_is_months_ahead_for_a_moment_makes_nothing_old(tmp_path: Path) -> None:
    house = House(tmp_path)
    passed = [0.0]
    house.archivist = Archivist(
        house.scene.core,
        house.scene.core.recorder,
        tmp_path,
        house.retention,
        lambda: None,
        settling=3600.0,
        monotonic=lambda: passed[0],
    )
    house.steps(1, 10)
    house.scene.push(run="ended", steps=[Step(step=1, metrics={"a": 1.0})])
    house.scene.push(run="ended", events=[RunFinished(time=0.0, exit_code=0)])
    house.scene.tick(100.0)

    def rounds(count: int) -> None:
        for _ in range(count):
            passed[0] += 30.0
            house.scene.tick(30.0)
            house.tidy()

    rounds(200)
    house.scene.now += 90 * DAY
    rounds(100)
    house.scene.now -= 90 * DAY
    rounds(200)
    assert house.exported() == list(range(1, 11))
    assert house.scene.core.find("ended") is not None
    house.scene.now += 90 * DAY
    rounds(200)
    assert house.exported() == []
    assert house.scene.core.find("ended") is None
    house.close()


def test_a_start_that_fails_by_a_fault_of_ours_says_so_and_is_tried_again(tmp_path: Path) -> None:
    """A summary that cannot be read is no reason to wait in silence."""
    with running(tmp_path) as exporter:
        push(exporter, seq=1, steps=[Step(step=1, metrics={"a": 1.0})])
        exporter.stop()
        journal = Journal(tmp_path / "data" / FILE_NAME)
        kept = journal.snapshot("r")
        assert kept is not None
        # A text where there should be bytes: nothing of ours writes that, and no reader expects it.
        journal.append([], [Snapshot("r", kept.position, kept.heard, kept.body, "text")])  # type: ignore[arg-type]
        journal.close()
        exporter.start(until_ready=False)
        wait_for(lambda: exporter.metrics().get("verl_sentinel_journal_error") == 1, exporter)
        journal = Journal(tmp_path / "data" / FILE_NAME)
        journal.append([], [kept])
        journal.close()
        wait_for(exporter.ready, exporter)
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == 1


def test_what_waits_for_a_broken_recovery_store_is_bounded_and_no_incident_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery_link, "MOST_WAITING", 50)
    scene = Scene(tmp_path)
    told: list[str] = []

    def broken(*_: Any, **__: Any) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with monkeypatch.context() as patch:
        for name in ("on_step", "on_incident"):
            patch.setattr(scene.engine, name, broken)
        for step in range(1, 101):
            scene.step(step)
        scene.step(101, grad=1000.0)
        for step in range(102, 201):
            scene.step(step)
        assert 50 <= len(scene.core.link._untold) <= 52
    assert sum("recovery store" in record.getMessage() for record in caplog.records) == 1
    monkeypatch.setattr(scene.engine, "on_incident", lambda incident, *_: told.append(incident.detector))
    scene.tick()
    assert told == ["scripted_step"]
    assert not scene.core.link.waits
    scene.close()


def test_a_recovery_store_that_a_person_locks_holds_up_no_push_and_hears_of_everything_afterwards(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "recovery.sqlite3", isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        scene.step(1, grad=1000.0)
        assert scene.core.link.waits
        assert "database is locked" in scene.core.reasons_not_ready()[0]
        # What SQLite itself waits; the event loop waits with it.
        assert scene.store._db.execute("PRAGMA busy_timeout").fetchone()[0] <= 1000
        shell.execute("ROLLBACK")
    scene.tick()
    assert not scene.core.link.waits
    assert scene.core.reasons_not_ready() == []
    scene.close()
