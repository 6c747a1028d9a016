"""The systemd unit: systemd can read it, finds nothing to say against it, and what it relies on is there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from exporter_process import ExporterProcess, push, running, wait_for

from exporter.app.systemd import Systemd
from exporter.config import parse
from exporter.protocol import Step

FOLDER = Path(__file__).parents[2] / "compose" / "systemd"
UNIT = FOLDER / "verl-sentinel-exporter.service"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="the program systemd-analyze is not installed"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
def test_systemd_reads_the_unit_without_a_word(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/verl-sentinel/bin/python", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    result = analyze("verify", "--man=no", str(unit))
    said = [line for line in result.stderr.splitlines() if UNIT.name in line]
    assert (said, result.returncode) == ([], 0), result.stderr


@needs_systemd
def test_systemd_calls_its_exposure_low() -> None:
    result = analyze("security", "--offline=true", "--no-pager", "--threshold=20", str(UNIT))
    if "Failed to" in result.stderr or "Unknown" in result.stderr:
        pytest.skip(f"systemd-analyze cannot judge a unit without a running systemd here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stdout
    found = re.search(r"Overall exposure level for \S+ ([0-9.]+)", result.stdout.replace(":", ""))
    assert found is not None
    assert float(found.group(1)) <= 2.0


def test_the_unit_hardens_what_it_says(tmp_path: Path) -> None:
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    assert settings["User"] == "verl-sentinel"
    assert settings["CapabilityBoundingSet"] == ""
    assert {settings[name] for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices")} == {"yes"}
    assert settings["ProtectSystem"] == "strict"
    users = (FOLDER / "verl-sentinel.sysusers.conf").read_text()
    assert re.search(r"^u verl-sentinel - ", users, re.MULTILINE)


def test_its_configuration_is_one() -> None:
    config = parse((FOLDER / "exporter.yml").read_text(), "exporter.yml")
    assert config.tls is not None
    assert all(getattr(config.tokens, scope) for scope in ("push", "alert", "operate"))


def messages(channel: socket.socket, exporter: ExporterProcess, wanted: str) -> None:
    """Wait for a message of the exporter."""
    channel.settimeout(0.1)

    def came() -> bool:
        try:
            return channel.recv(1000).decode() == wanted
        except TimeoutError:
            return False

    wait_for(came, exporter)


def test_the_exporter_tells_systemd_that_it_is_ready_alive_and_about_to_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with running(tmp_path, environment=environment) as exporter:
            messages(channel, exporter, "READY=1")
            for _ in range(3):
                messages(channel, exporter, "WATCHDOG=1")
            os.kill(exporter.pid, signal.SIGTERM)
            messages(channel, exporter, "STOPPING=1")
            assert exporter.process is not None
            assert exporter.process.wait(60) == 0


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time_where_it_is_ours(environment: dict[str, str], seconds: float) -> None:
    assert Systemd(environment)._beat_seconds == seconds


DENYING = """
import ctypes, runpy, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE
    sys.exit("not here")
sys.argv[0:1] = ["exporter"]
runpy.run_module("exporter", run_name="__main__")
"""


def test_the_exporter_works_where_memory_cannot_be_written_and_executed(tmp_path: Path) -> None:
    """What ``MemoryDenyWriteExecute=yes`` asks, asked of the kernel itself."""

    class Denied(ExporterProcess):
        def start(self, *, until_ready: bool = True) -> None:
            with (self.folder / "exporter.log").open("wb") as log:
                command = [sys.executable, "-c", DENYING, "--listen", "127.0.0.1:0", *self.arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                self.url = wait_for(self._address, self)
            except AssertionError:
                if "not here" in self.log:
                    pytest.skip("this kernel has no PR_SET_MDWE (it came with Linux 6.3)")
                raise
            wait_for(self.ready, self)

    exporter = Denied(tmp_path, ("--data-dir", str(tmp_path / "data")))
    try:
        exporter.start()
        assert push(exporter, steps=[Step(step=1, metrics={"actor/grad_norm": 1.0})]).accepted_seq == 1
        assert exporter.metrics()['verl_grad_norm{run="r"}'] == 1.0
        assert exporter.stop() == 0
    finally:
        if exporter.process is not None and exporter.process.poll() is None:
            exporter.kill()
