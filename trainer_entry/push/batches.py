"""From what the training side handed over to encoded batches. Used by :mod:`trainer_entry.push.client`'s thread.

The training thread only copies references; values are looked at here, later, on the push thread: numpy scalars, and
arrays and tensors of one element, become floats. What is not a number is left out, and counted.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import msgspec

from exporter.protocol import (
    PROTOCOL_VERSION,
    Batch,
    Event,
    GpuReading,
    Number,
    PhaseReport,
    Role,
    RolloutCounts,
    Run,
    Sender,
    Step,
    encode,
)

MAX_STEPS = 64
"""Steps in one batch; with 150 metrics each that is about 300 kB."""
MAX_EVENTS = 128
MAX_METRICS = 5000
MAX_KEY_LENGTH = 256


class RawStep(msgspec.Struct, frozen=True):
    """A step as the trainer logged it, values untouched; ``time`` is Unix seconds. A struct: it is made while training
    waits, and a frozen dataclass takes ten times as long.
    """

    step: int
    metrics: Mapping[str, Any]
    time: float


Item = Union[RawStep, Event]  # noqa: UP007 - evaluated at run time, on Python 3.10, from a Union


class BatchWriter:
    """Numbers the batches of one process life, from 1. Not thread-safe; seq order is the order of the calls."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.lost = 0
        """Items that no message can hold (text that is not Unicode, say), which were left out."""
        self.left_out = 0
        """Metrics that are no number, or too many of one step, which were left out."""
        self.first_left_out = ""
        """The first of them, for a person."""
        self._seq = 0

    def items(self, run: Run, items: Sequence[Item], *, now: float) -> Iterable[bytes]:
        """Encode steps and events of one run, in as many batches as their number asks for."""
        steps: list[Step] = []
        events: list[Event] = []
        for item in items:
            if isinstance(item, RawStep):
                metrics = numbers(item.metrics)
                if len(metrics) < len(item.metrics):
                    self._count_left_out(item.metrics, metrics)
                steps.append(Step(step=item.step, metrics=metrics, time=item.time))
            else:
                events.append(item)
            if len(steps) >= MAX_STEPS or len(events) >= MAX_EVENTS:
                yield from self._together(run, now, steps, events)
                steps, events = [], []
        if steps or events:
            yield from self._together(run, now, steps, events)

    def heartbeat(
        self,
        run: Run,
        *,
        now: float,
        phase: PhaseReport | None = None,
        rollout: RolloutCounts | None = None,
        gpus: Sequence[GpuReading] = (),
    ) -> bytes:
        """Encode what is only true now, and is not kept for later."""
        return self._encode(run, now, phase=phase, rollout=rollout, gpus=list(gpus))

    def _together(self, run: Run, now: float, steps: list[Step], events: list[Event]) -> list[bytes]:
        """One batch; where something in it cannot be encoded, one for each of the others, in the same order."""
        try:
            return [self._encode(run, now, steps=steps, events=events)]
        except (ValueError, TypeError, OverflowError):
            parts: list[dict[str, Any]] = [{"steps": [step]} for step in steps]
            parts += [{"events": [event]} for event in events]
        found = []
        for part in parts:
            try:
                found.append(self._encode(run, now, **part))
            except (ValueError, TypeError, OverflowError):
                self.lost += 1
        return found

    def _count_left_out(self, given: Mapping[str, Any], taken: Mapping[str, Number]) -> None:
        self.left_out += len(given) - len(taken)
        if not self.first_left_out:
            key, value = next(((key, value) for key, value in given.items() if _name(key) not in taken), ("", None))
            self.first_left_out = f"{_name(key)} ({type(value).__name__})"

    def _encode(self, run: Run, now: float, **parts: Any) -> bytes:
        self._seq += 1
        return encode(
            Batch(protocol=PROTOCOL_VERSION, run=run, sender=self.sender, seq=self._seq, sent_at=now, **parts)
        )


def numbers(metrics: Mapping[str, Any]) -> dict[str, Number]:
    """The metrics that are numbers, as floats; NaN and infinities stay what they are.

    An array or a tensor counts where it has one element. Texts, nothing, lists and nested values do not.

    >>> numbers({"loss": 1, "done": True, "nan": float("nan"), "text": "0.5", "list": [1.0], "nothing": None})
    {'loss': 1.0, 'done': 1.0, 'nan': nan}
    """
    found: dict[str, Number] = {}
    for key, value in metrics.items():
        if len(found) >= MAX_METRICS:
            break
        if type(value) is float:
            found[_name(key)] = value
            continue
        if value is None or isinstance(value, (str, bytes, bytearray, list, tuple, dict, set)):
            continue
        try:
            # float() of an array, or of a tensor with a gradient, warns in the middle of the training log.
            item = getattr(value, "item", None)
            found[_name(key)] = float(value if item is None else item())
        except Exception:  # noqa: BLE001 - any object may be logged as a metric; one without a number is left out
            continue
    return found


def _name(key: Any) -> str:
    name = str(key)[:MAX_KEY_LENGTH]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def new_sender(role: Role) -> Sender:
    """An id that no other process life has: role, host, pid and eight random hexadecimal digits."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())[:48].strip("-") or "host"
    return Sender(id=f"{role}-{host}-{os.getpid()}-{secrets.token_hex(4)}", role=role)
