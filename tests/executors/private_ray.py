"""A Ray head on this machine for the tests, with token authentication, in a folder and on ports of its own."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from private_slurm import free_ports

from trainer_entry.supervisor import processes

SECONDS = 240.0
TRIES = 3
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
        """Start the head, and wait until it has run a job. Ray gives up its own start after 30 s, which are not enough
        on a machine that is loaded tenfold, so it is tried again.
        """
        for _ in range(TRIES):
            if self._start_once():
                return
            self._end()
        raise AssertionError(f"Ray did not come up: {(self.folder / 'head.log').read_text('utf-8', 'replace')[-3000:]}")

    def _start_once(self) -> bool:
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
            head = self._head = subprocess.Popen(
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
        trial = b'{"entrypoint": "true", "submission_id": "trial"}'
        while time.monotonic() < deadline and head.poll() is None:
            try:
                self._ask("POST", "/api/jobs/", trial)  # refused as long as the job agent is not there
                break
            except (OSError, http.client.HTTPException):
                time.sleep(0.5)
        while time.monotonic() < deadline and head.poll() is None:
            try:
                if self.jobs()["trial"]["status"] == "SUCCEEDED":
                    return True
            except (OSError, http.client.HTTPException, KeyError):
                pass
            time.sleep(0.3)
        return False

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

    def stop_all(self) -> None:
        """End every job, and wait for that."""
        deadline = time.monotonic() + SECONDS
        while (left := self.alive()) and time.monotonic() < deadline:
            for name in left:
                self._ask("POST", f"/api/jobs/{name}/stop")
            time.sleep(0.5)

    def close(self) -> None:
        """End the head, and remove what it left."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        """All processes that the head started, and itself: they carry the marker."""
        leader = processes.identify(self._head.pid) if self._head is not None else None
        processes.sweep(self._marker, leader, term_seconds=5, kill_seconds=20)
        if self._head is not None:
            self._head.kill()
            self._head.wait(20)
            self._head = None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token_file.read_text()}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, method=method, headers=headers, data=body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            said: bytes = answer.read()
        return said
