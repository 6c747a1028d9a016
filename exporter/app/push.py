"""``POST /api/v1/push``, the path that every sender takes all the time. Mounted by :mod:`exporter.app`.

A plain ASGI callable beside Litestar: what Litestar does for a request costs more than all that is done here. What is
refused, and how that is told, is the same as everywhere.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import msgspec
from litestar.types import HTTPScope, Receive, Send

from exporter.app.access import Access
from exporter.app.answers import Headers, RawHeaders, Written, fault, refusal, wanted_type, write, wrong_method
from exporter.app.asked import decoded, settle, settled
from exporter.app.bodies import Bodies, Disconnected, content_type
from exporter.app.lifecycle import Exporter
from exporter.app.offence import explained
from exporter.protocol import JSON, MSGPACK, PUSH_PATH, Batch, PushAnswer, decode_batch, protocol_of
from exporter.service.admission import Pace, Refused, check_protocol

PUSH_TYPES = {MSGPACK: MSGPACK, "application/x-msgpack": MSGPACK, JSON: JSON}

WAITING_BYTES = 64 * 1024 * 1024
"""Of the bodies that wait for the journal, all together. A disk that is so far behind is one that senders should know
of: they have spools."""

_encode = msgspec.msgpack.Encoder().encode


class PushEndpoint:
    """Takes what was sent to :data:`exporter.protocol.PUSH_PATH`."""

    def __init__(self, exporter: Exporter, access: Access, bodies: Bodies) -> None:
        self._exporter = exporter
        self._access = access
        self._bodies = bodies
        self._pace = Pace(exporter.config.limits)
        self._waiting_bytes = 0

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        headers = RawHeaders(scope["headers"])
        if scope["method"] != "POST":
            written = wrong_method(headers, PUSH_PATH, str(scope["method"]), "POST")
        else:
            client = scope.get("client")
            try:
                written = await self._push(headers, client[0] if client else "", receive)
            except Refused as refused:
                self._exporter.ingest.reject(refused.reason)
                written = refusal(headers, refused)
            except Disconnected:
                return
            except Exception as error:  # noqa: BLE001 - told and logged like a fault of any other route
                written = fault(headers, f"POST {PUSH_PATH}", error)
        await written.send(send)

    async def _push(self, headers: Headers, peer: str, receive: Receive) -> Written:
        began = time.perf_counter()
        exporter = self._exporter
        self._access.check(headers, peer, "push")
        kind = content_type(headers, PUSH_TYPES)
        body = await self._bodies.read(receive, headers, exporter.config.limits.body_bytes)
        exporter.require_replayed()
        batch = decode(body, kind)
        self._pace.take((batch.run.run_id, batch.sender.id), began)
        if self._waiting_bytes > WAITING_BYTES:
            raise Refused("busy", "The journal is behind with what was sent. Send it again.", status=503, retry_after=1)
        done: asyncio.Future[PushAnswer | Refused] = asyncio.get_running_loop().create_future()
        exporter.core.submit(batch, exporter.clock(), partial(settle, done))
        self._waiting_bytes += len(body)
        try:
            result = await settled(done)
        finally:
            self._waiting_bytes -= len(body)
        exporter.ingest.answered += 1
        exporter.ingest.seconds += time.perf_counter() - began
        media_type = wanted_type(headers, default=kind)
        if media_type == MSGPACK:
            return Written(200, MSGPACK, _encode(result))
        return write(result, media_type=media_type)


def decode(body: bytes, kind: str) -> Batch:
    """One batch of the wire protocol. Raises :class:`Refused` with what is wrong and where."""
    try:
        return decoded(lambda: decode_batch(body, kind))
    except Refused as refused:
        # Of another version the whole shape may be another; what has to be said then is that, not the field.
        if (version := protocol_of(body, kind)) is not None:
            check_protocol(version)
        raise explained(refused, body, kind) from None
