"""Show the trainer's output where the supervisor was started, as if the trainer ran there itself.

The trainer writes into a file, not into a pipe of ours, so it neither waits for us nor dies with us.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

_POLL_SECONDS = 0.1
_CHUNK = 1 << 16


class Tail:
    """Copies one growing file to standard output until closed; falls silent when nobody reads any more."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="verl-sentinel-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is there by now, and stop; gives up after a second if the reader of our output is stuck."""
        self._closing.set()
        self._thread.join(1.0)

    def _follow(self) -> None:
        try:
            while not self._closing.wait(_POLL_SECONDS):
                self._copy()
            self._copy()
        except (OSError, ValueError):  # the terminal or the pipe is gone; the file has it all
            return

    def _copy(self) -> None:
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - a missing file is no end, so it is not in the with statement
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            while chunk := file.read(_CHUNK):
                sys.stdout.buffer.write(chunk)
                self._offset += len(chunk)
        sys.stdout.buffer.flush()


def say(sentence: str) -> None:
    """Tell the person at the terminal; silently nothing when there is none any more.

    Sentences quote labels and reasons from outside, so whatever could steer a terminal becomes a space.
    """
    plain = "".join(c if c.isprintable() else " " for c in sentence)
    try:
        print(f"verl-sentinel: {plain}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
