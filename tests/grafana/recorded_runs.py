"""Recorded runs of the stock trainer, pushed to a real exporter as if they ran now, on GPUs where that is asked for."""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path

from msgspec.structs import replace

from demo.recording import read
from exporter.protocol import MSGPACK, PUSH_PATH, Batch, GpuReading, encode

RECORDINGS = Path(__file__).parents[1] / "detectors" / "data"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PlayedRun:
    """One recording under a name of its own.

    Args:
        scenario: file in tests/detectors/data, without its ending.
        speed: how many times as fast as it was.
        gpus: GPUs whose readings go along, four on a node; the second one is busy half as often as the others.
    """

    def __init__(
        self, url: str, token: str, scenario: str, run_id: str, *, speed: float = 1.0, cohort: str = "", gpus: int = 0
    ) -> None:
        self._url, self._token = url + PUSH_PATH, token
        self._batches = read(RECORDINGS / f"{scenario}.jsonl.gz").lines
        self._run_id, self._cohort, self._gpus = run_id, cohort, gpus
        self.speed = speed
        self.over = threading.Event()
        """Set by whoever has seen enough."""
        self._pushed = 0

    def play(self, last_step: int) -> None:
        """Push until the trainer has logged ``last_step`` or it is over; the run goes on from there the next time."""
        began, first = time.monotonic(), self._batches[self._pushed].at
        for line in self._batches[self._pushed :]:
            if self.over.wait(max(0.0, (line.at - first) / self.speed - (time.monotonic() - began))):
                return
            self._push(line.batch)
            self._pushed += 1
            if any(step.step >= last_step for step in line.batch.steps):
                return

    def push_steps(self, last_step: int) -> None:
        """Push only what has steps, at once."""
        for line in self._batches:
            if line.batch.steps:
                self._push(line.batch)
                if any(step.step >= last_step for step in line.batch.steps):
                    return

    def _push(self, batch: Batch) -> None:
        gpus = [self._reading(index) for index in range(self._gpus)] if batch.sender.role == "trainer" else []
        run = replace(batch.run, run_id=self._run_id, cohort=self._cohort)
        body = encode(replace(batch, run=run, gpus=gpus))
        headers = {"Content-Type": MSGPACK, "Authorization": f"Bearer {self._token}", "Accept": MSGPACK}
        with _direct.open(urllib.request.Request(self._url, data=body, headers=headers), timeout=30) as answer:
            answer.read()

    def _reading(self, index: int) -> GpuReading:
        return GpuReading(
            node=f"node-{index // 4}",
            index=index % 4,
            uuid=f"GPU-{index}",
            name="H200",
            memory_used_bytes=60_000_000_000 + self._pushed * 1_000_000,
            memory_total_bytes=150_000_000_000,
            utilization_ratio=0.4 if index == 1 else 0.8,
            power_watts=500.0,
            temperature_celsius=60.0 + index,
            xid_errors=0,
            last_xid=0,
        )
