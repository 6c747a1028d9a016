"""One attempt as others see it: start it, watch it, learn how it ended. Called by the supervisor and the command line.

Works the same for an attempt started by this process and for one that an earlier supervisor left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from trainer_entry.supervisor import processes
from trainer_entry.supervisor.processes import Process
from trainer_entry.supervisor.state import (
    AttemptRecord,
    AttemptRequest,
    ExitRecord,
    StateDir,
    StateError,
    write_record,
)

START_SECONDS = 30.0
MAX_LAST_LINES = 40
MAX_LINE = 500
_TAIL_BYTES = 64 * 1024


class Attempt:
    """The n-th start of the trainer. All methods look at the disk and at ``/proc``."""

    def __init__(self, state: StateDir, request: AttemptRequest, child: subprocess.Popen[bytes] | None = None) -> None:
        self._state = state
        self._child = child
        self._known: set[Process] = set()
        self._seen: set[Process] = set()
        self.request = request
        self.number = request.attempt
        self.directory = state.attempt_dir(request.attempt)

    @classmethod
    def prepare(cls, state: StateDir, request: AttemptRequest) -> None:
        """Write down what is to be started. Raises StateError, OSError."""
        directory = state.attempt_dir(request.attempt)
        directory.mkdir(mode=0o700, exist_ok=True)
        write_record(directory / "request.json", request)

    @classmethod
    def start(cls, state: StateDir, request: AttemptRequest, environ: Mapping[str, str]) -> Attempt:
        """Start the attempt process and wait until the trainer runs, or is known not to. Call :meth:`prepare` before.

        Raises StateError, OSError.
        """
        directory = state.attempt_dir(request.attempt)
        with open(directory / "attempt.log", "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "trainer_entry.supervisor.attempt", str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environ, processes.MARKER_VARIABLE: request.marker},
                start_new_session=True,
            )
        attempt = cls(state, request, child)
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = child.poll() is not None  # looked at before the records, which are written before the end
            if attempt.record() is not None or state.read_exit(attempt.number) is not None:
                return attempt
            if ended or time.monotonic() > deadline:
                attempt.end_leftovers()
                said = attempt.directory.joinpath("attempt.log").read_bytes()[-2000:].decode("utf-8", "replace").strip()
                raise StateError(f"The attempt process did not start the trainer; it said: {said or 'nothing'}")
            time.sleep(0.02)

    @classmethod
    def existing(cls, state: StateDir, number: int) -> Attempt | None:
        """The attempt of that number as an earlier supervisor left it; None when it was never asked for."""
        request = state.read_request(number) if number > 0 else None
        return cls(state, request) if request is not None else None

    def record(self) -> AttemptRecord | None:
        """What the attempt process wrote when the trainer ran."""
        return self._state.read_attempt(self.number)

    def leader_lives(self) -> bool:
        """True while the attempt process holds its lock, on whichever host."""
        if self._child is not None and self._child.poll() is None:
            return True
        try:
            descriptor = os.open(self.directory / "attempt.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Shared, so that two who look do not take each other for the attempt process.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def leader(self) -> Process | None:
        """The attempt process, while it lives on this host."""
        record = self._local_record()
        process = Process(record.pid, record.start_ticks) if record else None
        return process if process is not None and processes.is_alive(process) else None

    def trainer(self) -> Process | None:
        """The trainer, while it lives on this host."""
        record = self._local_record()
        process = Process(record.trainer_pid, record.trainer_start_ticks) if record else None
        return process if process is not None and processes.is_alive(process) else None

    def members(self) -> set[Process]:
        """Live processes of this attempt but the attempt process; remembered, so that they stay known if it dies."""
        found = processes.members(self.request.marker, self.leader(), self._known)
        self._known = found
        self._seen |= found
        return found

    def pids_seen(self) -> set[int]:
        """All processes that were ever seen as members, alive or not, but for those whose pid is somebody else's now.

        One that has ended may still hold memory of a GPU.
        """
        record = self._local_record()
        trainer = {Process(record.trainer_pid, record.trainer_start_ticks)} if record is not None else set()
        return {each.pid for each in self._seen | trainer if processes.identify(each.pid) in (None, each)}

    def exit(self) -> ExitRecord | None:
        """How the trainer ended; None while it runs. Without a witness, both codes are None."""
        if (written := self._state.read_exit(self.number)) is not None:
            return written
        if self.leader_lives() or self.trainer() is not None:
            return None
        if self.record() is None and self._may_still_start():
            return None
        # The attempt process may have written its record between our first look and its end.
        return self._state.read_exit(self.number) or ExitRecord(attempt=self.number, ended_at=time.time())

    def elsewhere(self) -> str | None:
        """The name of the other host on which this attempt still runs, if so."""
        record = self.record()
        if record is None or record.host == socket.gethostname() or not self.leader_lives():
            return None
        return record.host

    def give_up_if_never_started(self) -> bool:
        """Settle an attempt whose supervisor was killed around its start; True when no trainer ran or will run.

        Whoever gets ``attempt.lock`` first decides: an attempt process that comes late finds ``exit.json``, and goes.
        """
        if self.record() is not None or self._state.read_exit(self.number) is not None:
            return False
        descriptor = os.open(self.directory / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            if self.record() is not None or processes.members(self.request.marker, None):
                return False
            sentence = "The supervisor was killed before the trainer was started."
            write_record(self.directory / "exit.json", ExitRecord(attempt=self.number, error=sentence))
            return True
        finally:
            os.close(descriptor)

    def wait_until_swept(self, seconds: float) -> bool:
        """After the exit, wait until the attempt process has ended what the trainer left; False at the limit."""
        deadline = time.monotonic() + seconds
        while self.leader_lives():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def end_leftovers(self) -> set[Process]:
        """SIGKILL whatever is left, the attempt process last. Returns what would not die."""
        left = processes.sweep(self.request.marker, self.leader(), term_seconds=0, kill_seconds=10, known=self._known)
        if (leader := self.leader()) is not None and not left:
            processes.send(leader, signal.SIGKILL)
        if self._child is not None and not left:
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is seen to hold its lock
                self._child.wait(10)
        return left

    def last_output(self) -> list[str]:
        """The last lines that the trainer printed, bounded, without control characters."""
        return last_lines(self.directory / "output.log")

    def _local_record(self) -> AttemptRecord | None:
        record = self.record()
        if record is None or record.host != socket.gethostname() or record.boot_id != processes.boot_id():
            return None
        return record

    def _may_still_start(self) -> bool:
        return self._child is not None and self._child.poll() is None


def new_marker() -> str:
    """A value that no other attempt of any run ever has."""
    return uuid.uuid4().hex


def last_lines(path: Path) -> list[str]:
    """At most 40 lines of at most 500 characters from the end of a log."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    lines = ["".join(c for c in line if c.isprintable() or c == "\t")[:MAX_LINE] for line in text.splitlines()]
    return [line for line in lines if line.strip()][-MAX_LAST_LINES:]
