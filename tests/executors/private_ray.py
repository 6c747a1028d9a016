"""A Ray head on this machine for the tests, with token authentication, in a folder and on ports of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from private_slurm import free_ports

from trainer_entry.supervisor import processes

SECONDS = 240.0
REPOSITORY = Path(__file__).parent.parent.parent


class PrivateRay:
    """Call :meth:`start`; its token is in ``token_file``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vs-ray-"))
        self.token_file = self.folder / "token"
        self.token_file.write_text(secrets.token_hex(32))
        self.token_file.chmod(0o600)
        self._marker = uuid.uuid4().hex
        self._head: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start the head, and wait until its job agent takes jobs."""
        port, dashboard, client, agent = free_ports(4)
        self.address = f"http://127.0.0.1:{dashboard}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_SENTINEL", "RAY_"))}
        environ = {
            **kept,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "PYTHONPATH": str(REPOSITORY),
            processes.MARKER_VARIABLE: self._marker,
        }
        with open(self.folder / "head.log", "wb") as log:
            self._head = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                    *(f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"),
                    *(f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"),
                    *(f"--temp-dir={self.folder}/r", "--num-cpus=4", "--object-store-memory=80000000"),
                    *("--include-dashboard=true", "--disable-usage-stats"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            # The agent comes up last; it is asked through the head, by ending a job that does not exist.
            if self._status("POST", "/api/jobs/none/stop") == 404 and self._status("GET", "/api/version") == 200:
                return
            time.sleep(0.3)
        raise AssertionError(f"Ray did not come up: {(self.folder / 'head.log').read_text('utf-8', 'replace')[-3000:]}")

    def settings(self, folder: Path, **more: Any) -> Path:
        """A settings file for this cluster."""
        path = folder / "ray-settings.json"
        given = {"address": self.address, "token_file": str(self.token_file), "poll_seconds": 0.3, **more}
        path.write_text(json.dumps(given))
        return path

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All jobs that were submitted, by their id."""
        body = self._ask("GET", "/api/jobs/")
        return {job["submission_id"]: job for job in json.loads(body) if job.get("submission_id")}

    def alive(self) -> list[str]:
        """Jobs that wait or run."""
        return [name for name, job in self.jobs().items() if job["status"] in ("PENDING", "RUNNING")]

    def close(self) -> None:
        """End all processes that this head started, and itself: they carry the marker."""
        leader = processes.identify(self._head.pid) if self._head is not None else None
        processes.sweep(self._marker, leader, term_seconds=5, kill_seconds=20)
        if self._head is not None:
            self._head.kill()
            self._head.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.token_file.read_text()}"}
        request = urllib.request.Request(self.address + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body: bytes = answer.read()
        return body

    def _status(self, method: str, path: str) -> int:
        try:
            self._ask(method, path)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0
        return 200
