"""The attempt process: session leader and subreaper above one start of the trainer. Started by the supervisor.

It runs the trainer, writes down how it ended, ends what the trainer left behind, and goes. It is deliberately small and
talks to nobody, so that a supervisor that is killed leaves a trainer that goes on training, with its exit code kept for
the next supervisor. It holds ``attempt.lock`` as long as it lives, which is how others know.

    python -m trainer_entry.supervisor.attempt ATTEMPT_DIRECTORY
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

from trainer_entry.supervisor import processes
from trainer_entry.supervisor.processes import Process
from trainer_entry.supervisor.state import AttemptRecord, AttemptRequest, ExitRecord, read_record, write_record

LEFTOVER_TERM_SECONDS = 3.0
LEFTOVER_KILL_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """Run one attempt; returns 0 when its end was recorded, whatever the end was."""
    directory = Path(arguments[0])
    lock = os.open(directory / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if (directory / "exit.json").exists():
        return 0  # a supervisor that took over found that we had not started, and gave the attempt up
    request = read_record(directory / "request.json", AttemptRequest)
    if request is None:
        print(f"There is no request.json in {directory}.", file=sys.stderr)
        return 1
    processes.become_subreaper()
    started_at, started = time.time(), time.monotonic()
    try:
        trainer = _start(directory, request)
    except OSError as error:
        sentence = f"The trainer {request.argv[0]!r} cannot be started in {request.cwd}: {error.strerror}."
        write_record(
            directory / "exit.json",
            ExitRecord(attempt=request.attempt, exit_code=127, ended_at=time.time(), error=sentence),
        )
        return 0
    me = processes.identify(os.getpid())
    assert me is not None  # we run, so /proc shows us
    _forward_signals(trainer)
    write_record(
        directory / "attempt.json",
        AttemptRecord(
            attempt=request.attempt,
            pid=me.pid,
            start_ticks=me.start_ticks,
            trainer_pid=trainer.pid,
            trainer_start_ticks=trainer.start_ticks,
            host=socket.gethostname(),
            boot_id=processes.boot_id(),
            started_at=started_at,
        ),
    )
    status = _wait_for(trainer.pid)
    code = os.waitstatus_to_exitcode(status)
    write_record(
        directory / "exit.json",
        ExitRecord(
            attempt=request.attempt,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            ended_at=time.time(),
            seconds=time.monotonic() - started,
        ),
    )
    left = processes.sweep(request.marker, me, term_seconds=LEFTOVER_TERM_SECONDS, kill_seconds=LEFTOVER_KILL_SECONDS)
    for process in sorted(left, key=lambda p: p.pid):
        print(f"Process {process.pid} of this attempt could not be ended.", file=sys.stderr)
    return 0


def _start(directory: Path, request: AttemptRequest) -> Process:
    """Start the trainer with its output in ``output.log``. Raises OSError (no such program, no such folder)."""
    os.chdir(request.cwd)
    log = os.open(directory / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = os.posix_spawnp(
            request.argv[0],
            request.argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
        )
    finally:
        os.close(log)
    trainer = processes.identify(pid)
    assert trainer is not None  # our own child that we have not reaped, so /proc shows it, as a zombie at worst
    return trainer


def _forward_signals(trainer: Process) -> None:
    """Somebody who signals us means the trainer. Handlers, not SIG_IGN: what is ignored stays so over exec."""

    def forward(number: int, frame: FrameType | None) -> None:
        processes.send(trainer, signal.Signals(number))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)


def _wait_for(pid: int) -> int:
    """Reap every child, adopted ones too, until the trainer's turn comes; returns its wait status."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return status


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
