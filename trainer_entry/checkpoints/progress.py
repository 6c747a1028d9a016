"""Progress of what takes long, for a person at a terminal: a bar with rich where it is installed, else plain lines.

Called by the commands on checkpoints. Everything goes to standard error, so that output stays usable in a pipe.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from trainer_entry.checkpoints.files import Progress

LINE_SECONDS = 10.0


@contextlib.contextmanager
def shown_progress(what: str, total: int, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show how much of ``total`` bytes is done; yields what is called with each number of bytes, from any thread.

    Without a terminal nothing is shown before :data:`LINE_SECONDS`, and then a line as often.
    """
    out = stream or sys.stderr
    if out.isatty():
        with contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Bars

            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            with Bars(TextColumn("{task.description}"), *columns, console=Console(file=out), transient=True) as bars:
                task = bars.add_task(what, total=total)
                yield lambda count: bars.advance(task, count)
            return
    yield _Lines(what, total, out)


class _Lines:
    """One line now and then; a reader that is gone is no reason to stop."""

    def __init__(self, what: str, total: int, out: TextIO) -> None:
        self._what, self._total, self._out = what, total, out
        self._done = 0
        self._lock = threading.Lock()
        self._last = time.monotonic()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done += count
            if time.monotonic() - self._last < LINE_SECONDS:
                return
            self._last = time.monotonic()
            share = f"{100 * self._done / self._total:.0f} % of {size_in_words(self._total)}" if self._total else ""
        with contextlib.suppress(OSError, ValueError):
            print(f"{self._what}: {share or size_in_words(self._done)}", file=self._out, flush=True)


def size_in_words(size: float) -> str:
    """Bytes, for a person.

    >>> size_in_words(512), size_in_words(1536 * 1024), size_in_words(3 * 2**40)
    ('512 B', '1.5 MiB', '3.0 TiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_in_words(seconds: float) -> str:
    """A time span, for a person.

    >>> age_in_words(5), age_in_words(3700), age_in_words(200000), age_in_words(-1)
    ('5 s', '1.0 h', '2.3 d', '0 s')
    """
    seconds = max(0.0, seconds)
    for unit, length in (("s", 60.0), ("min", 60.0), ("h", 48.0)):
        if seconds < length:
            return f"{seconds:.0f} {unit}" if unit != "h" else f"{seconds:.1f} {unit}"
        seconds /= length if unit != "h" else 24.0
    return f"{seconds:.1f} d"
