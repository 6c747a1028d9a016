"""The real exporter, configured with an InfluxDB sink, killed and stopped while runs push: nothing is missing after."""

from __future__ import annotations

import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sink_scene import batch, series
from victoria import DEADLINE_SECONDS, Victoria, needs_victoria_metrics, wait_for

from demo.client import answers
from demo.processes import Child, free_port
from exporter.protocol import Step, encode

pytestmark = needs_victoria_metrics

TOKEN = "influx-t0ken"


class Exporter:
    """One exporter on a port of its own that writes to a server."""

    def __init__(self, folder: Path, url: str, **influxdb: object) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.token = folder / "influx-token"
        self.token.write_text(f"{TOKEN}\n")
        section = {"url": url, "org": "o", "bucket": "b", "token": {"file": str(self.token)}, **influxdb}
        config = {"listen": self.url[7:], "data_dir": str(folder / "data"), "influxdb": section}
        path = folder / "exporter.yml"
        path.write_text(yaml.safe_dump(config))
        self.log = folder / "exporter.log"
        self._child = Child("the exporter", [sys.executable, "-m", "exporter", "--config", str(path)], self.log)
        self.pushed = 0

    def start(self) -> None:
        self._child.start()
        self._child.wait_until(lambda: answers(f"{self.url}/readyz"), DEADLINE_SECONDS, "it was ready")

    def kill(self) -> None:
        self._child.send(signal.SIGKILL)
        wait_for("it is dead", lambda: not self._child.running())

    def stop(self) -> None:
        self._child.stop(DEADLINE_SECONDS)

    def exit_code(self) -> int | None:
        return self._child.exit_code()

    def push(self, count: int) -> None:
        """Steps, numbered on and on, each acknowledged before the next."""
        for _ in range(count):
            self.pushed += 1
            steps = [Step(step=self.pushed, metrics={"actor/loss": self.pushed / 8})]
            headers = {"Content-Type": "application/msgpack"}
            body = encode(batch(seq=self.pushed, steps=steps))
            request = urllib.request.Request(f"{self.url}/api/v1/push", data=body, headers=headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def sink(self, name: str) -> float:
        found = re.search(rf'^verl_sentinel_sink_{name}\{{sink="influxdb"\}} (\S+)$', self.metrics(), re.MULTILINE)
        assert found is not None, name
        return float(found.group(1))


@pytest.fixture
def exporter(tmp_path: Path, victoria: Victoria) -> Iterator[Exporter]:
    exporter = Exporter(tmp_path, victoria.url)
    try:
        exporter.start()
        yield exporter
    finally:
        exporter.stop()


def steps_in(victoria: Victoria) -> list[float]:
    """Values of the loss by time, one for each timestamp, as steps."""
    found = victoria.samples('{__name__="verl_step_actor/loss"}').get(series("verl_step_actor/loss"), set())
    return [value * 8 for _, value in sorted(found)]


def test_nothing_is_missing_after_outages_kills_and_a_stop(exporter: Exporter, victoria: Victoria) -> None:
    exporter.push(50)
    wait_for("the first steps are written", lambda: exporter.sink("written_points_total") >= 100)
    victoria.stop()
    exporter.push(100)
    wait_for("it is told", lambda: exporter.sink("up") == 0 and exporter.sink("lag_entries") >= 100)
    assert exporter.sink("lag_seconds") > 0
    assert answers(f"{exporter.url}/readyz"), "a sink that is behind is no reason to push elsewhere"
    exporter.kill()
    exporter.start()
    exporter.push(100)
    victoria.start()
    exporter.push(50)
    exporter.kill()
    exporter.start()
    exporter.push(50)
    exporter.stop()
    wait_for("all of it is there", lambda: len(steps_in(victoria)) >= exporter.pushed)
    assert steps_in(victoria) == [float(step) for step in range(1, exporter.pushed + 1)]
    assert TOKEN not in exporter.log.read_text()


def test_the_token_is_told_nowhere_and_a_server_that_is_away_does_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    exporter = Exporter(tmp_path, f"http://127.0.0.1:{free_port()}")
    try:
        exporter.start()
        exporter.push(1)
        wait_for("it fails", lambda: exporter.sink("failed_writes_total") >= 1)
        with urllib.request.urlopen(f"{exporter.url}/readyz", timeout=30) as answer:
            told = answer.read().decode()
        assert TOKEN not in told + exporter.metrics() + exporter.log.read_text()
    finally:
        exporter.stop()
    assert exporter.exit_code() != -signal.SIGKILL
    for path in (tmp_path / "data").iterdir():
        assert TOKEN.encode() not in path.read_bytes()
