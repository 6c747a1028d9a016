"""Tells systemd that the exporter is ready, and that it is alive: ``Type=notify`` and ``WatchdogSec=`` of its unit.

The protocol is one datagram for each message, as sd_notify(3) has it. Without ``NOTIFY_SOCKET`` nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping


class Systemd:
    """The service manager, as the environment names it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        watchdog = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self._beat_seconds = int(watchdog) / 2e6 if watchdog.isdecimal() and ours else 0.0

    async def tell(self, started: Callable[[], bool]) -> None:
        """Say that it is ready when it is, then that the event loop goes round, until cancelled.

        A process whose event loop hangs says nothing any more, and systemd ends it.
        """
        if not self._address:
            return
        while not started():
            await asyncio.sleep(0.05)
        self._send("READY=1")
        while self._beat_seconds:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._beat_seconds)

    def stopping(self) -> None:
        if self._address:
            self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(message.encode(), self._address)
