"""A machine for ``make up`` and ``make down`` in the tests: a folder, free ports, and the commands of the Makefile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from compose.local.services import PORTS
from demo.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS:.0f} s: {what}"
        time.sleep(0.05)


class Machine:
    """A folder for one stack, free ports, and the commands of the Makefile on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "stack"
        self.ports: dict[str, int] = {}
        for key in PORTS:
            self.ports[key] = free_port(frozenset(self.ports.values()))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.endswith("_PORT")},
            **{f"{key.upper()}_PORT": str(port) for key, port in self.ports.items()},
            "STACK": str(self.folder),
        }

    def make(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "compose.local", command],
            cwd=ROOT,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def up(self, **environment: str) -> str:
        done = self.make("up", **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def down(self) -> str:
        done = self.make("down")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pids(self) -> dict[str, int]:
        return {path.stem: json.loads(path.read_text())["pid"] for path in (self.folder / "run").glob("*.json")}

    def url(self, key: str) -> str:
        return f"http://127.0.0.1:{self.ports[key]}"


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def path_without_programs(tmp_path: Path) -> str:
    """A ``PATH`` on which nothing of the stack is."""
    (tmp_path / "empty").mkdir()
    return str(tmp_path / "empty")
