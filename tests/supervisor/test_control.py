"""The control socket and the command line: what an operator sees and may do."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from supervised_run import Scene, until

from trainer_entry.supervisor.control import ControlAnswer, ControlRequest, ControlServer, Conversation, ask
from trainer_entry.supervisor.state import StateDir, StateError


def test_status_tells_how_the_run_is_with_and_without_a_supervisor(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(step_seconds=0.05))
    pid = scene.started()["pid"]
    words = ("status", "--state-dir", str(scene.state), "--json")
    status = json.loads(scene.cli(*words).stdout)
    assert (status["run_id"], status["attempt"], status["state"]) == ("test-run", 1, "running")
    assert (status["trainer_pid"], status["supervisor"]) == (pid, True)
    supervisor.kill()
    supervisor.wait()
    status = json.loads(scene.cli(*words).stdout)
    assert (status["state"], status["trainer_pid"], status["supervisor"]) == ("running", pid, False)
    stopped = scene.cli("stop", "--state-dir", str(scene.state))
    assert stopped.returncode == 0, stopped.stderr
    assert "Attempt 1 ended with exit code 0 (clean" in stopped.stdout
    status = json.loads(scene.cli(*words).stdout)
    assert (status["state"], status["exit_code"]) == ("stopped", 0)


def test_a_run_that_an_operator_stopped_starts_again_at_the_next_run(scene: Scene) -> None:
    scene.run(scene.trainer(step_seconds=0.05, save_freq=2))
    scene.saved(2)
    assert scene.cli("stop", "--state-dir", str(scene.state)).returncode == 0
    scene.run(scene.trainer())
    assert scene.started(2)["from"] >= 2


def test_a_resume_of_a_running_trainer_is_refused(scene: Scene) -> None:
    scene.run(scene.trainer())
    target = scene.saved(5)
    done = scene.cli("resume", "--state-dir", str(scene.state), "--target", str(target))
    assert (done.returncode, scene.attempts()) == (5, 1)
    assert "Attempt 1 is running; stop it first." in done.stderr


def test_a_step_from_the_script_of_a_dead_supervisor_is_refused(scene: Scene) -> None:
    scene.run(scene.trainer())
    scene.started()
    done = scene.cli(
        "stop", "--for-rollback", "--state-dir", str(scene.state), VERL_SENTINEL_SUPERVISOR="somebody else"
    )
    assert done.returncode == 8
    assert "script of an earlier supervisor" in done.stderr


def test_the_socket_is_private_and_a_malformed_line_is_answered_with_a_sentence(scene: Scene) -> None:
    scene.run(scene.trainer())
    scene.started()
    path = scene.state / "control.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(scene.state.stat().st_mode) == 0o700
    for line in (
        b"nonsense\n",
        b'{"op": "explode"}\n',
        b'{"op": "status", "x": 1}\n',
        b'{"op": "stop", "reason": "\\u0000"}\n',
        b"x" * 100_000 + b"\n",
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(path))
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(line)
            answer = json.loads(connection.makefile().readline())
        assert answer["detail"].startswith("The request is malformed: ")
        assert (answer["final"], answer["code"]) == (True, 2)
    assert scene.cli("status", "--state-dir", str(scene.state)).returncode == 0


def test_a_moment_without_descriptors_does_not_deafen_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failed = socket.socket.accept, threading.Event()

    def none_left(self: socket.socket) -> Any:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", none_left)
    state = StateDir(tmp_path)
    server = ControlServer(state, lambda conversation: conversation.answer(ControlAnswer(detail="heard", final=True)))
    try:
        assert failed.wait(20)
        assert [a.detail for a in ask(state, ControlRequest(op="status"))] == ["heard"]
    finally:
        server.close()


def test_whoever_waits_when_the_supervisor_ends_is_answered(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    taken = threading.Event()
    server = ControlServer(state, lambda conversation: taken.set())
    answers: list[ControlAnswer] = []
    asking = threading.Thread(target=lambda: answers.extend(ask(state, ControlRequest(op="stop"))))
    asking.start()
    assert taken.wait(20)
    server.close()
    asking.join(20)
    assert [(a.detail, a.final, a.code) for a in answers] == [("The supervisor ended.", True, 8)]


def test_a_state_directory_with_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    state = StateDir(tmp_path / ("long" * 40) / ("er" * 60))
    state.create()

    def take(conversation: Conversation) -> None:
        conversation.answer(ControlAnswer(detail="half", state="stopping"))
        conversation.answer(ControlAnswer(detail=conversation.request.reason, final=True))

    server = ControlServer(state, take)
    try:
        assert len(os.fsencode(state.socket_path)) > 108
        answers = list(ask(state, ControlRequest(op="stop", reason="because")))
        assert [a.detail for a in answers] == ["half", "because"]
    finally:
        server.close()
    with pytest.raises(StateError, match="No supervisor is running"):
        list(ask(state, ControlRequest(op="status")))


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["status"], 2, "give --state-dir or --run-id"),
        (["status", "--run-id", "../x"], 2, "VERL_SENTINEL_RUN_ID is '../x'"),
        (["status", "--state-dir", "nowhere"], 6, "There is no run in"),
        (["run", "--state-dir", "s"], 71, "There is no run in"),
        (["run", "--", "python", "-m", "x", "--config-name=y"], 2, "give it with --checkpoint-dir"),
        (["run", "--url", "ftp://x", "--state-dir", "s", "--", "true"], 2, "VERL_SENTINEL_URL is 'ftp://x'"),
        (["run", "--state-dir", "s", "--", "true", b"\xff"], 2, "is not UTF-8"),
        (["run", "--term-seconds", "-1", "--", "true"], 2, "not a number of seconds"),
        (["checkpoints", "verify", "nowhere/global_step_1"], 4, "cannot be opened"),
        (["checkpoints", "choose", "--checkpoint-dir", "."], 4, "no checkpoint in . may be restored"),
        (["checkpoints", "choose", "--checkpoint-dir", ".", "--target-step", "x"], 2, "is not a step"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_a_code(scene: Scene, words: list[Any], code: int, sentence: str) -> None:
    done = scene.cli(*words, XDG_CACHE_HOME=str(scene.folder / "cache"))
    assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_gone_is_a_sentence(scene: Scene) -> None:
    gone = scene.folder / "gone"
    gone.mkdir()
    words = f'cd "{gone}" && rmdir "{gone}" && exec "{sys.executable}" -P -m trainer_entry.cli run -- true'
    words = words if sys.version_info >= (3, 11) else words.replace(" -P", "")
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=scene.environ, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (71, 1), done.stderr
    assert "cannot be used: No such file or directory" in done.stderr


def test_checkpoints_are_listed_with_the_reason_for_each_that_is_refused(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(steps=12))
    assert scene.ended(supervisor) == 0
    os.truncate(scene.saved(10) / "data.pt", 3)
    listed = scene.cli("checkpoints", "list", "--state-dir", str(scene.state)).stdout.splitlines()
    assert {line.split()[0]: line.split()[-1] for line in listed[:3]} == {
        "STEP": "PROBLEM",
        "10": "truncated",
        "5": "-",
    }
    assert "step 10: The file data.pt is truncated: 3 of 8 bytes." in listed
    chosen = scene.cli("checkpoints", "choose", "--state-dir", str(scene.state))
    assert chosen.stdout == f"{scene.checkpoints}/global_step_5\n"
    verified = scene.cli("checkpoints", "verify", str(scene.checkpoints / "global_step_5"))
    assert verified.returncode == 0
    assert "is verified (content): " in verified.stdout


def test_quiet_keeps_the_trainers_output_in_its_file(scene: Scene) -> None:
    assert scene.ended(scene.run(scene.trainer(steps=3), "--quiet")) == 0
    assert "step:3" not in scene.said()
    until(lambda: "step:3" in (scene.state / "attempts/1/output.log").read_text(), "the output in the file")
