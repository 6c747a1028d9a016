"""Debian's victoria-metrics on a free port, with its storage in a folder, and what it was told."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from demo.processes import Child, free_port

PROGRAM = "victoria-metrics"
DEADLINE_SECONDS = 60.0

needs_victoria_metrics = [
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed"),
]

Labels = frozenset[tuple[str, str]]
T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T]) -> T:
    """The first true value of ``condition``."""
    until = time.monotonic() + DEADLINE_SECONDS
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not reached: {what}"
        time.sleep(0.05)


class Victoria:
    """One server; its port and its storage stay the same over stops and starts."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._child = Child(
            PROGRAM,
            [
                PROGRAM,
                f"-httpListenAddr=127.0.0.1:{self.port}",
                f"-storageDataPath={folder / 'victoria'}",
                "-search.latencyOffset=0",
                "-search.disableCache",
                "-retentionPeriod=1y",
                "-memory.allowedBytes=64MB",
            ],
            folder / "victoria.log",
        )

    def start(self) -> None:
        self._child.start()
        self._child.wait_until(lambda: self._answers("/health"), DEADLINE_SECONDS, "it answered")

    def stop(self) -> None:
        """SIGTERM: it writes what it has to its storage and ends."""
        self._child.stop(DEADLINE_SECONDS)

    def flush(self) -> None:
        """Make what was written so far visible to queries."""
        self._get("/internal/force_flush")

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query, now."""
        self.flush()
        answer = json.loads(self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': promql})}"))
        return list(answer["data"]["result"])

    def samples(self, selector: str) -> dict[Labels, set[tuple[int, float]]]:
        """Every stored sample of the series, as (milliseconds, value), by labels and name."""
        return {
            frozenset(series["metric"].items()): {(round(at * 1000), float(value)) for at, value in series["values"]}
            for series in self.query(f"{selector}[2d]")
        }

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return bytes(answer.read())

    def _answers(self, path: str) -> bool:
        try:
            self._get(path)
        except (OSError, urllib.error.HTTPError):
            return False
        return True
