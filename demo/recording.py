"""A recorded run as a small file: what an exporter took in, in its order and with its times.

Written by :mod:`demo.record` from an exporter's journal, read by the tests that replay it. Gzipped JSON lines: the
head, then one line for each batch, in the shape of the push protocol. Times count from :data:`BEGIN`, where the
recording begins; processes are called ``trainer-1`` and the like; paths, host names and texts of the run are left out.
"""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    Batch,
    CheckpointSaved,
    Event,
    Number,
    PhaseReport,
    RunStarted,
    Scalar,
    Sender,
    Step,
    json_number,
    number,
)

BEGIN = 1000.0
"""Seconds. Not 0, which stands for "not known" in several places."""

FIGURES = 6
"""Significant figures of a metric that are kept: float32 has seven."""

_CONFIG = (
    "actor_rollout_ref.actor.optim.",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.kl_loss",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.ppo_",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.response_length",
    "algorithm.",
    "critic.optim.",
    "data.train_batch_size",
    "data.max_",
    "trainer.total_",
    "trainer.save_freq",
    "trainer.test_freq",
)
"""Settings that say what a run was asked to do, by the beginning of their names."""


_LEFT_OUT = (
    "global_seqlen/",
    "num_turns/",
    "prompt_length/",
    "response_length_non_aborted/",
    "timing_per_token_ms/",
    "training/num_turns/",
    "training/off_policy/",
    "val-aux/",
)
"""Metrics that say again what others say, or nothing on the toy, by the beginning of their names."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """When the fault first acted, by its own word."""

    step: int
    at: float


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    scenario: str
    seed: int
    verl: str
    fault: Fault | None
    """None in a run without one."""
    steps: int
    """The newest training step."""
    ends_at: float
    """When the recording was over, which may be long after the last batch of a trainer that hangs."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One batch, and when it arrived by the exporter's clock."""

    at: float
    batch: Batch


class Recording(msgspec.Struct, frozen=True):
    """All of a file."""

    head: Head
    lines: list[Line]


def read(path: Path) -> Recording:
    """Read a recording. Raises ``OSError``, or ``msgspec.MsgspecError`` where it is none."""
    with gzip.open(path, "rb") as file:
        head = msgspec.json.decode(file.readline(), type=Head)
        decoder = msgspec.json.Decoder(Line)
        return Recording(head, [decoder.decode(line) for line in file])


def write(recording: Recording, path: Path) -> None:
    """Write a recording; the same one gives the same bytes. Raises ``OSError``."""
    encoder = msgspec.json.Encoder()
    text = b"".join(encoder.encode(line) + b"\n" for line in (recording.head, *recording.lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0))


def shrunk(batches: Iterable[tuple[float, Batch]], origin: float) -> Iterator[Line]:
    """Batches with their times of arrival (Unix seconds), as they are recorded; ``origin`` is when it begins."""
    senders = _Senders()
    for at, batch in batches:
        sender = senders.named(batch.sender)
        yield Line(
            at=since(at, origin),
            batch=replace(
                batch,
                sender=sender,
                sent_at=0.0,
                phase=None if batch.phase is None else _phases(batch.phase),
                steps=[_step(step, origin) for step in batch.steps],
                events=[event for told in batch.events for event in _event(told, origin)],
            ),
        )


def since(at: float, origin: float) -> float:
    """Unix seconds as a time of the recording, to the millisecond.

    >>> since(1_700_000_012.34567, 1_700_000_000.0)
    1012.346
    """
    return round(at - origin + BEGIN, 3)


class _Senders:
    """Ids that hold a host's name become ``trainer-1``, ``trainer-2`` …, in the order in which they are met."""

    def __init__(self) -> None:
        self._names: dict[str, Sender] = {}
        self._counts: Counter[str] = Counter()

    def named(self, sender: Sender) -> Sender:
        if sender.id not in self._names:
            self._counts[sender.role] += 1
            self._names[sender.id] = replace(sender, id=f"{sender.role}-{self._counts[sender.role]}")
        return self._names[sender.id]


def _phases(report: PhaseReport) -> PhaseReport:
    return replace(
        report,
        open=[replace(phase, seconds=round(phase.seconds, 3)) for phase in report.open],
        closed=[replace(phase, seconds=round(phase.seconds, 3)) for phase in report.closed],
    )


def _step(step: Step, origin: float) -> Step:
    kept = {key: _short(number(value)) for key, value in step.metrics.items() if not key.startswith(_LEFT_OUT)}
    return replace(step, metrics=kept, time=since(step.time, origin) if step.time else 0.0)


def _short(value: float) -> Number:
    return float(f"{value:.{FIGURES}g}") if math.isfinite(value) else json_number(value)


def _event(event: Event, origin: float) -> Iterator[Event]:
    """The event without what is only for a person to read; none where nothing else is in it."""
    time = since(event.time, origin)
    if isinstance(event, RunStarted):
        yield replace(event, time=time, config=_settings(event.config))
    elif isinstance(event, CheckpointSaved):
        yield replace(event, time=time, path=f"global_step_{event.step}", reason="")
    elif isinstance(event, AttemptStarted):
        yield replace(event, time=time, pid=0, resume_path="")
    elif isinstance(event, AttemptExited):
        yield replace(event, time=time, last_output=[])
    elif event.__struct_config__.tag in ("weights_synced", "run_finished"):
        yield replace(event, time=time)


def _settings(config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {
        key: value
        for key, value in config.items()
        if key.startswith(_CONFIG) and not (isinstance(value, str) and "/" in value)
    }
