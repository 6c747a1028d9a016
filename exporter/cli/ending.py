"""A request to end, by a signal. Used by the command that runs until it is told to stop.

Not a ``threading.Event``: a signal's handler runs in the main thread, wherever that is, and may not wait for a lock
that the thread holds. An event's ``set`` takes the lock that its own ``wait`` holds for a moment at its begin and its
end: a signal in that moment would stop the program for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal


class Ending:
    """Set by the signals that it was given; its methods are those of an event."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._told = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for number in numbers:
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True
        with contextlib.suppress(OSError):  # full: it has been said often enough
            os.write(self._write, b".")

    def is_set(self) -> bool:
        """Whether one of the signals has come."""
        return self._told

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for one of them, at most ``timeout`` seconds; whether one has come."""
        if not self._told:
            select.select([self._read], [], [], timeout)
        return self._told
