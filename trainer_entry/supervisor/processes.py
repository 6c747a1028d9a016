"""Which processes belong to an attempt, and signals that can reach only those. For the attempt and the supervisor.

Ray's raylet and workers leave the trainer's process group, and some of its agents overwrite their environment with a
process title, so membership has four marks, any of which counts: the attempt's random marker in the environment in
``/proc``; descent from the attempt process (a subreaper, so orphans come back to it); its session; having been seen as
a member before. A process is always a pid *and* its start time, and a signal goes through a pidfd opened before the
start time is compared, so a pid that was given to somebody else meanwhile is never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

MARKER_VARIABLE = "VERL_SENTINEL_ATTEMPT_MARKER"
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for another: ``start_ticks`` are clock ticks from boot to its start."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class _Entry:
    process: Process
    parent: int
    session: int
    zombie: bool


def become_subreaper() -> None:
    """Make orphaned descendants children of this process. Raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def boot_id() -> str:
    """Changes with each boot, so that pids of an earlier boot are never believed; empty where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def identify(pid: int) -> Process | None:
    """The process with this pid now (also a zombie), or None."""
    entry = _entry(pid)
    return entry.process if entry else None


def is_alive(process: Process) -> bool:
    """True while it runs; a zombie counts as gone."""
    entry = _entry(process.pid)
    return entry is not None and entry.process == process and not entry.zombie


def members(marker: str, leader: Process | None, known: Iterable[Process] = ()) -> set[Process]:
    """All live processes of an attempt but its leader (the attempt process) and ourselves.

    ``leader`` None means that it is gone; its session then counts only where a process in it carries the marker, since
    the pid could have been reused.
    """
    table = _table()
    ours = {os.getpid()}
    token = f"{MARKER_VARIABLE}={marker}".encode()
    marked = {pid for pid in table if _carries(pid, token)}
    found = set(marked)
    leader_alive = leader is not None and pid_matches(table, leader)
    sessions = {table[pid].session for pid in marked}
    if leader is not None and leader_alive:
        sessions.add(leader.pid)
        found |= _descendants(table, leader.pid)
    # Our own session is never taken for the attempt's: an operator's shell may have started the marked process.
    sessions.discard(os.getsid(0))
    found |= {pid for pid, entry in table.items() if entry.session in sessions and _session_is_ours(entry, leader)}
    found |= {process.pid for process in known if pid_matches(table, process)}
    for pid in list(found):
        found |= _descendants(table, pid)
    if leader_alive and leader is not None:
        ours.add(leader.pid)
    return {table[pid].process for pid in found - ours if pid in table and not table[pid].zombie}


def pid_matches(table: dict[int, _Entry], process: Process) -> bool:
    """True when the table still shows that very process."""
    entry = table.get(process.pid)
    return entry is not None and entry.process == process


def send(process: Process, number: signal.Signals) -> bool:
    """Signal that very process; False when it is gone, or is not ours to signal."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or sandbox without pidfds: compare, then signal, with a gap of microseconds
        if not is_alive(process):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
            return True
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)


def sweep(
    marker: str, leader: Process | None, *, term_seconds: float, kill_seconds: float, known: Iterable[Process] = ()
) -> set[Process]:
    """End what is left of an attempt: SIGTERM, then SIGKILL until nothing is found. Returns what would not die.

    Both limits in seconds. Reaps nothing: zombies count as gone, and are their parent's.
    """
    seen = set(known)
    deadline = time.monotonic() + term_seconds
    left = members(marker, leader, seen)
    told: set[Process] = set()
    while left and time.monotonic() < deadline:
        seen |= left
        for process in left - told:
            send(process, signal.SIGTERM)
            told.add(process)
        time.sleep(0.05)
        left = members(marker, leader, seen)
    deadline = time.monotonic() + kill_seconds
    while left:
        seen |= left
        for process in left:
            send(process, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return left
        time.sleep(0.05)
        left = members(marker, leader, seen)
    return set()


def _session_is_ours(entry: _Entry, leader: Process | None) -> bool:
    return leader is None or entry.process.start_ticks >= leader.start_ticks


def _descendants(table: dict[int, _Entry], root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _table() -> dict[int, _Entry]:
    entries = (_entry(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {entry.process.pid: entry for entry in entries if entry is not None}


def _entry(pid: int) -> _Entry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command name is in parentheses and may hold anything, parentheses included.
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) < 20:
        return None
    return _Entry(Process(pid, int(fields[19])), int(fields[1]), int(fields[3]), fields[0] in (b"Z", b"X"))


def _carries(pid: int, token: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return token in file.read().split(b"\0")
    except OSError:
        return False
