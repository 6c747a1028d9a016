"""Turns accepted pushes into InfluxDB's line protocol. Called by the InfluxDB sink; docs/sinks.md describes the points.

A function of the entry alone: whatever is sent again after a crash is the same points with the same timestamps, and
overwrites itself. So nothing in here asks what the run is called by another sender, or which step came before.

The escaping is influxdb-client's. It takes most of the time of a line there, and names repeat with every step, so each
name is escaped once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isfinite, nan
from typing import Any

from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    Batch,
    CheckpointChecked,
    CheckpointCopied,
    CheckpointPruned,
    CheckpointSaved,
    CommandProgress,
    Event,
    GpuReading,
    GradientHistogram,
    HooksReported,
    RunFinished,
    SettingApplied,
    Step,
    WeightsSynced,
    decode_batch,
    number,
)
from exporter.service.stored import Entry
from exporter.signals import canonical

FIELDS_PER_LINE = 400
"""A point with more goes in several lines, which the server puts together: receivers bound the length of a line."""

REMEMBERED_NAMES = 50_000
"""Escaped names that are kept; then all are forgotten and met again."""

TEXT_LENGTH = 500
"""Of a text field."""

MILLISECOND = 1_000_000
"""In nanoseconds."""

_RESERVED_FIELDS = frozenset(("time", "step", "non_finite", "logged_at"))
_RESERVED_IN_STEP = frozenset(("seconds", "tokens", "duration_ms"))
"""Behind ``verl_step_`` these are names of ``/metrics`` and of the recording rules: a store that joins measurement and
field to one name may have them from Prometheus as well."""
_LOOSE_BACKSLASH = re.compile(r"\\(?=[ ,=\"]|$)")

Tags = Mapping[str, str]
Values = Mapping[str, float]


class Lines:
    """Makes lines.

    Args:
        tags: set on every point.
    """

    def __init__(self, tags: Tags | None = None) -> None:
        # Late, because it takes half a second and brings numpy: whoever has no sink does not pay for it.
        from influxdb_client.client.write.point import Point

        self._point: Callable[[str], Any] = Point
        self._tags = dict(tags or {})
        self._fields: dict[str, str] = {}
        self._heads: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def of(self, entry: Entry) -> list[bytes]:
        """The lines of one entry of the journal; none for what is no push.

        Raises ``msgspec.DecodeError`` where the entry cannot be read.
        """
        if entry.kind != "batch":
            return []
        batch = decode_batch(entry.body)
        # Milliseconds are what every receiver keeps. Below them stands the position, so that two pushes of one
        # millisecond do not overwrite one another in a server that keeps nanoseconds.
        arrived = int(entry.at * 1000.0) * MILLISECOND + entry.position % MILLISECOND
        lines: list[str] = []
        run = self._run_tags(batch)
        for when, step in _dated(batch.steps, arrived):
            lines.extend(self._step(step, run, batch.run.trainer, when))
        for event_at, event in _dated(batch.events, arrived):
            lines.append(self._event(event, run, event_at))
        for gpu in batch.gpus:
            lines.extend(self._gpu(gpu, run, arrived))
        if batch.rollout is not None:
            counts = {name: float(getattr(batch.rollout, name)) for name in batch.rollout.__struct_fields__}
            lines.extend(self._lines("verl_rollouts", {**run, "sender": batch.sender.id}, counts, arrived))
        return [line.encode("utf-8", "replace") for line in lines]

    def _run_tags(self, batch: Batch) -> dict[str, str]:
        run = batch.run
        # The client leaves out a tag without a value.
        return {
            **self._tags,
            "run": run.run_id,
            "attempt": str(run.attempt),
            "project": run.project,
            "experiment": run.experiment,
            "cohort": run.cohort,
        }

    def _step(self, step: Step, run: Tags, trainer: str, when: int) -> Iterator[str]:
        raw = {key: number(value) for key, value in step.metrics.items()}
        odd = {key: value for key, value in raw.items() if not isfinite(value)}
        about = {"step": float(step.step), "non_finite": float(len(odd))}
        if isfinite(step.time) and step.time > 0:
            about["logged_at"] = step.time
        sent = raw
        if not _RESERVED_IN_STEP.isdisjoint(raw):
            sent = {f"{key}_" if key in _RESERVED_IN_STEP else key: value for key, value in raw.items()}
        yield from self._lines("verl_step", run, sent, when, about)
        signals = canonical(raw, trainer)
        if signals:
            yield from self._lines("verl_signal", run, signals, when, {"step": float(step.step)})
        for key, value in odd.items():
            tags = {**run, "metric": key, "kind": _kind(value)}
            yield from self._lines("verl_non_finite", tags, {}, when, {"step": float(step.step)})

    def _gpu(self, gpu: GpuReading, run: Tags, when: int) -> Iterator[str]:
        tags = {**run, "node": gpu.node, "gpu": str(gpu.index), "uuid": gpu.uuid}
        names = (
            "memory_used_bytes",
            "memory_total_bytes",
            "utilization_ratio",
            "power_watts",
            "temperature_celsius",
            "xid_errors",
            "last_xid",
        )
        read = {name: getattr(gpu, name) for name in names}
        values = {name: float(value) for name, value in read.items() if value is not None}
        yield from self._lines("verl_gpu_reading", tags, {**values, "lost": float(gpu.lost)}, when)

    def _event(self, event: Event, run: Tags, when: int) -> str:
        kind = str(event.__struct_config__.tag)
        values, text = _about(event)
        # Few, and with texts, so the client makes the whole line.
        point = self._point("verl_event").time(when)
        for tag, value in {**run, "event": kind}.items():
            point.tag(tag, _tag(value))
        point.field("count", 1.0)
        for name, amount in values.items():
            if amount is not None and isfinite(amount):
                point.field(name, float(amount))
        if text:
            point.field("text", " ".join(text.split())[:TEXT_LENGTH])
        return str(point.to_line_protocol())

    def _lines(self, measurement: str, tags: Tags, values: Values, when: int, about: Values | None = None) -> list[str]:
        """One point; numbers that are not finite have no place in line protocol and are left out."""
        head = self._head(measurement, tags)
        fields = [f"{name}={value!r}" for name, value in (about or {}).items()]
        known = self._fields
        for name, value in values.items():
            if isfinite(value):
                escaped = known.get(name)
                fields.append(f"{self._field(name) if escaped is None else escaped}{value!r}")
        return [
            f"{head}{','.join(fields[first : first + FIELDS_PER_LINE])} {when}"
            for first in range(0, len(fields), FIELDS_PER_LINE)
        ]

    def _field(self, name: str) -> str:
        """The name as the client escapes it, with the equals sign."""
        if len(self._fields) >= REMEMBERED_NAMES:
            self._fields.clear()
        usable = _LOOSE_BACKSLASH.sub("/", name).replace('"', "'") or "_"
        if usable in _RESERVED_FIELDS:
            usable += "_"
        line = str(self._point("m").field(usable, 0.0).to_line_protocol())
        escaped = self._fields[name] = line.removeprefix("m ").removesuffix("0")
        return escaped

    def _head(self, measurement: str, tags: Tags) -> str:
        """Measurement and tags as the client escapes and sorts them, with the space after."""
        key = (measurement, tuple(tags.items()))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= REMEMBERED_NAMES:
                self._heads.clear()
            point = self._point(measurement).field("x", 0.0)
            for tag, value in tags.items():
                point.tag(tag, _tag(value))
            head = self._heads[key] = str(point.to_line_protocol()).removesuffix("x=0")
        return head


def _dated(parts: list[Any], arrived: int) -> Iterable[tuple[int, Any]]:
    """Parts of one push in order: the last one when it arrived, each of the others a millisecond before the next."""
    return ((arrived - (len(parts) - 1 - index) * MILLISECOND, part) for index, part in enumerate(parts))


def _tag(value: str) -> str:
    """A backslash before what is escaped with one, or at the end, reads differently from server to server."""
    return _LOOSE_BACKSLASH.sub("/", value)


def _kind(value: float) -> str:
    return "inf" if value == inf else "-inf" if value == -inf else str(nan)


def _about(event: Event) -> tuple[dict[str, float | None], str]:
    """Fields of an event, and what a person would want to read of it."""
    if isinstance(event, CheckpointSaved):
        values: dict[str, float | None] = {
            "step": event.step,
            "bytes": event.bytes,
            "save_seconds": event.save_seconds,
            "manifest_seconds": event.manifest_seconds,
            "verified": float(event.verified),
        }
        return values, event.reason or event.path
    if isinstance(event, CheckpointCopied | CheckpointChecked | CheckpointPruned | GradientHistogram | SettingApplied):
        return _about_care(event)
    if isinstance(event, WeightsSynced):
        return {"step": event.step, "seconds": event.seconds}, ""
    if isinstance(event, RunFinished):
        return {"exit_code": event.exit_code}, ""
    if isinstance(event, AttemptStarted):
        return {"resume_step": event.resume_step}, event.resume_path
    if isinstance(event, AttemptExited):
        ended: dict[str, float | None] = {
            "exit_code": event.exit_code,
            "signal": event.signal,
            "expected": float(event.expected),
            "seconds": event.seconds,
        }
        return ended, ""
    if isinstance(event, CommandProgress):
        return {"target_step": event.target_step}, f"{event.state} {event.detail}"
    if isinstance(event, HooksReported):
        missing = ", ".join(hook.name for hook in event.missing)
        return {"installed": len(event.installed), "missing": len(event.missing)}, missing
    return {}, ""


def _about_care(
    event: CheckpointCopied | CheckpointChecked | CheckpointPruned | GradientHistogram | SettingApplied,
) -> tuple[dict[str, float | None], str]:
    """The same of what is done with checkpoints between saving and restoring, and of what recovery wants to know."""
    if isinstance(event, CheckpointCopied):
        copied: dict[str, float | None] = {
            "step": event.step,
            "bytes": event.bytes,
            "stored_bytes": event.stored_bytes,
            "seconds": event.seconds,
            "ok": float(event.ok),
        }
        return copied, f"{event.tier} {event.name} {event.reason or event.place}"
    if isinstance(event, CheckpointChecked):
        checked: dict[str, float | None] = {"step": event.step, "seconds": event.seconds, "ok": float(event.ok)}
        return checked, f"{event.depth} {event.tier} {event.name} {event.reason}"
    if isinstance(event, CheckpointPruned):
        return {"step": event.step, "bytes": event.bytes}, f"{event.tier} {event.name} {event.reason}"
    if isinstance(event, GradientHistogram):
        written: dict[str, float | None] = {
            "step": event.step,
            "layers": event.layers,
            "norm": event.norm,
            "largest_norm": event.largest_norm,
            "non_finite": event.non_finite,
        }
        return written, f"{event.largest_layer} {event.file}"
    # Numbers alone: other values of a configuration stay here.
    values = {"wanted": event.wanted, "restored": event.restored, "found": event.found}
    applied: dict[str, float | None] = {
        name: float(value) for name, value in values.items() if isinstance(value, int | float)
    }
    return {"ok": float(event.ok), **applied}, f"{event.name} {event.reason}"
