"""Which saves are under way, written down in the run's state directory, so that nothing prunes what is being written.

The plugin begins and ends a save; retention asks. A record that is left behind by a process that died tells that the
directory was ours and was never finished, which is the only kind of half save that may be deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.atomic import write_json_atomically

FOREIGN_SECONDS = 86400.0
"""A save of another host cannot be looked at from here; it counts as under way for so long."""

WAIT_SECONDS = 0.5
"""How long a save waits for a deletion to be past its one rename: never longer, whatever has become of the other."""

HOLD_SECONDS = 5.0
"""How long a hold waits for a deletion, which is past its one rename in milliseconds."""

_MAX_BYTES = 64 * 1024


class SaveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``<state_dir>/checkpoints/saves/<step>.json``. ``start_ticks``: clock ticks from boot to the process's start."""

    path: str
    step: int
    pid: int
    start_ticks: int
    host: str
    time: float


@dataclass(frozen=True, slots=True)
class Saves:
    """Absolute paths of checkpoints: being written now, and left unfinished by a process that is gone."""

    under_way: frozenset[str]
    unfinished: frozenset[str]


def begin_save(state_dir: str | os.PathLike[str], directory: str, step: int) -> None:
    """The plugin's process is about to save there. Raises OSError."""
    folder = _folder(state_dir)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = SaveRecord(
        path=os.path.abspath(directory),
        step=step,
        pid=os.getpid(),
        start_ticks=_start_ticks(os.getpid()),
        host=socket.gethostname(),
        time=time.time(),
    )
    write_json_atomically(folder / f"{step}.json", record)
    # Whoever deletes looks at the records and renames under this lock. If it looked before ours was there, it is past
    # its rename once we have the lock, and the save makes the directory anew.
    with _lock(state_dir, WAIT_SECONDS):
        pass


@contextlib.contextmanager
def no_save_begins(state_dir: str | os.PathLike[str]) -> Iterator[Saves]:
    """While this is open, no save goes beyond its beginning; the block gets what is being saved, and must be short.

    Raises OSError, and TimeoutError where another deletion does not end.
    """
    _folder(state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(state_dir, 10.0) as locked:
        if not locked:
            raise TimeoutError(f"Another process deletes checkpoints of the run in {os.fspath(state_dir)}.")
        yield saves(state_dir)


@contextlib.contextmanager
def no_deletion(state_dir: str | os.PathLike[str]) -> Iterator[None]:
    """While this is open, retention of ours renames no checkpoint of the run away; the block must be short.

    Raises OSError, and TimeoutError where a deletion does not end.
    """
    _folder(state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(state_dir, HOLD_SECONDS) as locked:
        if not locked:
            raise TimeoutError(errno.ETIMEDOUT, "a deletion of checkpoints does not end", os.fspath(state_dir))
        yield


def end_save(state_dir: str | os.PathLike[str], step: int) -> None:
    """The save is over and its manifest is written, or it is known why there is none. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        (_folder(state_dir) / f"{step}.json").unlink()


def saves(state_dir: str | os.PathLike[str]) -> Saves:
    """What is being saved, and what never was finished. A record that cannot be read is ignored: it names nothing."""
    under_way: set[str] = set()
    unfinished: set[str] = set()
    with contextlib.suppress(OSError):
        for path in list(_folder(state_dir).glob("[0-9]*.json"))[:10_000]:
            try:
                record = msgspec.json.decode(path.read_bytes()[:_MAX_BYTES], type=SaveRecord)
            except (OSError, msgspec.DecodeError):
                continue
            (under_way if _lives(record) else unfinished).add(record.path)
    return Saves(frozenset(under_way), frozenset(unfinished))


def _lives(record: SaveRecord) -> bool:
    if record.host != socket.gethostname():
        return time.time() - record.time < FOREIGN_SECONDS
    return record.start_ticks == _start_ticks(record.pid)


def _start_ticks(pid: int) -> int:
    """0 where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        fields = text[text.rfind(b")") + 1 :].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def _folder(state_dir: str | os.PathLike[str]) -> Path:
    return Path(state_dir) / "checkpoints" / "saves"


@contextlib.contextmanager
def _lock(state_dir: str | os.PathLike[str], seconds: float) -> Iterator[bool]:
    descriptor = os.open(_folder(state_dir) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    yield False
                    return
                time.sleep(0.005)
            else:
                yield True
                return
    finally:
        os.close(descriptor)
