"""Child processes of the demo: started in sessions of their own, logged to files, ended by their own id and no other's.

Called by :mod:`demo.stack` and :mod:`demo.run`. A child does not get the terminal's Ctrl-C, because it is in another
session: the demo gets it and ends its children in the right order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class StartError(RuntimeError):
    """A program did not come up; the message says which, why, and where its output is."""


def free_port(avoid: frozenset[int] = frozenset()) -> int:
    """A TCP port of the loopback interface on which nothing listens now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in avoid:
            return port


class Child:
    """One running program.

    Args:
        name: what to call it in messages.
        argv: program and arguments; no shell.
        log: file that takes its output, stdout and stderr together.
        env: its whole environment; the demo's own where None.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self._env = dict(env) if env is not None else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; raises :class:`StartError` where the program is not there."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"{self.name} could not be started: {error}") from error

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def exit_code(self) -> int | None:
        """Its exit code (negative: the signal), or None while it runs or before it was started."""
        return self._process.poll() if self._process else None

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition; raises :class:`StartError` with the end of the log if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running():
                raise StartError(f"{self.name} ended with code {self.exit_code()} before {what}:\n{self.last_output()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name}: {what} took longer than {seconds:.0f} s; its output: {self.log}")
            time.sleep(0.05)

    def last_output(self, lines: int = 8) -> str:
        """The last lines that it wrote."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, where it still runs."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def stop(self, seconds: float = 10.0, first: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, wait, and kill its session's process group if it does not."""
        if self._process is None:
            return
        self.send(first)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            # Its process group is its own (start_new_session), so nothing of anybody else's is in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
