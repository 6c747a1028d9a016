"""The disk is full, read-only, or gone: the service stays up, says so everywhere, and goes on by itself when it can."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporter_process import PUSH, Answer, ExporterProcess, push, running, wait_for
from exporter_scene import batch

from exporter.protocol import RunFinished, RunStarted, Step, encode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def on_disk(disk: Path, folder: Path) -> Iterator[ExporterProcess]:
    exporter = ExporterProcess(folder, ("--data-dir", str(disk / "data")))
    try:
        exporter.start()
        yield exporter
    finally:
        exporter.kill()


def large(exporter: ExporterProcess, seq: int) -> Answer:
    config: dict[str, Any] = {f"key{i}": f"{seq} {i} " + "x" * 200 for i in range(300)}
    step = Step(step=seq, metrics={"actor/lr": 1.0})
    return exporter.post(PUSH, encode(batch(seq=seq, steps=[step], events=[RunStarted(time=0.0, config=config)])))


def says_so(exporter: ExporterProcess, answer: Answer) -> None:
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert b"Nothing was taken over; send it again" in answer.body
    assert exporter.get("/healthz").status == 200
    ready = exporter.get("/readyz")
    assert ready.status == 503
    assert "cannot be written" in ready.json["reasons"][0]
    metrics = exporter.metrics()
    assert metrics["verl_sentinel_ready"] == 0
    assert metrics["verl_sentinel_journal_error"] == 1


def test_a_full_disk_is_said_and_when_there_is_room_again_the_same_push_is_taken(
    small_disk: Path, tmp_path: Path
) -> None:
    with on_disk(small_disk, tmp_path) as exporter:
        push(exporter, seq=1, steps=[Step(step=1, metrics={"actor/lr": 1.0})])
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(64 * 1024))
                file.flush()
        seq = 2
        while (answer := large(exporter, seq)).status == 200:
            seq += 1
        says_so(exporter, answer)
        ballast.unlink()
        wait_for(exporter.ready, exporter)
        assert large(exporter, seq).status == 200
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == seq
        exporter.kill()
        exporter.start()
        assert exporter.metrics()['verl_training_steps_total{run="r"}'] == seq


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_disk_that_becomes_read_only_is_said_and_taken_up_when_it_can_be_written_again(
    small_disk: Path, tmp_path: Path, how: str
) -> None:
    with on_disk(small_disk, tmp_path) as exporter:
        push(exporter, seq=1, steps=[Step(step=1, metrics={"actor/lr": 1.0})])
        # Killed, it leaves a log beside the journal, and SQLite opens that read-only instead of failing.
        getattr(exporter, how)()
        # A file system with files that are open for writing cannot be made read-only: the one that a start finds is.
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        exporter.start(until_ready=False)
        # While it starts it is not ready either, so what is waited for is that it says what is wrong.
        wait_for(lambda: exporter.metrics()["verl_sentinel_journal_error"] == 1, exporter)
        assert exporter.get("/readyz").status == 503
        answer = exporter.post(PUSH, encode(batch(seq=2)))
        assert answer.status == 503
        assert "retry-after" in answer.headers
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        wait_for(exporter.ready, exporter)
        assert push(exporter, seq=1, steps=[Step(step=1, metrics={"actor/lr": 1.0})]).duplicate
        last = Step(step=2, metrics={"actor/lr": 1.0})
        assert not push(exporter, seq=2, steps=[last], events=[RunFinished(time=0.0)]).duplicate
        # The audit log has a file of its own.
        assert exporter.request("DELETE", "/api/v1/runs/r", None, {}).status == 200


def test_a_disk_on_which_nothing_can_be_written_any_more_is_said_without_a_push(tmp_path: Path) -> None:
    """By a limit on the size of files, which needs no right to mount: the journal cannot grow."""
    import resource

    with running(tmp_path) as exporter:
        size = max(file.stat().st_size for file in (tmp_path / "data").iterdir())
        resource.prlimit(exporter.pid, resource.RLIMIT_FSIZE, (size + 100_000, -1))
        seq = 1
        while (answer := large(exporter, seq)).status == 200:
            seq += 1
        says_so(exporter, answer)
        resource.prlimit(exporter.pid, resource.RLIMIT_FSIZE, (-1, -1))
        wait_for(exporter.ready, exporter)
        assert large(exporter, seq).status == 200
