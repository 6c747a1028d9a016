"""A program that goes on when the command that started it has ended, and is found again by its id. For :mod:`.stack`.

A process is its pid and its start time, as the file in ``run/`` says them, so a pid that was given to another program
since is never taken for it, nor signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compose.local.answers import answers
from trainer_entry.supervisor.processes import Process, boot_id, identify, is_alive, send

LOG_BYTES = 16 * 1024 * 1024
"""A log that is longer when its program is started is put aside."""


class StackError(Exception):
    """The stack, or a part of it, could not be started or ended; the text says which, why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One program of the stack.

    Args:
        key: names its files and, in capitals, its variable for the port.
        name: what to call it in messages.
        argv: program and arguments; no shell.
        port: where it listens on 127.0.0.1.
        health: path that answers 200 when it is ready.
        page: path that a person opens.
        folder: of the stack.
        env: what its environment has beside ours.
        stop_seconds: how long it may take to write what it has before it is killed.
    """

    key: str
    name: str
    argv: Sequence[str]
    port: int
    health: str
    folder: Path
    page: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stop_seconds: float = 30.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.key}.log"

    def start(self) -> None:
        """Start it in a session of its own. Raises :class:`StackError` where the program cannot be started."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.env},
                    cwd=self.folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise StackError(f"{self.name} could not be started: {error}.") from error
        found = identify(process.pid)
        if found is not None:
            _remember(self.folder, self.key, found)

    def process(self) -> Process | None:
        """The process, where it runs."""
        return running(self.folder, self.key)

    def wait_until_ready(self, seconds: float) -> None:
        """Raises :class:`StackError` with the end of its log where it ends before that, or takes too long."""
        deadline = time.monotonic() + seconds
        while not answers(self.url + self.health):
            if self.process() is None:
                raise StackError(f"{self.name} ended before it was ready. The end of {self.log}:\n{self.last_output()}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} was not ready after {seconds:.0f} s; it goes on, and its log is {self.log}."
                )
            time.sleep(0.1)

    def last_output(self, lines: int = 8) -> str:
        """The last lines of its log, indented."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
            return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
        return ""


def running(folder: Path, key: str) -> Process | None:
    """The process that was started under this key, where it still runs."""
    process = _remembered(folder, key)
    return process if process is not None and is_alive(process) else None


def was_started(folder: Path, key: str) -> bool:
    """Whether something was started under this key, and not ended by us since."""
    return _pid_file(folder, key).exists()


def stop(folder: Path, key: str, seconds: float) -> str:
    """End it and forget it. Says how: ``ended``, ``killed``, or ``gone`` where it ran no more."""
    process = running(folder, key)
    how = "gone"
    if process is not None:
        how = "ended"
        send(process, signal.SIGTERM)
        if not _gone_within(process, seconds):
            how = "killed"
            send(process, signal.SIGKILL)
            if not _gone_within(process, 10.0):
                raise StackError(
                    f"Process {process.pid} ({key}) could not be ended: it may wait for a disk, or be another user's."
                )
    _pid_file(folder, key).unlink(missing_ok=True)
    return how


def _gone_within(process: Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _pid_file(folder: Path, key: str) -> Path:
    return folder / "run" / f"{key}.json"


def _remember(folder: Path, key: str, process: Process) -> None:
    file = _pid_file(folder, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(
        json.dumps({"pid": process.pid, "start_ticks": process.start_ticks, "boot": boot_id()}) + "\n", encoding="utf-8"
    )
    new.replace(file)


def _remembered(folder: Path, key: str) -> Process | None:
    """What the file says; None where there is none, it cannot be read, or the machine was started anew since."""
    try:
        found = json.loads(_pid_file(folder, key).read_text(encoding="utf-8"))
        process = Process(int(found["pid"]), int(found["start_ticks"]))
        return process if found["boot"] == boot_id() and process.pid > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
