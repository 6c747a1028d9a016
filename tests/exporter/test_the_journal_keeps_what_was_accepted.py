"""The journal: once, in order, also over restarts; and what happens when it cannot be written."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_scene import Scene, batch

from exporter.protocol import AttemptStarted, GpuReading, OpenPhase, PhaseReport, RolloutCounts, Step
from exporter.service.admission import Refused
from exporter.service.entries import batch_entry
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.recorder import Recorded, ThreadedRecorder
from exporter.service.stored import Entry, JournalDamaged, JournalForeign, JournalUnavailable, Snapshot


def entry(seq: int, run: str = "r", sender: str = "s", kind: Any = "batch", at: float = 1.0) -> Entry:
    return Entry(kind=kind, at=at, run_id=run, body=b"x", sender=sender, seq=seq)


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    journal = Journal(tmp_path / FILE_NAME)
    yield journal
    journal.close()


def test_positions_go_on_where_they_were_also_when_the_file_has_been_emptied(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE_NAME)
    assert journal.append([entry(1), entry(2)]) == [1, 2]
    journal.delete(0, 2, batches=True)
    journal.close()
    journal = Journal(tmp_path / FILE_NAME)
    assert journal.append([entry(3)]) == [3]
    assert [e.seq for e in journal.read()] == [3]
    journal.close()


def test_more_entries_than_one_statement_holds_are_written_in_order(journal: Journal) -> None:
    assert journal.append([entry(seq) for seq in range(1, 1001)]) == list(range(1, 1001))
    assert [e.seq for e in journal.read(after=990)] == list(range(991, 1001))


def test_deleting_can_spare_what_the_history_wants(journal: Journal) -> None:
    journal.append([entry(1), entry(2, kind="beat"), entry(3), entry(4, kind="beat")])
    journal.delete(0, 3, batches=False)
    assert [e.seq for e in journal.read()] == [1, 3, 4]
    journal.delete(1, 3, batches=True)
    assert [e.seq for e in journal.read()] == [1, 4]


def test_a_run_that_is_forgotten_leaves_the_others_whole(journal: Journal) -> None:
    journal.append(
        [entry(1, run="old"), entry(1, run="new")], [Snapshot("old", 1, 1.0, b"s"), Snapshot("new", 2, 1.0, b"s")]
    )
    journal.forget(["old"])
    assert [e.run_id for e in journal.read()] == ["new"]
    assert [s.run_id for s in journal.snapshots()] == ["new"]
    assert journal.snapshot("old") is None


@pytest.mark.parametrize("table", ["journal", "snapshots"])
def test_a_bit_that_flipped_in_a_body_is_found(tmp_path: Path, table: str) -> None:
    journal = Journal(tmp_path / FILE_NAME)
    journal.append([entry(1)], [Snapshot("r", 1, 1.0, b"body")])
    journal.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute(f"UPDATE {table} SET body = x'00'")
    db.close()
    journal = Journal(tmp_path / FILE_NAME)
    with pytest.raises(JournalDamaged, match="does not match its checksum"):
        [*journal.read(), journal.snapshot("r")]
    journal.close()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "beat"),
        ({"phase": PhaseReport(step=1, open=[OpenPhase(name="gen", seconds=1.0)])}, "beat"),
        ({"steps": [Step(step=1, metrics={})]}, "batch"),
        ({"rollout": RolloutCounts(succeeded=1)}, "batch"),
        ({"gpus": [GpuReading(node="n", index=0)]}, "batch"),
        ({"events": [AttemptStarted(time=0.0, pid=1)]}, "batch"),
    ],
)
def test_only_what_says_nothing_but_still_here_is_a_beat(fields: Any, kind: str) -> None:
    assert batch_entry(batch(**fields), 1.0).kind == kind


def test_a_file_that_is_no_database_is_named_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database" * 100)
    with pytest.raises(JournalUnavailable, match=r"cannot be opened: file is not a database\. Check that"):
        Journal(tmp_path / FILE_NAME)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / FILE_NAME).close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("UPDATE journal_meta SET value = 99 WHERE key = 'version'")
    db.commit()
    db.close()
    with pytest.raises(JournalForeign, match="has version 99, this program reads version 2"):
        Journal(tmp_path / FILE_NAME)


def test_a_duplicate_is_a_duplicate_after_a_restart_too(scene: Scene) -> None:
    scene.push(seq=5, steps=[Step(step=1, metrics={"actor/grad_norm": 1.0})])
    scene.restart()
    answer = scene.push(seq=5, steps=[Step(step=2, metrics={"actor/grad_norm": 1.0})])
    assert answer.duplicate
    assert answer.accepted_seq == 5
    assert scene.run().state.current == 1


def test_an_entry_that_cannot_be_read_is_left_out_and_said(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.step(1)
    scene.journal.append([Entry(kind="batch", at=scene.now, run_id="r", body=b"\xc1", sender="x", seq=1)])
    scene.step(2)
    scene.restart()
    assert scene.core.unreadable_entries == 1
    assert scene.run().state.current == 2
    assert "cannot be read and is left out" in caplog.text


class FailingJournal:
    """A journal on a disk that is full, until it is not."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.full = False

    def append(self, entries: Any, snapshots: Any = (), *, delivered: int = 0) -> list[int]:
        if self.full:
            raise JournalUnavailable("The journal j cannot be written: database or disk is full.")
        return self._journal.append(entries, snapshots, delivered=delivered)


