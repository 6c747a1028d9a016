"""The state directory of a run: who runs, which attempt, how it ended. Written by supervisor and attempt process.

Everything is small JSON, replaced atomically, so that whoever is killed at any point leaves a record that the next
supervisor can go on from. ``supervisor.lock`` admits one supervisor at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from exporter.protocol import Changes

MAX_RECORD_BYTES = 4 * 1024 * 1024

_Record = TypeVar("_Record")


class StateError(Exception):
    """The state directory cannot be used; the message is a sentence that says why and what to do."""


class StateBusy(StateError):
    """Another live process holds the run."""


class ResumeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that the next attempt starts from, and the command that asked for it."""

    step: int
    path: str
    command_id: str = ""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of ``verl-sentinel-train run`` as they were given; None or empty where they were not. Paths are absolute,
    times in seconds. ``environ`` has our own variables, ``token_given`` is whether there was a token; it is not kept.
    """

    rollback_scripts: str = ""
    environments: str = ""
    clean_stop_seconds: float | None = None
    rollback_clean_seconds: float | None = None
    term_seconds: float | None = None
    kill_seconds: float | None = None
    wait_for_command_seconds: float | None = None
    copies_seconds: float | None = None
    environ: dict[str, str] = {}
    token_given: bool = False


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``. ``attempt`` is the latest number given out; ``reported_start`` and ``reported_exit`` are the latest
    that the exporter was told of, and ``told_to_stop`` the latest that ended because somebody asked.

    ``held`` is a sentence while nothing may start without a person's word; ``held_not_after`` is the newest step that
    may still be restored then, and ``held_argv`` the words it was held under, which are nobody's new decision.
    ``held_by_person`` where a person called a rollback off: then a checkpoint that verifies is no word either.

    ``changes`` are in force for every attempt to come, until a later rung or a person replaces them. Their
    ``skip_steps`` belong to one place in the data: they count for starts from step ``skip_from`` only.

    ``executor`` is where the trainer runs, and ``executor_settings`` the absolute path of its settings, if any;
    ``kept`` is what else the supervisor was told, for one that is started without a word of it.
    """

    run_id: str
    argv: list[str]
    cwd: str
    checkpoint_dir: str
    project: str = ""
    experiment: str = ""
    url: str = "off"
    attempt: int = 0
    reported_start: int = 0
    reported_exit: int = 0
    told_to_stop: int = 0
    next_start: ResumeTarget | None = None
    held: str = ""
    held_not_after: int | None = None
    held_argv: list[str] | None = None
    held_by_person: bool = False
    changes: Changes = Changes()
    skip_from: int | None = None
    executor: str = "local"
    executor_settings: str = ""
    kept: Kept = Kept()


class AttemptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``attempts/<n>/request.json``, written before the attempt process is started. ``argv`` has the changes in it."""

    attempt: int
    argv: list[str]
    cwd: str
    marker: str
    resume_step: int | None = None
    resume_path: str = ""
    command_id: str = ""
    created_at: float = 0.0
    changes: Changes = Changes()


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``attempts/<n>/attempt.json``, written by the attempt process once the trainer runs. Ticks are since boot."""

    attempt: int
    pid: int
    start_ticks: int
    trainer_pid: int
    trainer_start_ticks: int
    host: str
    boot_id: str
    started_at: float


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``attempts/<n>/exit.json``. Both codes are None where nobody was there to see; ``error`` for what never ran."""

    attempt: int
    exit_code: int | None = None
    signal: int | None = None
    ended_at: float = 0.0
    seconds: float = 0.0
    error: str = ""


class StateDir:
    """Paths and records of one run. Raises StateError with a sentence for whatever the disk does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))

    def create(self) -> None:
        """Make the directories, private to the user."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.path / "attempts").mkdir(exist_ok=True, mode=0o700)
            (self.path / "commands").mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateError(f"The state directory {self.path} cannot be made: {error.strerror}.") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise StateError(f"The state directory {self.path} cannot be written to; give another with --state-dir.")

    def attempt_dir(self, attempt: int) -> Path:
        """``attempts/<n>``."""
        return self.path / "attempts" / str(attempt)

    @property
    def socket_path(self) -> Path:
        """Where the supervisor listens for an operator."""
        return self.path / "control.sock"

    @property
    def stop_request_path(self) -> Path:
        """What asks the plugin for a clean end of the run."""
        return self.path / "stop-request"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run. Raises StateBusy when another supervisor, or an operator's command, holds it."""
        path = self.path / "supervisor.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StateError(f"The lock {path} cannot be opened: {error.strerror}.") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "unknown"
                raise StateBusy(
                    f"Another supervisor (process {holder}) has the run in {self.path}; "
                    "stop that one first, or give this run a --state-dir of its own."
                ) from None
            except OSError as error:
                raise StateError(
                    f"{path} cannot be locked: {error.strerror}; give a --state-dir on a local disk."
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def read_run(self) -> RunRecord | None:
        """``run.json``, or None where there is none yet."""
        return read_record(self.path / "run.json", RunRecord)

    def write_run(self, record: RunRecord) -> None:
        """Replace ``run.json``."""
        write_record(self.path / "run.json", record)

    def read_request(self, attempt: int) -> AttemptRequest | None:
        """``attempts/<n>/request.json``."""
        return read_record(self.attempt_dir(attempt) / "request.json", AttemptRequest)

    def read_attempt(self, attempt: int) -> AttemptRecord | None:
        """``attempts/<n>/attempt.json``."""
        return read_record(self.attempt_dir(attempt) / "attempt.json", AttemptRecord)

    def read_exit(self, attempt: int) -> ExitRecord | None:
        """``attempts/<n>/exit.json``."""
        return read_record(self.attempt_dir(attempt) / "exit.json", ExitRecord)


def read_record(path: Path, kind: type[_Record]) -> _Record | None:
    """Read one JSON record; None where the file does not exist. Raises StateError where it is not one."""
    try:
        with open(path, "rb") as file:
            body = file.read(MAX_RECORD_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        if len(body) > MAX_RECORD_BYTES:
            raise StateError(f"{path} is larger than {MAX_RECORD_BYTES} bytes, so it is none of ours.")
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StateError(f"{path} is damaged ({error}); move it away to go on without it.") from error


def write_record(path: Path, record: object) -> None:
    """Write one JSON record atomically and durably. Raises StateError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StateError(f"{path} cannot be written: {error.strerror}.") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
