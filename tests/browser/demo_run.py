"""A demo run as a person sees it: the stock trainer under its supervisor, watched by real programs, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 600.0

_T = TypeVar("_T")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class DemoRun:
    """``python -m demo --hold`` in a process of its own.

    Args:
        out: its output folder, new.
        options: further options of the demo.
    """

    def __init__(self, out: Path, scenario: str, *options: str) -> None:
        self.out = out
        self.run_id = f"demo-{scenario}"
        self._log = out.with_name("demo.log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo", "--scenario", scenario, "--out", str(out), "--hold", *options],
                cwd=REPOSITORY,
                env={**os.environ, "COLUMNS": "200"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, look: Callable[[], _T | None], what: str, seconds: float = PATIENCE_SECONDS) -> _T:
        """What ``look`` finds, as soon as it finds it; fails with the demo's output where the demo has ended."""
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert self.process.poll() is None, f"the demo ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{self.output}"
            time.sleep(0.3)

    @property
    def addresses(self) -> dict[str, Any]:
        """Of the programs, and the files with the tokens."""
        path = self.out / "stack.json"

        def look() -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = json.loads(path.read_text())
            except (OSError, ValueError):
                return None
            return found

        return self.until(look, "it said where everything is")

    def token(self, scope: str) -> str:
        return Path(self.addresses["tokens"][scope]).read_text().strip()

    def ask(self, program: str, path: str) -> Any | None:
        """JSON of one of the programs, None while it does not answer."""
        request = urllib.request.Request(self.addresses[program] + path)
        if program == "exporter":
            request.add_header("Authorization", f"Bearer {self.token('operate')}")
        try:
            with _direct.open(request, timeout=10.0) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def detail(self) -> dict[str, Any] | None:
        """The run, as the exporter knows it."""
        found = self.ask("exporter", f"/api/v1/runs/{urllib.parse.quote(self.run_id, safe='')}")
        return found if isinstance(found, dict) and "run" in found else None

    def reached(self, step: int) -> bool:
        found = self.detail()
        return found is not None and (found["run"]["step"] or 0) >= step

    def alerts(self) -> list[dict[str, Any]]:
        """What Alertmanager has of this run."""
        found = self.ask("alertmanager", "/api/v2/alerts?active=true")
        return [one for one in found or [] if one["labels"].get("run") == self.run_id]

    def recovery(self) -> dict[str, Any] | None:
        """The newest one."""
        found = self.ask("exporter", "/api/v1/recoveries?limit=1")
        return found["recoveries"][0] if found and found["recoveries"] else None

    def audit(self) -> list[dict[str, Any]]:
        found = self.ask("exporter", "/api/v1/audit?limit=1000")
        return found["audit"] if found else []

    def end(self) -> int:
        """Ctrl-C; the demo's exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=PATIENCE_SECONDS)
