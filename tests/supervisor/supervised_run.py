"""What the tests of the supervisor and of the rollback script share: a fake exporter, and runs with real processes."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from exporter.protocol import Abort, Batch, Command, CommandProgress, PushAnswer, decode_batch, encode
from trainer_entry.supervisor import processes

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SCRIPTS = REPOSITORY / "rules" / "rollback"
SCRIPT = SCRIPTS / "checkpoint.sh"
SECONDS = 40.0
STEPS = {"choose": "choose_target", "stop": "stop_trainer", "resume": "start_trainer", "end": "start_trainer"}
"""Where a gated script is halted: before it chooses, before it stops, before it starts, and after all of it."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition; fails with ``what`` when it does not come in time."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.03)
    raise AssertionError(f"waited in vain for: {what}")


def gated(folder: Path, step: str, arrived: Path, gate: Path, rung: str = "checkpoint") -> Path:
    """A folder with the script of one rung, which waits for ``gate`` at a step, and says so by ``arrived``."""
    lines = (SCRIPTS / f"{rung}.sh").read_text().splitlines()
    place = lines.index(STEPS[step]) + (step == "end")
    lines.insert(place, f'touch "{arrived}"; while ! [[ -e "{gate}" ]]; do sleep 0.05; done')
    folder.mkdir()
    (folder / f"{rung}.sh").write_text("\n".join(lines) + "\n")
    return folder


