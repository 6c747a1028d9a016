"""How the exporter runs: on which event loop, with how many files, and how much it writes into its log."""

from __future__ import annotations

import logging
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from exporter_process import PUSH, ExporterProcess, push, running, wait_for
from exporter_scene import batch

from exporter.app.server import SPARE_FILES, AtMostOnceAMinute
from exporter.protocol import encode

BEFORE = """
import runpy, sys
{before}
sys.argv[0:1] = ["exporter"]
runpy.run_module("exporter", run_name="__main__")
"""


class Prepared(ExporterProcess):
    """An exporter whose process does something before it starts."""

    before = ""

    def start(self, *, until_ready: bool = True) -> None:
        with (self.folder / "exporter.log").open("wb") as log:
            code = BEFORE.format(before=self.before)
            command = [sys.executable, "-c", code, "--listen", "127.0.0.1:0", *self.arguments]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.url = wait_for(self._address, self)
        wait_for(self.ready, self)


def prepared(folder: Path, before: str) -> Prepared:
    exporter = Prepared(folder, ("--data-dir", str(folder / "data")))
    exporter.before = before
    exporter.start()
    return exporter


def test_without_uvloop_it_runs_on_the_loop_of_the_standard_library(tmp_path: Path) -> None:
    exporter = prepared(tmp_path, "sys.modules['uvloop'] = None")
    try:
        assert push(exporter).accepted_seq == 1
        assert exporter.stop() == 0
    finally:
        if exporter.process is not None and exporter.process.poll() is None:
            exporter.kill()
    assert "Traceback" not in exporter.log


def test_where_the_system_allows_few_files_there_are_fewer_connections_and_it_says_so(tmp_path: Path) -> None:
    files = SPARE_FILES + 10
    exporter = prepared(tmp_path, f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))")
    try:
        assert f"At most 10 connections: the system allows this process {files} files" in exporter.log
        host, port = exporter.url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port)), timeout=20) for _ in range(files + 50)]
        for connection in idle:
            connection.close()
        wait_for(exporter.ready, exporter)
        assert push(exporter).accepted_seq == 1
        assert "Traceback" not in exporter.log
        assert "Too many open files" not in exporter.log
    finally:
        exporter.kill()


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 11_000, reason="the hard limit of files is lower")
def test_it_takes_as_many_files_as_its_connections_need(tmp_path: Path) -> None:
    before = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, r.getrlimit(r.RLIMIT_NOFILE)[1]))"
    exporter = prepared(tmp_path, before)
    try:
        limits = Path(f"/proc/{exporter.pid}/limits").read_text().splitlines()
        (files,) = (int(line.split()[3]) for line in limits if line.startswith("Max open files"))
        assert files >= 10_000 + SPARE_FILES
    finally:
        exporter.kill()


def test_what_strangers_send_does_not_fill_the_log(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        host, port = exporter.url.removeprefix("http://").split(":")
        for number in range(300):
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(b"no HTTP %d\r\n\r\n" % number)
                assert connection.recv(20).startswith(b"HTTP/1.1 400")
            exporter.get("/healthz", Connection="Upgrade", Upgrade="websocket")
            exporter.post(PUSH, encode(batch(run="a\nb")))
        assert len(exporter.log.splitlines()) < 10
        assert exporter.metrics()['verl_sentinel_rejected_total{reason="http"}'] == 300


def test_a_message_comes_through_once_a_minute_and_an_error_always() -> None:
    once = AtMostOnceAMinute()

    def passes(message: str, level: int = logging.WARNING) -> bool:
        return once.filter(logging.LogRecord("x", level, "f", 1, message, (), None))

    assert [passes("a"), passes("a"), passes("b"), passes("a")] == [True, False, True, False]
    assert [passes("e", logging.ERROR), passes("e", logging.ERROR)] == [True, True]
    assert all(passes(f"message {number}") for number in range(1000))
    assert len(once._told) <= 100
