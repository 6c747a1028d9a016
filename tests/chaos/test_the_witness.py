"""The invariants of the chaos suite can fail: the witness sees each breach, and none where there is none."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import weights
from tests.chaos.network import Link
from tests.chaos.witness import Witness
from trainer_entry.checkpoints import write_manifest


class Scene:
    """A run's folders, with one good checkpoint in them."""

    def __init__(self, folder: Path) -> None:
        self.evidence, self.checkpoints, self.state = folder / "evidence", folder / "checkpoints", folder / "state"
        for path in (self.evidence, self.checkpoints, self.state / "attempts", self.state / "commands"):
            path.mkdir(parents=True)
        self.database = folder / "recovery.sqlite3"
        self.witness = Witness("run", self.evidence, self.checkpoints, self.state, self.database)

    def save(self, step: int, *, ruined: bool = False) -> Path:
        directory = self.checkpoints / f"global_step_{step}"
        (directory / "actor").mkdir(parents=True)
        for kind in ("model", "optim", "extra_state"):
            path = directory / "actor" / f"{kind}_world_size_1_rank_0.pt"
            weights.write(path, step=step, ruined=ruined, of=kind)
        (directory / "data.pt").write_bytes(b"position")
        write_manifest(directory, step)
        return directory

    def start(
        self, attempt: int, step: int, *, pid: int = 0, command: str = "", ruined: bool = False, **more: object
    ) -> None:
        folder = self.state / "attempts" / str(attempt)
        folder.mkdir(exist_ok=True)
        (folder / "request.json").write_text(json.dumps({"command_id": command}))
        started = {"attempt": attempt, "from": step, "pid": pid, "ruined": ruined, "worker": 0, **more}
        with (self.evidence / "starts.jsonl").open("a") as file:
            file.write(json.dumps({**started, "at": time.monotonic()}) + "\n")

    def audit(self, *kinds: str) -> None:
        with sqlite3.connect(self.database) as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS audit (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, run_id TEXT,"
                " recovery_id TEXT, kind TEXT, summary TEXT, data TEXT)"
            )
            for kind in kinds:
                row = (1.0, "run", "r1", kind, "", "{}")
                db.execute(
                    "INSERT INTO audit (at, run_id, recovery_id, kind, summary, data) VALUES (?, ?, ?, ?, ?, ?)", row
                )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_run_that_goes_back_to_a_good_checkpoint_breaks_nothing(scene: Scene) -> None:
    scene.save(5)
    scene.witness._look()
    scene.start(1, 0)
    scene.start(2, 5, command="r1")
    scene.witness.close()
    assert scene.witness.breaches == []


def test_an_attempt_on_another_version_than_it_was_to_run_on_is_seen(scene: Scene) -> None:
    scene.save(5)
    scene.witness._look()
    scene.start(2, 5, changes={"verl_version": "0.9.0"}, version="0.9.0")
    scene.start(3, 5, changes={"verl_version": "0.9.0"}, version="0.9.1")
    scene.witness.close()
    assert scene.witness.breaches == ["attempt 3 was to run on verl 0.9.0, and runs on 0.9.1"]


def test_a_start_from_scratch_is_seen_once_there_was_a_checkpoint(scene: Scene) -> None:
    scene.start(1, 0)
    scene.save(5)
    scene.witness._look()
    scene.start(2, 0)
    scene.witness.close()
    assert scene.witness.breaches == ["attempt 2 started from scratch"]


def test_a_restored_checkpoint_that_was_spoilt_is_seen(scene: Scene) -> None:
    scene.start(2, 10, ruined=True)
    scene.witness.close()
    assert scene.witness.breaches == ["attempt 2 was restored from a spoilt checkpoint, step 10"]


def test_a_command_that_is_carried_out_twice_is_seen(scene: Scene) -> None:
    scene.start(2, 5, command="r1")
    scene.start(3, 5, command="r1")
    scene.witness.close()
    assert scene.witness.breaches == ["command r1 was carried out 2 times"]


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_good_checkpoint_that_is_lost_is_seen(scene: Scene, how: str) -> None:
    directory = scene.save(5)
    scene.save(10)
    scene.witness._look()
    scene.start(2, 10)
    if how == "gone":
        shutil.rmtree(directory)
    else:
        (directory / "data.pt").write_bytes(b"somewhere else")
    scene.witness.close()
    assert any("step 5" in sentence and how in sentence for sentence in scene.witness.breaches)


def test_a_spoilt_checkpoint_may_go(scene: Scene) -> None:
    scene.save(5)
    directory = scene.save(10, ruined=True)
    scene.witness._look()
    shutil.rmtree(directory)
    scene.start(2, 5)
    scene.witness.close()
    assert scene.witness.breaches == []


def test_two_trainers_at_once_are_seen(scene: Scene) -> None:
    words = [sys.executable, "-S", "-c", "import time; time.sleep(60)", "fast_trainer"]
    both = [subprocess.Popen(words) for _ in range(2)]
    try:
        for attempt, process in enumerate(both, start=1):
            scene.start(attempt, 0, pid=process.pid)
        # A process that has just begun has no command line in /proc yet, though Popen has returned.
        deadline = time.monotonic() + 30
        while len(scene.witness.trainers()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        scene.witness._look()
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert scene.witness.breaches == ["two trainers at once: attempts [1, 2]"]


def test_a_lock_that_was_held_is_two_trainers(scene: Scene) -> None:
    with (scene.evidence / "trainer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environ = {**os.environ, "VERL_SENTINEL_STATE_DIR": str(scene.state), "VERL_SENTINEL_RUN_ID": "run"}
        environ |= {"VERL_SENTINEL_URL": "http://127.0.0.1:9", "VERL_SENTINEL_ATTEMPT": "2"}
        program = Path(__file__).with_name("fast_trainer.py")
        words = [f"trainer.default_local_dir={scene.checkpoints}", f"+chaos.evidence={scene.evidence}"]
        subprocess.run(
            [sys.executable, str(program), *words, "chaos.steps=1"],
            env={**environ, "PYTHONPATH": str(program.parents[2])},
            check=True,
            capture_output=True,
            timeout=60,
        )
    scene.witness._look()
    assert "two trainers at once: attempt 2 found another alive" in scene.witness.breaches


@pytest.mark.parametrize(("change", "what"), [("DELETE FROM audit WHERE id = 1", "removed"),
                                              ("UPDATE audit SET kind = 'x' WHERE id = 1", "changed")])  # fmt: skip
def test_a_line_of_the_audit_log_that_is_changed_is_seen(scene: Scene, change: str, what: str) -> None:
    scene.audit("planned", "succeeded")
    scene.witness._look_at_audit()
    with sqlite3.connect(scene.database) as db:
        db.execute(change)
    scene.witness._look_at_audit()
    assert f"line 1 of the audit log was {what}" in scene.witness.breaches


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(1024):
                    connection.sendall(piece)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.close()


def test_a_wire_passes_on_is_silent_and_is_cut(echo: tuple[str, int]) -> None:
    link = Link("a-b", echo)
    host, port = link.address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"one")
            assert connection.recv(10) == b"one"
            link.become("silent")
            connection.settimeout(1.0)
            connection.sendall(b"two")
            with pytest.raises(TimeoutError):
                connection.recv(10)
            link.become("open")
            connection.settimeout(30)
            assert connection.recv(10) == b"two"
            link.become("cut")
            with pytest.raises(ConnectionResetError):
                connection.recv(10)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)
        link.become("open")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"three")
            assert connection.recv(10) == b"three"
    finally:
        link.close()
