"""The programs of one scenario, each of which can be killed, stopped for a while, and started again as an init would.

Made by :mod:`tests.chaos.world`. What they are configured from is what ships: ``rules/`` for Prometheus and
Alertmanager, ``verl-sentinel serve`` and ``verl-sentinel-train run`` as a site starts them.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from compose import configuration
from compose.configuration import RULES, Addresses
from demo.processes import Child, free_port

SECONDS_BETWEEN_STARTS = 1.0
"""systemd's ``RestartSec``, for the services that a site would have restarted."""
SCOPES = ("push", "alert", "operate")
SECOND = 1
MARK = "VERL_SENTINEL_CHAOS"
FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")
"""libfaketime, of Debian's package of that name; empty where it is not installed."""


class Program(Child):
    """A child that an init looks after: started again a second after it was killed, unless it is to stay down."""

    def __init__(self, name: str, argv: list[str], log: Path, env: Mapping[str, str]) -> None:
        super().__init__(name, argv, log, env)
        self.kept = True
        self.starts = 0
        self._frozen = False

    def start(self) -> None:
        super().start()
        self.starts += 1

    def kill(self, *, stays_down: bool = False) -> None:
        """SIGKILL; with ``stays_down`` no init starts it again."""
        self.kept = self.kept and not stays_down
        self.send(signal.SIGKILL)

    def freeze(self) -> None:
        self._frozen = True
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._frozen = False
        self.send(signal.SIGCONT)

    def end(self) -> None:
        """For good, whatever condition it is in."""
        self.kept = False
        self.thaw()
        self.stop(seconds=5.0, first=signal.SIGKILL)

    @property
    def killed(self) -> bool:
        """It died of a signal, and an init would start it again."""
        code = self.exit_code()
        return self.kept and code is not None and code < 0


class Init:
    """Starts killed programs again, as systemd would with ``Restart=on-abnormal``."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self._down_since: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="init", daemon=True)
        self._thread.start()

    def look_after(self, program: Program) -> Program:
        program.start()
        self.programs.append(program)
        return program

    def end(self) -> None:
        self._ended.set()
        self._thread.join(10)
        for program in reversed(self.programs):
            program.end()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            for program in list(self.programs):
                if not program.killed:
                    self._down_since.pop(program.name, None)
                elif time.monotonic() - self._down_since.setdefault(program.name, time.monotonic()) > (
                    SECONDS_BETWEEN_STARTS
                ):
                    del self._down_since[program.name]
                    program.start()


def free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        ports.append(free_port(frozenset(ports)))
    return ports


def write_tokens(folder: Path) -> dict[str, Path]:
    """One token a scope."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = {scope: folder / scope for scope in SCOPES}
    for path in tokens.values():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24) + "\n")
    return tokens


def exporter(
    out: Path, listen: str, tokens: Mapping[str, Path], recovery: Mapping[str, Any], env: Mapping[str, str]
) -> Program:
    """``verl-sentinel serve``; its detectors of stillness are as fast as the trainer is."""
    config: dict[str, Any] = {
        "listen": listen,
        "data_dir": str(out / "exporter"),
        "tokens": {scope: [{"file": str(path)}] for scope, path in tokens.items()},
        "detectors": {
            "stalled_phase": {"floor_seconds": 8.0, "unknown_seconds": 20.0},
            "silent_run": {"limit_seconds": 12.0, "start_seconds": 30.0, "blind_seconds": 6.0},
        },
        "links": {"console": f"http://{listen}"},
        "recovery": dict(recovery),
    }
    path = out / "exporter.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    words = [sys.executable, "-m", "exporter", "serve", "--config", str(path)]
    return Program("exporter", words, out / "logs" / "exporter.log", env)


def clock_of(file: Path) -> dict[str, str]:
    """Environment of a program whose clock is set by what stands in ``file``, such as ``+7200``."""
    file.write_text("+0\n")
    return {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def prometheus(out: Path, port: int, exporter_at: str, alertmanager_at: str, env: Mapping[str, str]) -> Program:
    """Prometheus with the rules that ship, every second."""
    listen = f"127.0.0.1:{port}"
    configuration.write_rules(out / "rules", console=f"http://{exporter_at}")
    addresses = Addresses(exporter=exporter_at, prometheus=listen, alertmanager=alertmanager_at)
    config = configuration.prometheus(addresses, str(out / "rules"), seconds=SECOND)
    path = out / "prometheus.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    words = [
        _found("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={out / 'prometheus'}",
        f"--web.listen-address={listen}",
    ]
    return Program("prometheus", words, out / "logs" / "prometheus.log", env)


def alertmanager(out: Path, port: int, exporter_at: str, token: Path, pager: str, env: Mapping[str, str]) -> Program:
    """Alertmanager with the routes that ship; the receivers that a site fills in are the pager."""
    listen = f"127.0.0.1:{port}"
    addresses = Addresses(exporter=exporter_at, alertmanager=listen)
    config = configuration.alertmanager(addresses, templates=str(RULES / "templates"), token_file=str(token))
    for receiver in config["receivers"]:
        if receiver["name"] in ("people", "dead-mans-switch"):
            receiver["webhook_configs"] = [{"url": f"{pager}/{receiver['name']}", "send_resolved": True}]
    path = out / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    words = [
        _found("prometheus-alertmanager"),
        f"--config.file={path}",
        f"--storage.path={out / 'alertmanager'}",
        f"--web.listen-address={listen}",
        "--cluster.listen-address=",
    ]
    return Program("alertmanager", words, out / "logs" / "alertmanager.log", env)


def environment(mark: str) -> dict[str, str]:
    """What every process of a scenario has: a mark to find it by afterwards, and no settings of somebody else's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VERL_SENTINEL") and k.lower() != "no_proxy"}
    return {**kept, MARK: mark, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def end_marked(mark: str) -> list[int]:
    """SIGKILL to every process that carries the mark, by its own id; the ids. None is left when this returns."""
    token = f"{MARK}={mark}".encode()
    found: list[int] = []
    deadline = time.monotonic() + 20.0
    while (left := _marked(token)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            found.append(pid)
        time.sleep(0.05)
    return sorted(set(found))


def _marked(token: bytes) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                carries = token in file.read().split(b"\0")
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if carries and state not in (b"Z", b"X"):
            found.append(int(name))
    return found


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(f"{program} is not on the PATH; install the package of that name")
    return path


def may_mount() -> bool:
    """Whether this user may mount a small disk (tmpfs); tried once."""
    if not _tried:
        with tempfile.TemporaryDirectory() as folder:
            words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
            _tried.append(subprocess.run(words, check=False, capture_output=True).returncode == 0)
            if _tried[0]:
                subprocess.run(["umount", folder], check=False, capture_output=True)
    return _tried[0]


_tried: list[bool] = []
