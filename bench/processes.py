"""What the system says of a process: CPU time and memory. Used by the benchmarks of the exporter. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU, user and system, that all threads of a process have used so far (``man 5 proc``)."""
    # The name of the program comes second, in brackets, and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process holds (RSS)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def busy_seconds() -> float:
    """Seconds of CPU that everything on the machine has used since it started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / _TICKS
