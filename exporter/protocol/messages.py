"""The two messages, a batch and its answer, and how they are encoded."""

from __future__ import annotations

from typing import Any

import msgspec

from exporter.protocol.commands import Abort, Command, HistogramRequest
from exporter.protocol.events import Event
from exporter.protocol.readings import GpuReading, PhaseReport, RolloutCounts, Run, Sender, Step
from exporter.protocol.values import JSON, MSGPACK, Wire


class Batch(Wire, frozen=True):
    """One flush of one sender. ``(run.run_id, sender.id, seq)`` makes it idempotent; ``seq`` counts from 1."""

    protocol: int
    run: Run
    sender: Sender
    seq: int
    sent_at: float = 0.0
    steps: list[Step] = []
    phase: PhaseReport | None = None
    rollout: RolloutCounts | None = None
    gpus: list[GpuReading] = []
    events: list[Event] = []


class PushAnswer(Wire, frozen=True):
    """Answer to an accepted push. A duplicate is accepted and changes nothing."""

    accepted_seq: int
    duplicate: bool = False
    command: Command | None = None
    abort: Abort | None = None
    histogram: HistogramRequest | None = None
    """For the sender of role ``trainer``."""


class ErrorAnswer(Wire, frozen=True):
    """Answer to a refused request: what was wrong, where, and what to do."""

    error: str
    reason: str
    where: str = ""


class _Version(msgspec.Struct, frozen=True):
    """The one field that every version of the protocol has."""

    protocol: int


_msgpack_decoder = msgspec.msgpack.Decoder(Batch)
_json_decoder = msgspec.json.Decoder(Batch)
_msgpack_encoder = msgspec.msgpack.Encoder()


def decode_batch(body: bytes, content_type: str = MSGPACK) -> Batch:
    """Decode and check one batch.

    Raises ``msgspec.ValidationError`` with the path of the offending field, or ``msgspec.DecodeError`` where the body
    is not msgpack or JSON at all. The protocol version is not checked here: the caller answers that case by itself.
    """
    return _json_decoder.decode(body) if content_type == JSON else _msgpack_decoder.decode(body)


def protocol_of(body: bytes, content_type: str = MSGPACK) -> int | None:
    """The version that a batch names, also where the rest is of another version's shape; None where it names none."""
    decode: Any = msgspec.json.decode if content_type == JSON else msgspec.msgpack.decode
    try:
        return int(decode(body, type=_Version).protocol)
    except (msgspec.DecodeError, RecursionError):
        return None


def encode(message: Any) -> bytes:
    """Encode any wire type as msgpack."""
    return _msgpack_encoder.encode(message)
