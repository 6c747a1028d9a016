"""Bodies of the journal's entries besides batches, and how each is written. Called by the core."""

from __future__ import annotations

from typing import Literal

import msgspec

from exporter.detectors.base import Verdict
from exporter.protocol import Batch
from exporter.service.stored import Entry


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the live detectors said of one moment."""

    attempt: int
    verdicts: list[Verdict]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A person, or a recovery, changed incidents."""

    action: Literal["acknowledge", "mitigate", "recovered", "give_back"]
    incidents: list[str]
    who: str = ""
    """The person, or the id of the recovery."""
    reason: str = ""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """An exporter began to watch, and before it nobody did since a moment (Unix seconds)."""

    watched: float


_encoder = msgspec.msgpack.Encoder()
_look = msgspec.msgpack.Decoder(Look)
_mark = msgspec.msgpack.Decoder(Mark)
_start = msgspec.msgpack.Decoder(Start)


def batch_entry(batch: Batch, at: float) -> Entry:
    """The batch is written anew and not as it came, so that what was read once is read at every start."""
    beat = not (batch.steps or batch.events or batch.rollout or batch.gpus or (batch.phase and batch.phase.closed))
    return Entry(
        kind="beat" if beat else "batch",
        at=at,
        run_id=batch.run.run_id,
        body=_encoder.encode(batch),
        sender=batch.sender.id,
        seq=batch.seq,
    )


def look_entry(run_id: str, look: Look, at: float) -> Entry:
    return Entry(kind="look", at=at, run_id=run_id, body=_encoder.encode(look))


def mark_entry(run_id: str, mark: Mark, at: float) -> Entry:
    return Entry(kind="mark", at=at, run_id=run_id, body=_encoder.encode(mark))


def read_look(entry: Entry) -> Look:
    return _look.decode(entry.body)


def read_mark(entry: Entry) -> Mark:
    return _mark.decode(entry.body)


def start_entry(watched: float, at: float) -> Entry:
    return Entry(kind="start", at=at, run_id="", body=_encoder.encode(Start(watched=watched)))


def read_start(entry: Entry) -> Start:
    return _start.decode(entry.body)
