"""Shadows started by the tests as an attempt process starts them, without a supervisor above."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer_entry.supervisor.processes import MARKER_VARIABLE

REPOSITORY = Path(__file__).parent.parent.parent
SECONDS = 240.0
"""Ray needs seconds for a job where nothing else runs, and minutes on a machine that is loaded tenfold."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition; fails with ``what`` when it does not come in time."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for: {what}")


SLEEPER = "echo $$ > pid; exec sleep 600"
"""A job for ``sh -c`` that leaves its process id, and lasts."""


class Shadows:
    """One run in a folder; ends every shadow that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_SENTINEL", "SLURM", "RAY_"))}
        self.environ |= {"PYTHONPATH": str(REPOSITORY), "VERL_SENTINEL_RUN_ID": "test-run"}
        self.environ["VERL_SENTINEL_STATE_DIR"] = str(self.state)
        self.markers: dict[int, str] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    def attempt(self, number: int = 1) -> Path:
        """The attempt's folder."""
        directory = self.state / "attempts" / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def start(
        self, executor: str, settings: Path | None, *words: str, attempt: int = 1, **environ: str
    ) -> subprocess.Popen[bytes]:
        """The shadow of that attempt; a second one of the same attempt has the same name."""
        directory = self.attempt(attempt)
        marker = self.markers.setdefault(attempt, uuid.uuid4().hex)
        given = ["--settings", str(settings)] if settings else []
        with open(directory / "output.log", "ab") as log:
            shadow = subprocess.Popen(
                [sys.executable, "-m", "trainer_entry.executors", "--executor", executor, *given, "--", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**self.environ, "VERL_SENTINEL_ATTEMPT": str(attempt), MARKER_VARIABLE: marker, **environ},
            )
        self._started.append(shadow)
        return shadow

    def output(self, attempt: int = 1) -> str:
        """What the attempt printed."""
        return (self.attempt(attempt) / "output.log").read_text("utf-8", "replace")

    def record(self, attempt: int = 1) -> dict[str, Any]:
        """Its job.json; empty where there is none."""
        try:
            found: dict[str, Any] = json.loads((self.attempt(attempt) / "job.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def pid(self) -> int:
        """What the job has written to the file `pid`."""
        path = self.folder / "pid"
        until(lambda: path.exists() and path.read_text().strip(), "the job to run")
        return int(path.read_text())

    def close(self) -> None:
        """End what was started."""
        for shadow in self._started:
            if shadow.poll() is None:
                shadow.kill()
            shadow.wait(SECONDS)
