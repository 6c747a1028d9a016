"""``verl-sentinel`` as a process: a command that ends, and a follower that runs; and files as verl writes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from exporter_process import ExporterProcess

DEADLINE_SECONDS = 60.0
PROGRAM = (sys.executable, "-c", "from exporter.__main__ import verl_sentinel; verl_sentinel()")

_T = TypeVar("_T")


def cli(exporter: ExporterProcess | None, *arguments: str, token: str = "ope", **more: str) -> tuple[int, str]:
    """Exit code, and what was written; wide enough that nothing is folded."""
    result = cli_bytes(exporter, *arguments, token=token, **more)
    return result.returncode, result.stdout.decode() + result.stderr.decode()


def cli_bytes(
    exporter: ExporterProcess | None, *arguments: str, token: str = "ope", **more: str
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "COLUMNS": "300", "VERL_SENTINEL_TOKEN": token, **more}
    if exporter is not None:
        environment["VERL_SENTINEL_URL"] = exporter.url
    result = subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    return result


def until(condition: Callable[[], _T], what: Callable[[], object] = str) -> _T:
    """The first true value of a condition; fails with ``what`` at the deadline."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, what()
        time.sleep(0.02)
    return value


@dataclass
class FollowerProcess:
    """``verl-sentinel follow FILE``; its state lies in ``folder``, where a later start finds it."""

    folder: Path
    file: Path
    url: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def log(self) -> str:
        """What the newest start said."""
        return (self.folder / f"follow-{self.starts}.log").read_text()

    def start(self) -> FollowerProcess:
        self.starts += 1
        with (self.folder / f"follow-{self.starts}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, "follow", str(self.file), "--state-dir", str(self.folder / "state"), *self.options],
                stdout=log,
                stderr=log,
                env={**os.environ, "VERL_SENTINEL_URL": self.url, **self.environment},
            )
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        code = self.process.wait(DEADLINE_SECONDS)
        assert "Traceback" not in self.log
        return code

    def says(self, words: str) -> None:
        until(lambda: words in self.log, lambda: self.log)

    def clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def detail(exporter: ExporterProcess, run: str) -> Any:
    """What the API says of a run; None while it is not known."""
    answer = exporter.get(f"/api/v1/runs/{run}")
    return answer.json if answer.status == 200 else None


def exported(exporter: ExporterProcess, run: str, **query: str) -> list[dict[str, Any]]:
    """The lines of the run's export."""
    words = "&".join(f"{name}={value}" for name, value in query.items())
    answer = exporter.get(f"/api/v1/runs/{run}/steps?{words}")
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


class FileLogger:
    """Writes as verl's ``file`` logger does: the file is truncated in place at the start, each line is one write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)

    def log(self, step: int, **metrics: float | None) -> None:
        self._file.write(self.line(step, **metrics))

    def write(self, raw: bytes) -> None:
        self._file.write(raw)

    @staticmethod
    def line(step: int, **metrics: float | None) -> bytes:
        data = {"actor/loss": 0.5 / (step + 1), "timing_s/step": 0.25, **metrics}
        return json.dumps({"step": step, "data": data}, separators=(",", ":")).encode() + b"\n"

    def close(self) -> None:
        self._file.close()
