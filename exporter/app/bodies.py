"""How a request's body is read: its type, its encoding, its bounds. Called by every route that takes a body.

A sender may compress. What comes out of a compressed body is bounded as the body itself is, and is never made beyond
that bound, so that a few kilobytes that stand for gigabytes cost no more than the bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Protocol, cast

from backports import zstd
from litestar.types import Receive

from exporter.app.answers import Headers
from exporter.service.admission import Refused

DRAIN_BYTES = 64 * 1024 * 1024
"""A body that is too large is read to its end up to here, so that the sender gets to see why it was refused."""

IN_FLIGHT_BYTES = 256 * 1024 * 1024
"""Most bytes of all bodies together that have begun to arrive and are not complete."""

MAX_MEMBERS = 64
"""Gzip members or zstd frames of one body. Senders write one; every further one costs a copy of the rest."""

ZSTD_WINDOW_LOG = 23
"""8 MiB, what RFC 8878 asks every decoder for: a frame could ask for gigabytes."""

ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}


class Disconnected(Exception):
    """The sender went away before its request was complete: nobody is left to be answered."""


class Bodies:
    """Reads bodies of one exporter, and knows how many bytes of them are in flight."""

    def __init__(self, most: int = IN_FLIGHT_BYTES) -> None:
        self._most = most
        self.in_flight = 0

    async def read(self, receive: Receive, headers: Headers, limit: int) -> bytes:
        """The body, as it was before the sender compressed it.

        Args:
            receive: the request's ASGI channel.
            headers: the request's.
            limit: bytes that are accepted, compressed and not.

        Raises:
            Refused: 415 for an encoding that is not known, 413 for a body beyond the limit, 400 for one that is not
                what its encoding says, 503 while too many bodies are in flight.
            Disconnected: the sender has gone.
        """
        encoding = content_encoding(headers)
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        if not message.get("more_body") and len(message["body"]) <= limit:
            body = message["body"]
        else:
            body = await self._rest(message["body"], bool(message.get("more_body")), receive, headers, limit)
        return unpack(body, encoding, limit) if encoding else body

    async def _rest(self, first: bytes, more: bool, receive: Receive, headers: Headers, limit: int) -> bytes:
        announced = headers.get("content-length", "")
        too_large = announced.isdecimal() and int(announced) > limit
        chunks, size, held = [first], len(first), 0
        try:
            while True:
                if size > limit or too_large:
                    too_large = True
                    chunks.clear()
                    self.in_flight -= held
                    held = 0
                else:
                    self.in_flight += size - held
                    held = size
                if self.in_flight > self._most:
                    sentence = f"Bodies of {self.in_flight} bytes in all are on their way already. Send it again."
                    raise Refused("busy", sentence, status=503, retry_after=1)
                if not more or (too_large and size > DRAIN_BYTES):
                    break
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                more = bool(message.get("more_body"))
                size += len(message["body"])
                chunks.append(message["body"])
        finally:
            self.in_flight -= held
        if too_large:
            raise _too_large(f"has {announced if announced.isdecimal() else f'more than {limit}'}", limit)
        return b"".join(chunks)


def content_type(headers: Headers, accepted: Mapping[str, str]) -> str:
    """The canonical content type of the body; raises :class:`Refused` (415) for one that is not ``accepted``."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in accepted:
        expected = " or ".join(dict.fromkeys(accepted.values()))
        message = f"The content type is {given or 'not set'}: {expected} is expected."
        raise Refused("content_type", message, where="header Content-Type", status=415)
    return accepted[given]


def content_encoding(headers: Headers) -> str:
    """``gzip``, ``zstd``, or empty for a body that is as it is; raises :class:`Refused` (415) for any other."""
    given = headers.get("content-encoding", "").strip().lower()
    if given in ("", "identity"):
        return ""
    if given not in ENCODINGS:
        message = f"The body is encoded as {given[:40]!r}: gzip and zstd are accepted, or none."
        raise Refused("encoding", message, where="header Content-Encoding", status=415)
    return ENCODINGS[given]


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress all members of a gzip or frames of a zstd body, at most ``limit`` bytes. Raises :class:`Refused`.

    >>> import gzip
    >>> unpack(gzip.compress(b"ab") + gzip.compress(b"c"), "gzip", 3)
    b'abc'
    """
    parts: list[bytes] = []
    size, rest = 0, body
    try:
        for _ in range(MAX_MEMBERS):
            member = _decompressor(encoding)
            room = limit + 1 - size
            part = member.decompress(rest, room)
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(f"is more than {limit}", limit, unpacked=True)
            if not member.eof:
                raise _broken(encoding, "it ends too early")
            rest = member.unused_data
            if not rest:
                return b"".join(parts)
    except (zlib.error, zstd.ZstdError) as error:
        after = " after its first part" if parts else ""
        raise _broken(encoding, f"{str(error).removesuffix('.')}{after}") from None
    raise _broken(encoding, f"it has more than {MAX_MEMBERS} parts")


def _decompressor(encoding: str) -> _Decompressor:
    if encoding == "gzip":
        return cast(_Decompressor, zlib.decompressobj(wbits=31))
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    return cast(_Decompressor, zstd.ZstdDecompressor(options=options))


def _broken(encoding: str, why: str) -> Refused:
    message = f"The body is not {encoding}, as its Content-Encoding says: {why}."
    return Refused("encoding", message, where="body")


def _too_large(what: str, limit: int, *, unpacked: bool = False) -> Refused:
    when = " when it is decompressed" if unpacked else ""
    message = f"The body {what} bytes{when}, at most {limit} are accepted (limits.body_bytes): send fewer steps a push."
    return Refused("too_large", message, where="body", status=413)
