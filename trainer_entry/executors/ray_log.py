"""The log of a Ray job as a stream. Ray offers it whole, or followed from its first byte; used by the Ray executor.

A thread follows it, leaves out what was taken before, and holds a bounded amount: when nobody takes, it stops reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Mapping

from trainer_entry.executors.interface import LOG_PIECE

_HELD = 4 * LOG_PIECE
_AGAIN_SECONDS = 1.0
_CONNECT_SECONDS = 20.0
_SILENCE_SECONDS = 30.0


class LogTail:
    """Follows one job from ``offset`` bytes on, in UTF-8. ``offset`` grows with what :meth:`take` gives out."""

    def __init__(
        self, address: str, job_id: str, headers: Mapping[str, str], context: ssl.SSLContext | None, offset: int
    ) -> None:
        self._url = f"{address}/api/jobs/{job_id}/logs/tail"
        self._headers = dict(headers)
        self._context = context
        self._held = bytearray()
        self._arrived = offset
        self._lock = threading.Condition()
        self._closed = False
        self._ended = False
        self.offset = offset
        self._thread = threading.Thread(target=self._follow, name="verl-sentinel-ray-log", daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        """What has arrived, at most a piece of it."""
        with self._lock:
            piece = bytes(self._held[:LOG_PIECE])
            del self._held[: len(piece)]
            self.offset += len(piece)
            self._lock.notify_all()
        return piece

    @property
    def ended(self) -> bool:
        """True when Ray has closed the stream after the job's last byte, and all of it was taken."""
        with self._lock:
            return self._ended and not self._held

    def close(self) -> None:
        """Stop following; the thread ends by itself."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _follow(self) -> None:
        while not self._closed and not self._ended:
            # aiohttp has many errors, and whether the job lives is asked for elsewhere: the stream is opened again.
            with contextlib.suppress(Exception):
                asyncio.run(self._stream())
            deadline = time.monotonic() + _AGAIN_SECONDS
            with self._lock:
                while not self._closed and not self._ended and time.monotonic() < deadline:
                    self._lock.wait(_AGAIN_SECONDS)

    async def _stream(self) -> None:
        import aiohttp

        skip = self._arrived
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        # Pings, so that a connection that was cut somewhere is noticed. ssl=True is the system's own check.
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
            session.ws_connect(
                self._url, headers=self._headers, ssl=self._context or True, heartbeat=_SILENCE_SECONDS
            ) as socket,
        ):
            async for message in socket:
                if self._closed or message.type is not aiohttp.WSMsgType.TEXT:
                    return
                body = message.data.encode("utf-8", "replace")
                if skip >= len(body):
                    skip -= len(body)
                    continue
                await self._hold(body[skip:])
                skip = 0
            self._ended = socket.close_code == aiohttp.WSCloseCode.OK

    async def _hold(self, body: bytes) -> None:
        while not self._closed:
            with self._lock:
                if len(self._held) < _HELD:
                    self._held += body
                    self._arrived += len(body)
                    return
            await asyncio.sleep(0.05)
