"""What a recording of a run keeps, and what it leaves out."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from demo.record import recorded
from demo.recording import BEGIN, Fault, Head, Recording, read, shrunk, write
from demo.scenarios import SCENARIOS
from exporter.protocol import (
    AttemptExited,
    Batch,
    CheckpointSaved,
    HooksReported,
    OpenPhase,
    PhaseReport,
    Run,
    RunStarted,
    Sender,
    Step,
    number,
)
from exporter.service.entries import batch_entry
from exporter.service.journal import FILE_NAME, Journal

REPOSITORY = Path(__file__).resolve().parents[2]
STARTED = 1_700_000_000.0
RUN = Run(run_id="nan", verl_version="0.9.1")


def batch(seq: int, sender: str = "trainer-some-host-4711-abcdef01", **parts: object) -> Batch:
    return Batch(protocol=1, run=RUN, sender=Sender(id=sender), seq=seq, **parts)  # type: ignore[arg-type]


def the_only(one: Batch) -> Batch:
    return next(shrunk([(STARTED, one)], STARTED)).batch


def test_a_recording_is_read_as_it_was_written_with_every_value_that_is_no_number(tmp_path: Path) -> None:
    metrics = {"actor/loss": math.nan, "actor/grad_norm": math.inf, "actor/entropy": 1.23456789, "actor/kl_loss": 1e-30}
    lines = list(
        shrunk([(STARTED + 2.5, batch(1, steps=[Step(step=7, metrics=metrics, time=STARTED + 2.4)]))], STARTED)
    )
    head = Head(scenario="nan", seed=2, verl="0.9.1", fault=Fault(step=7, at=BEGIN + 2.0), steps=7, ends_at=BEGIN + 9.0)
    write(Recording(head, lines), tmp_path / "new" / "run.jsonl.gz")

    found = read(tmp_path / "new" / "run.jsonl.gz")

    assert found.head == head
    assert [line.at for line in found.lines] == [BEGIN + 2.5]
    (step,) = found.lines[0].batch.steps
    values = {key: number(value) for key, value in step.metrics.items()}
    assert math.isnan(values.pop("actor/loss"))
    assert values == {"actor/grad_norm": math.inf, "actor/entropy": 1.23457, "actor/kl_loss": 1e-30}
    assert (step.step, step.time) == (7, BEGIN + 2.4)


def test_neither_hosts_nor_paths_nor_output_of_the_run_are_recorded() -> None:
    told = the_only(
        batch(
            1,
            sender="supervisor-some-host-4711-abcdef01",
            events=[
                RunStarted(time=STARTED, config={"trainer.total_epochs": 3, "algorithm.path": "/home/me", "x.y": "me"}),
                HooksReported(time=STARTED, installed=["fit"]),
                CheckpointSaved(time=STARTED, step=5, path="/home/me/global_step_5", verified=True, reason="/home/me"),
                AttemptExited(time=STARTED, exit_code=1, last_output=["/home/me: no space"]),
            ],
        )
    )
    started, saved, exited = told.events
    assert isinstance(started, RunStarted)
    assert started.config == {"trainer.total_epochs": 3}
    assert isinstance(saved, CheckpointSaved)
    assert (saved.path, saved.verified, saved.time) == ("global_step_5", True, BEGIN)
    assert isinstance(exited, AttemptExited)
    assert (exited.exit_code, exited.expected) == (1, False)
    assert "host" not in repr(told)
    assert "/home" not in repr(told)


def test_processes_stay_apart_and_their_reports_whole() -> None:
    phase = PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=1.23456)])
    given = [batch(1, phase=phase), batch(1, sender="trainer-b"), batch(2, phase=phase)]
    lines = list(shrunk([(STARTED + at, one) for at, one in enumerate(given)], STARTED))
    assert [(line.batch.sender.id, line.batch.seq) for line in lines] == [
        ("trainer-1", 1),
        ("trainer-2", 1),
        ("trainer-1", 2),
    ]
    assert lines[0].batch.phase == PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=1.235)])


def test_a_recording_holds_the_journal_up_to_its_end_and_says_when_the_fault_came(tmp_path: Path) -> None:
    (tmp_path / "exporter").mkdir()
    (tmp_path / "state").mkdir()
    journal = Journal(tmp_path / "exporter" / FILE_NAME)
    steps = [batch(seq, steps=[Step(step=seq, metrics={"actor/loss": 0.5})]) for seq in (1, 2, 3)]
    journal.append([batch_entry(one, STARTED + 10.0 * one.seq) for one in steps])
    journal.close()
    (tmp_path / "state" / "fault.json").write_text(f'{{"time": {STARTED + 15.0}, "step": 2, "fault": "nan"}}\n')
    (tmp_path / "recorded-until").write_text(f"{STARTED + 25.0}\n")

    found = recorded(SCENARIOS["nan"], 1, tmp_path)

    assert found.head == Head(
        scenario="nan", seed=1, verl="0.9.1", fault=Fault(step=2, at=BEGIN + 5.0), steps=2, ends_at=BEGIN + 15.0
    )
    assert [line.at for line in found.lines] == [BEGIN, BEGIN + 10.0]


def test_where_nothing_was_recorded_that_is_said(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "demo.record", "--scenario", "nan", "--again", "--work", str(tmp_path)]
    done = subprocess.run(
        [*asked, "--out", str(tmp_path / "x.jsonl.gz")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"There is no finished recording in {tmp_path}")
    assert not (tmp_path / "x.jsonl.gz").exists()
