"""Guards the connections below HTTP: how many there are, how long a request may take to arrive, how large its head is.

uvicorn has no limit of its own for these. A sender that says a byte a minute, or headers without an end, would hold a
connection and its memory for ever. Made by :mod:`exporter.app.server`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from exporter.app.answers import Written, write
from exporter.protocol import ErrorAnswer

log = logging.getLogger("exporter.connections")

REQUEST_SECONDS = 60.0
"""8 MiB over a slow link included."""
STUCK_SECONDS = 60.0
SWEEP_SECONDS = 5.0
HEAD_BYTES = 32 * 1024
"""Of the request line and all headers; Litestar and the routes need less than one."""


class Doorkeeper:
    """Knows all connections of one server.

    Args:
        most: connections open at a time.
        reject: counts a refusal by its reason.
        request_seconds: a request has to arrive in full within them.
        stuck_seconds: an answer that nobody reads is given up then.
        sweep_seconds: how often it looks.
        monotonic: seconds.
    """

    def __init__(
        self,
        most: int,
        reject: Callable[[str], None],
        *,
        request_seconds: float = REQUEST_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self.reject = reject
        self.request_seconds = request_seconds
        self.stuck_seconds = stuck_seconds
        self._sweep_seconds = sweep_seconds
        self.monotonic = monotonic
        self.open: set[GuardedProtocol] = set()

    def protocol(self, **given: Any) -> GuardedProtocol:
        """What uvicorn makes for each connection (its ``http`` setting)."""
        return GuardedProtocol(self, **given)

    async def sweep(self) -> None:
        """Close what takes too long, again and again until cancelled."""
        while True:
            await asyncio.sleep(self._sweep_seconds)
            now = self.monotonic()
            for connection in list(self.open):
                connection.look(now)


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, keeper: Doorkeeper, **given: Any) -> None:
        super().__init__(**given)
        self._keeper = keeper
        self._arriving_since: float | None = None
        self._unread_since: float | None = None
        self._unread_bytes = 0
        self._in_head = True
        self._heads = 0
        self._head_bytes = 0
        self._too_long = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _OneWrite(transport))
        self._arriving_since = self._keeper.monotonic()
        self._keeper.open.add(self)
        if len(self._keeper.open) > self._keeper.most:
            sentence = (
                f"There are {self._keeper.most} connections already, and no more are taken (limits.connections, or as "
                "many as the system lets the exporter have files). Try again."
            )
            self._refuse(503, "connections", sentence, retry_after="5")

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeper.open.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # refused already, and what it goes on to say is not read
        if self._arriving_since is None:
            self._arriving_since = self._keeper.monotonic()
        in_head, heads = self._in_head, self._heads
        super().data_received(data)
        if in_head and heads == self._heads and not self.transport.is_closing():
            # The parser keeps a header until it has all of it, so it has to be stopped from here.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._too_long = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        if self._arriving_since is None:  # it came with the end of the one before
            self._arriving_since = self._keeper.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
            self._too_long = True
            raise httptools.HttpParserError("the head is too long")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving_since = None
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.transport.write(b"")  # a head without a body, as HEAD asks for, goes now
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own answer to what is not HTTP, as all our answers are."""
        if self._too_long:
            sentence = f"The request line and headers have more than {HEAD_BYTES} bytes."
            self._refuse(431, "too_large", sentence)
        else:
            self._refuse(400, "http", "This is not HTTP, or not a version of it that is spoken here.")

    def look(self, now: float) -> None:
        """Close it where it has taken too long to ask, or to read its answer."""
        waiting = self.transport.get_write_buffer_size()
        if waiting == 0 or waiting != self._unread_bytes:
            self._unread_since, self._unread_bytes = (now if waiting else None), waiting
        elif self._unread_since is not None and now - self._unread_since > self._keeper.stuck_seconds:
            self._keeper.reject("unread")
            self.transport.abort()
            return
        since, cycle = self._arriving_since, self.cycle
        answering = cycle is not None and not cycle.response_complete and not cycle.more_body
        if since is not None and not answering and now - since > self._keeper.request_seconds:
            self._arriving_since = None
            sentence = f"The request had not arrived in full after {self._keeper.request_seconds:g} seconds."
            self._refuse(408, "too_slow", sentence)

    def _refuse(self, status: int, reason: str, sentence: str, *, retry_after: str = "") -> None:
        self._keeper.reject(reason)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        # Not between an answer that is under way, nor in the place of one that is still to come.
        if cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started):
            headers = {"Connection": "close", **({"Retry-After": retry_after} if retry_after else {})}
            self.transport.write(
                _in_full(write(ErrorAnswer(error=reason, reason=sentence), status=status, headers=headers))
            )
        self.transport.close()


class _OneWrite:
    """A transport that sends the head of an answer together with its body.

    uvicorn writes them one after the other, and each write is a call into the kernel that wakes the sender: a tenth of
    all that a push costs.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._write = transport.write
        self._close = transport.close
        self._head = b""
        self.abort = transport.abort
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        if self._head:
            self._write(self._head + data)
            self._head = b""
        elif data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1":
            self._head = data
        elif data:
            self._write(data)

    def close(self) -> None:
        self.write(b"")
        self._close()


def _in_full(written: Written) -> bytes:
    status = HTTPStatus(written.status)
    lines = [
        f"HTTP/1.1 {status} {status.phrase}",
        f"Content-Type: {written.media_type}",
        f"Content-Length: {len(written.body)}",
    ]
    lines += [f"{name}: {value}" for name, value in written.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + written.body