def test_a_push_that_cannot_be_kept_is_refused_changes_nothing_and_can_be_sent_again(scene: Scene) -> None:
    failing: Any = FailingJournal(scene.journal)
    scene.core._recorder._journal = failing  # type: ignore[attr-defined]
    scene.step(1)
    failing.full = True
    scene.now += 50
    with pytest.raises(Refused, match=r"disk is full\. Nothing was taken over; send it again") as refused:
        scene.push(seq=90, steps=[Step(step=2, metrics={"actor/grad_norm": 900.0})])
    assert (refused.value.status, refused.value.retry_after) == (503, 5)
    assert scene.run().state.current == 1
    assert not scene.incidents()
    assert scene.run().state.last_push == scene.now, "it was heard: a full disk here is no silent run there"
    assert scene.core.reasons_not_ready() == ["The journal j cannot be written: database or disk is full."]
    failing.full = False
    assert not scene.push(seq=90, steps=[Step(step=2, metrics={"actor/grad_norm": 900.0})]).duplicate
    assert scene.run().state.current == 2
    assert scene.core.reasons_not_ready() == []


def test_the_thread_answers_in_the_order_of_the_journal_and_writes_what_waits_before_it_ends(journal: Journal) -> None:
    answers: list[tuple[int | None, int]] = []
    lock = threading.Lock()

    def soon(call: Any) -> None:
        with lock:
            call()

    recorder = ThreadedRecorder()
    for seq in range(1, 1001):
        recorder.record(entry(seq), lambda e, outcome: answers.append((e.seq, outcome.position)))
    recorder.start(journal, soon)
    recorder.close()
    assert answers == [(seq, seq) for seq in range(1, 1001)]
    assert journal.count() == 1000
    assert recorder.health.entries == 1000
    assert sum(recorder.health.commit_counts) == recorder.health.commits


def test_the_thread_survives_an_entry_that_cannot_be_written(journal: Journal) -> None:
    outcomes: list[Recorded] = []
    for seq in (2**70, 1):
        recorder = ThreadedRecorder()
        recorder.record(entry(seq), lambda e, outcome: outcomes.append(outcome))
        recorder.start(journal, lambda call: call())
        recorder.close()
    assert outcomes[0].error
    assert outcomes[1].position == 1


def test_what_is_journalled_is_the_batch_as_it_came(scene: Scene) -> None:
    sent = batch(seq=1, steps=[Step(step=1, metrics={"actor/grad_norm": "NaN"})])
    scene.core.accept(sent, scene.now)
    (stored,) = scene.journal.read()
    assert msgspec.msgpack.decode(stored.body, type=type(sent)) == sent
