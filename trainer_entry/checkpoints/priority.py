"""Idle priority for work beside training: used by every process of ours that hashes, copies or loads.

On Linux: SCHED_IDLE, which yields a core at once to anything else that wants it, nice 19 where that is refused, and the
idle I/O class. Only for a process of its own. A thread at idle priority in the trainer's process would be worse than
useless: preempted while it holds the interpreter lock, it keeps the training loop waiting for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from pathlib import Path

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13
_PR_SET_PDEATHSIG = 1


def idle_priority() -> None:
    """Lower this process to idle priority for CPU and disk, as far as the system allows; never raises."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _idle_disk()


def low_priority() -> None:
    """Lower this process for as long as somebody waits for it: nice 19 and idle disk, but not starved; never raises."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    _idle_disk()


def end_with_parent(parent: int) -> None:
    """Be killed when the thread that started this process ends, so that nothing of ours outlives a trainer."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def first_to_go() -> None:
    """Have the kernel end this process before any other when memory runs out; never raises."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _idle_disk() -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
