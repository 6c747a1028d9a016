"""The services that take the samples in :mod:`bench.ingest`: ours, and the peers that stand beside it.

Each starts one process on a free port with a data folder of its own, makes the requests that bring it the same steps in
its own format, and can say how many samples really arrived.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import urllib.request
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from bench.load import request
from bench.processes import cpu_seconds
from bench.verl_step import steps
from demo.client import answers
from demo.processes import Child, free_port
from exporter.protocol import MSGPACK, PROTOCOL_VERSION, PUSH_PATH, encode

POOL = 61
"""Different steps that the senders take in turn; made before, so that making them is not measured."""
START_SECONDS = 60.0
FIRST_TIME_MS = 1_700_000_000_000
"""Time stamp of step 0 in line protocol, in milliseconds; one step a second."""


class Samples:
    """The steps of all runs, the same for every receiver.

    Args:
        runs: number of runs.
        metrics: metrics of a step.
        every_signal: also those that verl logs on some steps only.
    """

    def __init__(self, runs: int, metrics: int, *, every_signal: bool = False) -> None:
        made = steps(metrics, random.Random(3), every_signal=every_signal)
        self.pool = [next(made) for _ in range(POOL)]
        self.runs = [f"run-{number:04d}" for number in range(runs)]
        self.metrics = metrics


class Receiver:
    """One service. ``start`` raises :class:`demo.processes.StartError`."""

    name: str
    program: str | None = None
    """Name of the program where it is not ours."""

    def __init__(self, samples: Samples, folder: Path) -> None:
        self.samples = samples
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.data = folder / "data"
        self.child = Child(self.name, self.command(self.data), folder / "log")
        self.sent = 0
        """Samples that were sent and answered."""
        self._steps = [count(1) for _ in samples.runs]

    @classmethod
    def missing(cls) -> bool:
        return cls.program is not None and shutil.which(cls.program) is None

    def command(self, data: Path) -> Sequence[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def source(self, run: int, batch: int) -> Callable[[], bytes]:
        """Makes one request after the other: the next ``batch`` steps of a run."""
        raise NotImplementedError

    def arrived(self) -> int:
        """Samples that the service says it took since its start."""
        raise NotImplementedError

    def start(self) -> None:
        self.child.start()
        self.child.wait_until(self.ready, START_SECONDS, "it was ready")

    def cpu(self) -> float:
        """Seconds of CPU it has used."""
        assert self.child.pid is not None
        return cpu_seconds(self.child.pid)

    def url(self, path: str) -> str:
        return f"http://{self.host}{path}"

    def scrape(self) -> str:
        with urllib.request.urlopen(self.url("/metrics"), timeout=START_SECONDS) as response:
            return str(response.read().decode())


class Exporter(Receiver):
    """verl-sentinel with its default configuration: every detector on, every push on disk before it is answered."""

    name = "the exporter"

    def __init__(self, samples: Samples, folder: Path) -> None:
        super().__init__(samples, folder)
        self._sequences = [count(1) for _ in samples.runs]
        self._pool = [msgspec.Raw(msgspec.msgpack.encode(step)) for step in samples.pool]

    def command(self, data: Path) -> Sequence[str]:
        return [sys.executable, "-m", "exporter", "--listen", self.host, "--data-dir", str(data)]

    def ready(self) -> bool:
        return answers(self.url("/readyz"))

    def source(self, run: int, batch: int) -> Callable[[], bytes]:
        return lambda: self.push(run, batch)

    def push(self, run: int, batch: int, **more: Any) -> bytes:
        """The next push of a run: ``batch`` steps, and ``more`` fields of :class:`exporter.protocol.Batch`."""
        run_id, pool = self.samples.runs[run], self._pool
        parts = [{"step": step, "metrics": pool[(step + 7 * run) % POOL]} for step in _next(self._steps[run], batch)]
        body = {
            "protocol": PROTOCOL_VERSION,
            "run": {"run_id": run_id, "trainer": "ppo_v1"},
            "sender": {"id": run_id},
            "seq": next(self._sequences[run]),
            "steps": parts,
            **more,
        }
        return request(self.host, "POST", PUSH_PATH, MSGPACK, encode(body))

    def arrived(self) -> int:
        found = re.findall(r"^verl_training_steps_total\{.*\} (\S+)$", self.scrape(), re.MULTILINE)
        return round(sum(map(float, found))) * self.samples.metrics


class Pushgateway(Receiver):
    """Prometheus's Pushgateway as Debian ships it, with a group for each run, replaced at every step."""

    name = "Pushgateway"
    program = "prometheus-pushgateway"

    def __init__(self, samples: Samples, folder: Path) -> None:
        super().__init__(samples, folder)
        names = [re.sub(r"[^a-zA-Z0-9_]", "_", key) for key in samples.pool[0]]
        self._pool = [
            "".join(f"{name} {value!r}\n" for name, value in zip(names, step.values(), strict=True)).encode()
            for step in samples.pool
        ]

    def command(self, data: Path) -> Sequence[str]:
        return [str(shutil.which(str(self.program))), f"--web.listen-address={self.host}"]

    def ready(self) -> bool:
        return answers(self.url("/-/ready"))

    def source(self, run: int, batch: int) -> Callable[[], bytes]:
        path, numbers, pool = f"/metrics/job/verl/run/{self.samples.runs[run]}", self._steps[run], self._pool

        def make() -> bytes:
            body = pool[(next(numbers) + 7 * run) % POOL]
            return request(self.host, "PUT", path, "text/plain; version=0.0.4", body)

        return make

    def arrived(self) -> int:
        """It counts requests, not samples, so this says how many of its requests were good."""
        found = re.search(
            r'^pushgateway_http_requests_total\{code="(?:200|202)",handler="push",method="put"\} (\S+)$',
            self.scrape(),
            re.MULTILINE,
        )
        return round(float(found.group(1))) * self.samples.metrics if found else 0


class VictoriaMetrics(Receiver):
    """VictoriaMetrics as Debian ships it, taking InfluxDB lines: one line a step, one field a metric."""

    name = "VictoriaMetrics"
    program = "victoria-metrics"

    def __init__(self, samples: Samples, folder: Path) -> None:
        super().__init__(samples, folder)
        self._pool = [",".join(f"{key}={value!r}" for key, value in step.items()) for step in samples.pool]

    def command(self, data: Path) -> Sequence[str]:
        return [
            str(shutil.which(str(self.program))),
            f"-httpListenAddr={self.host}",
            f"-storageDataPath={data}",
            # The time stamps of a benchmark are not now.
            "-retentionPeriod=100y",
        ]

    def ready(self) -> bool:
        return answers(self.url("/health"))

    def source(self, run: int, batch: int) -> Callable[[], bytes]:
        run_id, numbers, pool = self.samples.runs[run], self._steps[run], self._pool

        def make() -> bytes:
            lines = (
                f"verl,run={run_id} {pool[(step + 7 * run) % POOL]} {FIRST_TIME_MS + 1000 * step}"
                for step in _next(numbers, batch)
            )
            return request(self.host, "POST", "/write?precision=ms", "text/plain", "\n".join(lines).encode())

        return make

    def arrived(self) -> int:
        found = re.search(r'^vm_rows_inserted_total\{type="influx"\} (\S+)$', self.scrape(), re.MULTILINE)
        return round(float(found.group(1))) if found else 0


def _next(numbers: count[int], batch: int) -> list[int]:
    return [next(numbers) for _ in range(batch)]
