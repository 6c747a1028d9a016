"""The Ray actor itself, on a Ray cluster of one node with a mocked driver: readings arrive, and no process stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from exporter.protocol import Batch, PushAnswer, Run, decode_batch, encode
from trainer_entry.gpu import start_samplers
from trainer_entry.gpu.actor import DEFAULT_SECONDS, interval, nodes_to_sample
from trainer_entry.settings import Settings

DEADLINE_SECONDS = 60.0
SESSION = Path(__file__).with_name("ray_session.py")


def until(wanted: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if answer := wanted():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {DEADLINE_SECONDS:g} s")


class Receiver(ThreadingHTTPServer):
    """Takes pushes as the exporter does, and keeps them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.tokens: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), _Take)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Take(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        batch = decode_batch(body, self.headers["Content-Type"])
        self.server.tokens.add(self.headers["Authorization"])
        self.server.batches.append(batch)
        answer = encode(PushAnswer(accepted_seq=batch.seq))
        self.send_response(200)
        self.send_header("Content-Type", "application/msgpack")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the test looks at what arrived."""


class Session:
    """The process of `ray_session.py`, its output, and the sampler processes that belong to it."""

    def __init__(self, driver: Any, receiver: Receiver, folder: Path) -> None:
        self._mark = driver.environment["FAKE_NVML_CONTROL"]
        self._output = folder / "output"
        environment = driver.environment | {"VERL_SENTINEL_GPU_SECONDS": "0.2", "RAY_USAGE_STATS_ENABLED": "0"}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SESSION), receiver.url, str(folder / "state")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def tell(self, word: str, answer: str) -> None:
        before = self.output.count(answer)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        self.wait_for(answer, before + 1)

    def wait_for(self, answer: str, times: int = 1) -> None:
        def there() -> bool:
            assert self.process.poll() is None, f"the Ray session ended:\n{self.output}"
            return self.output.count(answer) >= times

        until(there, f"{answer!r} in the output of the Ray session")

    def end(self) -> None:
        """Let it shut its Ray cluster down; kill it where it does not."""
        try:
            self.process.communicate("end\n", timeout=DEADLINE_SECONDS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait(timeout=DEADLINE_SECONDS)

    def samplers(self) -> list[int]:
        """Process ids of the sampler actors of this session, found by name and by the mocked driver they see."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                named = b"NodeSampler" in (process / "cmdline").read_bytes()
                if named and self._mark.encode() in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except (OSError, ValueError):
                continue
        return found


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def shared_driver(make_driver: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def session(shared_driver: Any, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    pytest.importorskip("ray", reason="Ray is not installed here")
    session = Session(shared_driver, receiver, tmp_path_factory.mktemp("session"))
    session.wait_for("ready")
    yield session
    session.end()


@pytest.mark.trainer
def test_readings_arrive_with_the_identity_of_the_run_and_follow_the_gpu(
    session: Session, shared_driver: Any, receiver: Receiver
) -> None:
    shared_driver.set(count=2, init=None)
    shared_driver.healthy_gpu(0, used=111)
    shared_driver.gpu(1, handle="!15")
    session.tell("start", "started 1")

    def newest(used: int) -> Batch | None:
        fitting = [batch for batch in receiver.batches if batch.gpus and batch.gpus[0].memory_used_bytes == used]
        return fitting[-1] if fitting else None

    batch = until(lambda: newest(111), "a batch with the memory used")
    assert (batch.run.run_id, batch.run.attempt, batch.sender.role) == ("r1", 2, "gpu")
    healthy, lost = batch.gpus
    assert (healthy.uuid, healthy.utilization_ratio, healthy.lost) == ("GPU-0", 0.57, False)
    assert (lost.index, lost.lost, lost.error) == (1, True, "GPU is lost")
    assert receiver.tokens == {"Bearer secret"}
    shared_driver.gpu(0, used=222)
    until(lambda: newest(222), "a batch with the memory that grew")
    assert len(session.samplers()) == 1
    session.tell("drop", "dropped")
    until(lambda: not session.samplers(), "the end of the actor after its last handle")


@pytest.mark.trainer
def test_where_ray_was_told_of_a_gpu_that_is_not_there_the_actor_says_so_once_and_ends(
    session: Session, shared_driver: Any
) -> None:
    shared_driver.set(init="!9")
    before = session.output.count("the NVIDIA driver is not loaded")
    session.tell("start", "started 1")
    session.wait_for("the NVIDIA driver is not loaded", before + 1)
    until(lambda: not session.samplers(), "the end of the actor that has nothing to read")
    assert session.output.count("the NVIDIA driver is not loaded") == before + 1
    session.tell("drop", "dropped")


@pytest.mark.trainer
def test_a_killed_trainer_takes_its_samplers_with_it(
    make_driver: Callable[[Path], Any], receiver: Receiver, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed here")
    driver = make_driver(tmp_path)
    driver.set(count=1)
    driver.healthy_gpu(0)
    session = Session(driver, receiver, tmp_path)
    session.wait_for("ready")
    session.tell("start", "started 1")
    until(session.samplers, "a sampler process")
    os.kill(session.process.pid, signal.SIGKILL)
    session.process.wait(timeout=DEADLINE_SECONDS)
    until(lambda: not session.samplers(), "the end of the actor after its driver was killed")


def _node(name: str, gpus: float = 0, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 8.0} | ({"GPU": gpus} if gpus else {})}


def test_only_nodes_with_something_to_read_get_an_actor() -> None:
    cluster = [_node("head"), _node("a", 8), _node("b", 8), _node("cpu"), _node("dead", 8, alive=False)]
    assert nodes_to_sample(cluster, "head", own_node_has_nvml=False) == ["a", "b"]
    assert nodes_to_sample(cluster, "head", own_node_has_nvml=True) == ["head", "a", "b"]


def test_a_logical_gpu_on_a_machine_without_nvml_starts_no_process() -> None:
    assert nodes_to_sample([_node("toy", 1)], "toy", own_node_has_nvml=False) == []


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1e9"])
def test_an_interval_that_makes_no_sense_is_said_and_replaced(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert interval({"VERL_SENTINEL_GPU_SECONDS": text}) == DEFAULT_SECONDS
    assert f"VERL_SENTINEL_GPU_SECONDS is '{text}'; expected seconds from 0.1 to 3600" in capsys.readouterr().err


def test_the_interval_is_read_from_the_environment() -> None:
    assert interval({"VERL_SENTINEL_GPU_SECONDS": "2.5"}) == 2.5
    assert interval({}) == DEFAULT_SECONDS


SAMPLE_HERE = """
import sys, time
from pathlib import Path
from exporter.protocol import Run
from trainer_entry.gpu import start_samplers
from trainer_entry.settings import Settings
print(start_samplers(Settings(url=sys.argv[1], state_dir=Path(sys.argv[2])), Run(run_id="sft")), flush=True)
sys.stdin.read()
"""


def _without_ray(driver: Any, url: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAMPLE_HERE, url, str(folder)],
        env=driver.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_trainer_without_ray_samples_in_its_own_process(driver: Any, receiver: Receiver, tmp_path: Path) -> None:
    driver.set(count=1)
    driver.healthy_gpu(0, used=333)
    process = _without_ray(driver, receiver.url, tmp_path)
    try:
        until(
            lambda: any(
                batch.run.run_id == "sft" and batch.gpus[0].memory_used_bytes == 333 for batch in receiver.batches
            ),
            "readings of a trainer without Ray",
        )
    finally:
        output, _ = process.communicate("", timeout=DEADLINE_SECONDS)
    assert output.strip() == "[]"
    assert process.returncode == 0


def test_a_trainer_without_ray_and_nvml_says_so_in_one_line(driver: Any, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    driver.library_dir = tmp_path
    output, _ = _without_ray(driver, receiver.url, tmp_path).communicate("", timeout=DEADLINE_SECONDS)
    assert "no GPU readings in this run: NVML (libnvidia-ml.so.1) is not on this machine" in output
    assert len(output.splitlines()) == 2


def test_a_sampler_that_cannot_be_started_is_said_and_never_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class BrokenRay:
        @staticmethod
        def is_initialized() -> bool:
            raise RuntimeError("the cluster is gone")

    monkeypatch.setitem(sys.modules, "ray", BrokenRay)
    assert start_samplers(Settings(url="http://127.0.0.1:9"), Run(run_id="r")) == []
    assert "no GPU readings in this run: RuntimeError: the cluster is gone" in capsys.readouterr().err
