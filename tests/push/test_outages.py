"""An exporter that is gone, hung or refusing costs nothing but delay, and what it never takes is told."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from push_receiver import Receiver, refusal, until

from exporter.protocol import Batch
from trainer_entry.push import PushClient

Connect = Callable[..., PushClient]

_SERVER = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from push_receiver import Receiver
receiver = Receiver()
print(receiver.port, flush=True)
threading.Event().wait()
"""

_SENDER = """
import sys, threading
from pathlib import Path
from exporter.protocol import Run
from trainer_entry.push import PushClient
from trainer_entry.settings import Settings
client = PushClient(Settings(url=sys.argv[1], state_dir=Path(sys.argv[2])), Run(run_id="run", attempt=1))
for step in range(1, 21):
    client.step(step, {"loss": float(step)})
client.flush(5)
print(client.sender.id, flush=True)
threading.Event().wait()
"""


def spool_files(state: Path) -> list[str]:
    return sorted(path.name for path in (state / "spool").glob("*.spool"))


@pytest.fixture
def hung_server() -> Iterator[str]:
    """The URL of a real server process that is stopped: it accepts connections and answers nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
    process.stdout.close()


def test_nothing_is_lost_or_doubled_when_the_exporter_restarts(connect: Connect, tmp_path: Path) -> None:
    with Receiver() as receiver:
        client = connect(receiver.url, heartbeat_seconds=0.05)
        client.step(1, {"loss": 1.0})
        assert client.flush(10)
        first, port = receiver.steps(), receiver.port
    for step in range(2, 12):
        client.step(step, {"loss": 1.0})
        assert not client.flush(2)
    assert spool_files(tmp_path)
    with Receiver(port) as receiver:
        client.step(12, {"loss": 1.0})
        until(lambda: len(receiver.steps()) == 11, "all that was logged during the outage")
        assert [step.step for step in first + receiver.steps()] == list(range(1, 13))
        assert client.close(10)
    assert spool_files(tmp_path) == []


@pytest.mark.timeout(60)
def test_a_hung_exporter_does_not_block_who_logs(connect: Connect, hung_server: str) -> None:
    client = connect(hung_server, post_seconds=0.5)
    for step in range(1, 100):
        client.step(step, {"loss": 1.0})
    # The promise is that these return at all while nothing is answered; how fast is the benchmark's business.
    assert client.status().sent == 0
    assert not client.close(timeout=0.5)


def test_what_a_hung_exporter_did_not_take_is_on_disk_at_exit(
    connect: Connect, hung_server: str, tmp_path: Path
) -> None:
    client = connect(hung_server, post_seconds=0.2)
    for step in range(1, 6):
        client.step(step, {"loss": 1.0})
    assert not client.close(timeout=0.3)
    with Receiver() as receiver:
        connect(receiver.url).step(6, {"loss": 1.0})
        until(lambda: len(receiver.steps()) == 6, "the old process's steps, then the new one's")
        assert [step.step for step in receiver.steps()] == [1, 2, 3, 4, 5, 6]


def test_the_next_process_sends_what_a_killed_one_left_under_its_sender_and_numbers(
    connect: Connect, tmp_path: Path
) -> None:
    sender = subprocess.Popen(
        [sys.executable, "-c", _SENDER, "http://127.0.0.1:9", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert sender.stdout is not None
    killed = sender.stdout.readline().strip()
    os.kill(sender.pid, signal.SIGKILL)
    sender.wait()
    sender.stdout.close()
    with Receiver() as receiver:
        client = connect(receiver.url)
        client.step(21, {"loss": 21.0})
        until(lambda: len(receiver.steps()) == 21, "twenty old steps and one new")
        assert [step.step for step in receiver.steps()] == list(range(1, 22))
        left = [batch for batch in receiver.batches if batch.sender.id == killed]
        assert [batch.seq for batch in left] == list(range(1, len(left) + 1))
        assert client.close(10)
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_living_process_keeps_its_spool(connect: Connect, tmp_path: Path) -> None:
    down = connect("http://127.0.0.1:9")
    down.step(1, {"loss": 1.0})
    assert not down.flush(2)
    with Receiver() as receiver:
        other = connect(receiver.url)
        other.step(2, {"loss": 1.0})
        assert other.flush(10)
        assert [step.step for step in receiver.steps()] == [2]
    assert any(name.startswith(down.sender.id) for name in spool_files(tmp_path))


def test_a_batch_that_is_refused_for_ever_is_dropped_with_one_warning(connect: Connect) -> None:
    def answer(batch: Batch) -> object:
        return refusal(400, "steps[0].step is not a whole number") if any(s.step % 2 for s in batch.steps) else None

    told: list[str] = []
    with Receiver(answer=answer) as receiver:  # type: ignore[arg-type]
        client = connect(receiver.url, report=told.append)
        for step in range(1, 7):
            client.step(step, {"loss": 1.0})
            assert client.flush(10)
        assert [step.step for step in receiver.steps()] == [2, 4, 6]
    assert client.status().refused == 3
    (sentence,) = told
    assert "steps[0].step is not a whole number" in sentence


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_token_keeps_the_batches_and_warns_once(connect: Connect, tmp_path: Path, status: int) -> None:
    token = tmp_path / "token"
    token.write_text("wrong\n")
    told: list[str] = []
    with Receiver() as receiver:
        receiver.answer = lambda batch: None if receiver.authorizations[-1] == "Bearer right" else refusal(status)
        client = connect(receiver.url, token_file=token, report=told.append)
        for step in (1, 2):
            client.step(step, {"loss": 1.0})
            assert not client.flush(10)
        token.write_text("right\n")
        assert client.flush(10)
        assert [step.step for step in receiver.steps()] == [1, 2]
    assert len(told) == 1
    assert "token" in told[0]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(connect: Connect, status: int) -> None:
    asked: list[float] = []

    def answer(batch: Batch) -> object:
        asked.append(time.monotonic())
        return refusal(status, "too much", Retry_After="1.5") if len(asked) == 1 else None

    with Receiver(answer=answer) as receiver:  # type: ignore[arg-type]
        client = connect(receiver.url, heartbeat_seconds=0.05)
        client.step(1, {"loss": 1.0})
        until(lambda: len(receiver.steps()) == 1, "the step, later")
    assert asked[1] - asked[0] >= 1.4


def test_a_server_error_is_tried_again(connect: Connect) -> None:
    with Receiver(answer=lambda batch: refusal(500) if len(receiver.requests) < 3 else None) as receiver:
        client = connect(receiver.url)
        client.step(1, {"loss": 1.0})
        until(lambda: len(receiver.steps()) == 1, "the step, at the third attempt")


def test_something_that_is_no_exporter_keeps_the_batches(connect: Connect) -> None:
    told: list[str] = []
    with Receiver(answer=lambda batch: (200, ["hello"], {})) as receiver:
        client = connect(receiver.url, report=told.append)
        client.step(1, {"loss": 1.0})
        assert not client.flush(5)
        assert client.status().waiting
    assert "is this the exporter?" in told[0]


def test_without_a_disk_batches_wait_in_memory_and_that_is_told(connect: Connect, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    told: list[str] = []
    client = connect("http://127.0.0.1:9", state_dir=blocked, report=told.append)
    client.step(1, {"loss": 1.0})
    assert not client.flush(2)
    assert client.status().waiting
    assert any("stay in memory" in sentence for sentence in told)


def test_nobody_to_tell_does_not_end_the_sending(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that is gone: the sentence is lost, and nothing else."""
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    with Receiver() as receiver:
        receiver.answer = lambda batch: refusal(500)
        client = connect(receiver.url, report=None)
        client.step(1, {"loss": 1.0})
        assert not client.flush(10)
        receiver.answer = None
        assert client.flush(10)
        assert [step.step for step in receiver.steps()] == [1]


@pytest.mark.parametrize("token", ["two\nlines-secret", "a\u201csecret", "with secret"])
def test_a_token_that_no_header_can_carry_is_told_without_the_token(connect: Connect, token: str) -> None:
    told: list[str] = []
    with Receiver() as receiver:
        client = connect(receiver.url, token=token, report=told.append)
        client.step(1, {"loss": 1.0})
        assert not client.flush(10)
    assert [("token" in sentence, "secret" in sentence) for sentence in told] == [(True, False)]


def test_a_token_file_that_cannot_be_read_is_told(connect: Connect, tmp_path: Path) -> None:
    told: list[str] = []
    with Receiver() as receiver:
        receiver.answer = lambda batch: refusal(401)
        client = connect(receiver.url, token_file=tmp_path / "nowhere", report=told.append)
        client.step(1, {"loss": 1.0})
        assert not client.flush(10)
    assert ["there was none to send: VERL_SENTINEL_TOKEN is not set" in sentence for sentence in told] == [True]