class FakeExporter:
    """Takes pushes as the exporter does, keeps what supervisors said, and hands a command out until it is final."""

    def __init__(self, port: int = 0) -> None:
        self.batches: list[Batch] = []
        self.command: Command | None = None
        self.abort: Abort | None = None
        self.closed = False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                batch = decode_batch(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.closed:  # a kept-alive connection dies with its server
                    self.close_connection = True
                    return
                outer.batches.append(batch)
                asked = batch.sender.role == "supervisor"
                command, abort = (outer.command, outer.abort) if asked else (None, None)
                body = encode(PushAnswer(accepted_seq=batch.seq, command=command, abort=abort))
                self.send_response(200)
                self.send_header("Content-Type", "application/msgpack")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # a supervisor that a test killed
                    super().handle()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.closed = True
        self.server.shutdown()
        self.server.server_close()

    def events(self, kind: str) -> list[Any]:
        """Events by their tag, each with the attempt that it was reported under."""
        return [
            (batch.run.attempt, event)
            for batch in list(self.batches)
            for event in batch.events
            if event.__struct_config__.tag == kind
        ]

    def progress(self, command_id: str) -> list[CommandProgress]:
        return [e for _, e in self.events("command_progress") if e.command_id == command_id]

    def states(self, command_id: str) -> list[str]:
        """The states reported, in order; one told twice in a row counts once."""
        told = [p.state for p in self.progress(command_id)]
        return [state for i, state in enumerate(told) if i == 0 or told[i - 1] != state]

    def final(self, command_id: str) -> CommandProgress:
        """Wait for the end of a command, then stop handing it out."""

        def ended() -> list[CommandProgress]:
            return [p for p in self.progress(command_id) if p.state in ("succeeded", "failed")]

        last: CommandProgress = until(ended, f"the end of command {command_id}")[0]
        self.command = self.abort = None
        return last


class Scene:
    """One run in a folder of its own; ends everything it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.state = folder / "state"
        self.exporter: FakeExporter | None = None
        self.supervisors: list[subprocess.Popen[str]] = []
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("VERL_SENTINEL")}
        self.environ["PYTHONPATH"] = str(REPOSITORY)
        self.environ["VERL_SENTINEL_PYTHON"] = sys.executable
        self.environ["VERL_SENTINEL_ENVIRONMENTS"] = str(folder / "environments")

    def trainer(self, *words: str, **fake: object) -> list[str]:
        """The trainer's command line."""
        return [
            sys.executable,
            str(HERE / "fake_trainer.py"),
            f"trainer.default_local_dir={self.checkpoints}",
            *(f"+fake.{name}={value}" for name, value in fake.items()),
            *words,
        ]

    def run(
        self, trainer: list[str] | None, *options: str, wait: str = "30", url: bool = True
    ) -> subprocess.Popen[str]:
        """Start a supervisor; ``trainer`` None goes on with the recorded command."""
        words = [
            sys.executable,
            "-m",
            "trainer_entry.cli",
            "run",
            "--state-dir",
            str(self.state),
            "--run-id",
            "test-run",
        ]
        words += ["--wait-for-command-seconds", wait, "--term-seconds", "2"]
        if url:
            words += ["--url", self.exporter.url if self.exporter is not None else "off"]
        words += [*options, *(["--", *trainer] if trainer is not None else [])]
        log = self.folder / f"supervisor-{len(self.supervisors)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, env=self.environ, cwd=self.folder, text=True
            )
        self.supervisors.append(process)
        return process

    def said(self, number: int = -1) -> str:
        """All that a supervisor printed."""
        index = number % len(self.supervisors)
        return (self.folder / f"supervisor-{index}.log").read_text()

    def ended(self, process: subprocess.Popen[str]) -> int:
        """The exit code of a supervisor."""
        return process.wait(SECONDS)

    def starts(self) -> list[dict[str, Any]]:
        """Every start of the trainer, in order."""
        try:
            text = (self.checkpoints / "starts.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def attempts(self) -> int:
        """How many attempts were ever begun; known at once, while a start of the trainer shows only when it runs."""
        return len(list((self.state / "attempts").iterdir()))

    def started(self, count: int = 1) -> dict[str, Any]:
        """Wait for that many starts; the last of them."""
        until(lambda: len(self.starts()) >= count, f"start {count} of the trainer")
        found: dict[str, Any] = self.starts()[count - 1]
        return found

    def saved(self, step: int) -> Path:
        """Wait until a checkpoint and its manifest are there."""
        directory = self.checkpoints / f"global_step_{step}"
        until((directory / "verl_sentinel_manifest.json").exists, f"the manifest of step {step}")
        return directory

    def output_has(self, attempt: int, text: str) -> None:
        """Wait until the trainer printed that."""
        path = self.state / "attempts" / str(attempt) / "output.log"
        until(lambda: path.exists() and text in path.read_text(), f"{text!r} in the output of attempt {attempt}")

    def cli(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run verl-sentinel-train to its end."""
        return subprocess.run(
            [sys.executable, "-m", "trainer_entry.cli", *words],
            capture_output=True,
            text=True,
            env={**self.environ, **environ},
            cwd=self.folder,
            timeout=SECONDS,
            check=False,
        )

    def script(
        self, *words: str, name: str = "checkpoint", seconds: float = SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a rollback script by hand, to its end."""
        return subprocess.run(
            ["bash", str(SCRIPTS / f"{name}.sh"), *words],
            capture_output=True,
            text=True,
            env=self.environ,
            cwd=self.folder,
            timeout=seconds,
            check=False,
        )

    def command(self, name: str, attempt: int = 1, action: Any = "rollback", **fields: Any) -> Command:
        """Have the exporter hand out a command from now on."""
        assert self.exporter is not None
        self.exporter.command = Command(id=name, run_id="test-run", attempt=attempt, action=action, **fields)
        return self.exporter.command

    def abort(self, name: str, attempt: int = 1, action: Any = "rollback") -> Abort:
        """Have the exporter call a command off: from now on the abort is handed out, and the command no more."""
        assert self.exporter is not None
        self.exporter.command = None
        self.exporter.abort = Abort(
            id=name, run_id="test-run", attempt=attempt, action=action, reason="ada aborted it."
        )
        return self.exporter.abort

    def of_attempts(self) -> list[int]:
        """Live processes of any attempt of this run, by the marker."""
        found = []
        for request in self.state.glob("attempts/*/request.json"):
            marker = json.loads(request.read_text())["marker"]
            found += [process.pid for process in processes.members(marker, None)]
        return sorted(found)

    def close(self) -> None:
        """End everything that this run started."""
        for process in self.supervisors:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        for request in self.state.glob("attempts/*/request.json"):
            processes.sweep(json.loads(request.read_text())["marker"], None, term_seconds=0, kill_seconds=10)
        if self.exporter is not None:
            self.exporter.close()


def alive(pid: int) -> bool:
    """True for a process that runs (a zombie does not)."""
    process = processes.identify(pid)
    return process is not None and processes.is_alive(process)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def read(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())
