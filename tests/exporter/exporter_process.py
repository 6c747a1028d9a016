"""The real exporter as a process on a free port, and requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from exporter_scene import batch

from exporter.protocol import PushAnswer, encode

DEADLINE_SECONDS = 60.0
PUSH = "/api/v1/push"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["reason"])


@dataclass
class ExporterProcess:
    """``arguments`` follow ``python -m exporter``; the port is the one that it took."""

    folder: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    """Of the client, where the exporter speaks TLS."""
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.folder / "exporter.log").read_text(errors="replace")

    def start(self, *, until_ready: bool = True) -> None:
        with (self.folder / "exporter.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "exporter", "--listen", "127.0.0.1:0", *self.arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        self.url = wait_for(self._address, self)
        if until_ready:
            wait_for(self.ready, self)

    def _address(self) -> str:
        found = re.search(r"Listening on (https?://\S+),", self.log)
        return found.group(1) if found else ""

    def ready(self) -> bool:
        try:
            return self.get("/readyz").status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_SECONDS)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: bytes | dict[str, Any], **headers: str) -> Answer:
        """A dict is sent as JSON; header names have ``_`` for ``-``."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict):
            return self.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json", **given})
        return self.request("POST", path, body, {"Content-Type": "application/msgpack", **given})

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        request = urllib.request.Request(self.url + path, data=body, headers=dict(headers), method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS, context=self.context) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def metrics(self) -> dict[str, float]:
        """Every sample by its text up to the value."""
        lines = self.get("/metrics").body.decode().rstrip("\n").split("\n")
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def wait_for(condition: Any, exporter: ExporterProcess) -> Any:
    """The first true value of ``condition``; fails with the log where the process ends or the deadline passes."""
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        if exporter.process is not None and exporter.process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"not reached; the exporter's log:\n{exporter.log}")


@contextlib.contextmanager
def running(folder: Path, *arguments: str, **options: Any) -> Iterator[ExporterProcess]:
    exporter = ExporterProcess(folder, ("--data-dir", str(folder / "data"), *arguments), **options)
    try:
        exporter.start()
        yield exporter
    finally:
        if exporter.process is not None and exporter.process.poll() is None:
            exporter.kill()


def push(exporter: ExporterProcess, **fields: Any) -> PushAnswer:
    answer = exporter.post(PUSH, encode(batch(**fields)))
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/msgpack"
    return msgspec.msgpack.decode(answer.body, type=PushAnswer)
