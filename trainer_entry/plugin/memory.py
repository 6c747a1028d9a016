"""How much host memory the processes of this run hold on the trainer's node, and how much they may hold.

verl logs the memory that is in use on the whole machine, where other jobs come and go. What kills a run is its own
growth, so the trainer's process adds up its own: every process below the one that the supervisor started, or, without
a supervisor, below the raylet that this process belongs to. Memory of their own is added, shared memory (Ray's object
store) counted once. Called by the hook ``step_metrics``, which sends it with each step.

The limit is the smallest of: ``VERL_SENTINEL_MEMORY_LIMIT``, the limits of this process's cgroup and those above it
(versions 1 and 2), and the machine's memory.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

METRIC = "verl_sentinel/run_memory_bytes"
"""Key of the step's metrics."""
LIMIT_SETTING = "verl_sentinel.run_memory_limit_bytes"
"""Key beside the trainer's configuration."""

MARKER = "VERL_SENTINEL_ATTEMPT_MARKER"
"""In the environment of all that the supervisor starts (``trainer_entry.supervisor.processes``)."""
LEAST_PAUSE = 1.0
SHARE = 0.005
"""Of one core, at the most, that looking may take; a node with many processes is looked at less often."""
_NO_LIMIT = 1 << 60
"""Version 1 of cgroups spells "no limit" as a number near 2^63."""


class RunMemory:
    """Looks again and again in a thread of its own; ``newest`` costs nothing. ``proc`` is for tests."""

    def __init__(self, environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._token = f"{MARKER}={environ[MARKER]}".encode() if environ.get(MARKER) else b""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.newest: int | None = None
        """Bytes; None until the first look, and where ``/proc`` does not tell."""

    def start(self) -> None:
        """Begin to look, once; the thread ends with the process, or at :meth:`stop`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_on, name="verl-sentinel-memory", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _look_on(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a /proc that cannot be read: then there is no reading
            root = self.root()
            while not self._over.is_set():
                # What it costs the machine; on a busy one the time that passes is not its own.
                began = time.thread_time()
                self.newest = self.held(root)
                self._over.wait(max(LEAST_PAUSE, (time.thread_time() - began) / SHARE))

    def root(self) -> int:
        """The process below which all processes of the run are. Raises OSError."""
        pid, found = os.getpid(), 0
        while pid > 1:
            parent = _parent(self._proc, pid)
            if self._token and self._carries(pid):
                found = pid
            elif found:
                return found
            elif not self._token:
                return parent if _name(self._proc, parent) == "raylet" else pid
            pid = parent
        return found or os.getpid()

    def held(self, root: int) -> int:
        """Bytes that ``root`` and everything below it hold. Raises OSError where ``/proc`` cannot be listed."""
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if name.isdecimal():
                with contextlib.suppress(OSError, ValueError):  # gone meanwhile
                    children.setdefault(_parent(self._proc, int(name)), []).append(int(name))
        own, shared, waiting, seen = 0, 0, [root], {root}
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError, ValueError):
                anonymous, common = _memory(self._proc, pid)
                own, shared = own + anonymous, max(shared, common)
            below = [child for child in children.get(pid, []) if child not in seen]
            seen.update(below)
            waiting += below
        return own + shared

    def _carries(self, pid: int) -> bool:
        try:
            return self._token in (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            # A process title may lie over the environment of a Ray worker: it is one of ours all the same.
            return pid == os.getpid()


def limit(configured: int | None, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that the run may hold on this node; None where nothing says."""
    found = [] if configured is None else [configured]
    with contextlib.suppress(OSError, ValueError, IndexError):
        total = next(line for line in _lines(proc / "meminfo") if line.startswith("MemTotal:"))
        found.append(int(total.split()[1]) * 1024)
    with contextlib.suppress(OSError):
        for line in _lines(proc / "self" / "cgroup"):
            found += _cgroup_limits(line, cgroups)
    return min((one for one in found if 0 < one < _NO_LIMIT), default=None)


def _cgroup_limits(line: str, cgroups: Path) -> list[int]:
    """Of one line of ``/proc/self/cgroup``: those of the group and of all above it."""
    parts = line.split(":", 2)
    if len(parts) < 3:
        return []
    if parts[0] == "0" and not parts[1]:
        top, name = cgroups, "memory.max"
    elif "memory" in parts[1].split(","):
        top, name = cgroups / "memory", "memory.limit_in_bytes"
    else:
        return []
    found = []
    # In a container the path may be the host's, which is not there; the container's own group is then the top.
    inner = Path(parts[2].strip().lstrip("/"))
    for group in (inner, *inner.parents):
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file
            found.append(int((top / group / name).read_text(encoding="ascii")))
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _parent(proc: Path, pid: int) -> int:
    text = (proc / str(pid) / "stat").read_bytes()
    # The command's name is in parentheses and may hold anything, parentheses included.
    return int(text[text.rfind(b")") + 1 :].split()[1])


def _name(proc: Path, pid: int) -> str:
    with contextlib.suppress(OSError):
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _memory(proc: Path, pid: int) -> tuple[int, int]:
    """(memory of its own, shared memory) of one process, in bytes."""
    own = shared = 0
    for line in (proc / str(pid) / "status").read_bytes().splitlines():
        if line.startswith(b"RssAnon:"):
            own = int(line.split()[1]) * 1024
        elif line.startswith(b"RssShmem:"):
            shared = int(line.split()[1]) * 1024
    return own, shared
