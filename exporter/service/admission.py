"""What is let in: the bounds of a push, checked before anything is written. Called by the core and by the app.

A refusal names what was wrong and where, carries the status to answer with, and has changed nothing.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence, Sized

import msgspec

from exporter.protocol import (
    PROTOCOL_VERSION,
    AttemptStarted,
    Batch,
    Changes,
    ClosedPhase,
    Event,
    HooksReported,
    OpenPhase,
    RunStarted,
    Scalar,
    SettingApplied,
    Step,
)

MAX_INTEGER = 2**53
"""Steps, sequence numbers and counts stay below, so that JSON, SQLite and float64 all hold them exactly."""

_EVENT_INTEGERS = ("step", "resume_step", "target_step", "bytes", "stored_bytes", "pid", "layers", "non_finite")
_EVENT_CODES = ("exit_code", "signal")
_EVENT_TEXTS = (
    *("path", "resume_path", "target_path", "command_id"),
    *("config_hash", "fingerprint", "name", "place", "file", "largest_layer", "executor"),
)

MAX_TEXT = 4096
"""Characters of a path, which no system has longer ones of. What is written for people is cut when it is kept."""

MAX_SECONDS = 10 * 366 * 86_400.0
"""No phase lasts longer."""

MAX_PARTS = 1000
"""Events, GPU readings and closed phases that one push may carry of each."""

MAX_OPEN_PHASES = 64
"""Each is a series in ``/metrics``; verl nests a handful."""

SHOWN_CHARACTERS = 60
"""Of a name that somebody gave, in a sentence: enough to find it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``limits`` section of the configuration. The defaults suit a cluster of 1,000 runs."""

    body_bytes: int = 8 * 1024 * 1024
    """Of one request, as it is sent and as it is when it has been decompressed."""
    steps_per_batch: int = 1000
    metrics_per_step: int = 2000
    metrics_per_run: int = 4000
    """Different metric names that one run may ever send."""
    runs: int = 2000
    """Runs that are watched at a time; one that has ended counts until its grace time is over, so there are more of
    them than run."""
    senders_per_run: int = 10_000
    name_length: int = 256
    """Characters of a run id, sender id, metric, phase or other name: of everything that becomes a label."""
    requests_per_second: int = 100
    """Pushes of one sender, over ten seconds; a second is enough for what a sender has to say, this for a backlog."""
    connections: int = 10_000
    """Open at a time; fewer where the system lets the process have fewer files."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 1 <= getattr(self, name) < MAX_INTEGER:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


class Refused(Exception):
    """A request that is not accepted.

    Args:
        reason: a word for the counter (``too_large``, ``token`` …).
        message: a sentence: what was wrong, what to do.
        where: path of the field, such as ``$.steps[0].metrics``.
        status: the HTTP status to answer with.
        retry_after: seconds after which to try again, 0 where trying again is useless.
    """

    def __init__(self, reason: str, message: str, *, where: str = "", status: int = 400, retry_after: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.where = where
        self.status = status
        self.retry_after = retry_after


class Pace:
    """How fast each sender may push: a bucket for each that fills up again at ``limits.requests_per_second``.

    Args:
        limits: of which it is.
        senders: most buckets that are kept; the one that was used longest ago is forgotten first, which is no loss
            where it is full again by then.
    """

    BURST_SECONDS = 10
    """A bucket holds as many seconds' worth: a sender that comes back from an outage may catch up."""

    def __init__(self, limits: Limits, senders: int = 50_000) -> None:
        self._rate = float(limits.requests_per_second)
        self._burst = self._rate * self.BURST_SECONDS
        self._senders = senders
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def take(self, sender: tuple[str, str], now: float) -> None:
        """One push of ``sender`` (run id, sender id). Raises :class:`Refused` (429) where it is one too many.

        Args:
            now: seconds of a monotonic clock.
        """
        key = hash(sender)  # whatever the names are, and however long
        left, at = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self._rate)
        self._buckets[key] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > self._senders:
            self._buckets.popitem(last=False)
        if left < 1.0:
            raise Refused(
                "too_fast",
                f"This sender pushes more than {self._rate:.0f} times a second (limits.requests_per_second): "
                "put more into a push, or push less often.",
                where="$.sender.id",
                status=429,
                retry_after=1,
            )


def check(batch: Batch, limits: Limits) -> None:
    """Raise :class:`Refused` where the batch breaks a bound. The number of runs is the core's to check."""
    check_protocol(batch.protocol)
    name(batch.run.run_id, "$.run.run_id", limits)
    name(batch.sender.id, "$.sender.id", limits)
    for field in ("project", "experiment", "trainer", "verl_version", "cohort"):
        name(getattr(batch.run, field), f"$.run.{field}", limits, empty=True)
    _integer(batch.run.attempt, "$.run.attempt", least=1)
    _integer(batch.seq, "$.seq", least=1)
    _parts(batch.steps, "$.steps", limits.steps_per_batch, "limits.steps_per_batch")
    _parts(batch.gpus, "$.gpus", MAX_PARTS)
    _parts(batch.events, "$.events", MAX_PARTS)
    for index, step in enumerate(batch.steps):
        _step(step, f"$.steps[{index}]", limits)
    if batch.phase is not None:
        _integer(batch.phase.step, "$.phase.step")
        both: dict[str, Sequence[OpenPhase | ClosedPhase]] = {"open": batch.phase.open, "closed": batch.phase.closed}
        for part, phases in both.items():
            _parts(phases, f"$.phase.{part}", MAX_OPEN_PHASES if part == "open" else MAX_PARTS)
            for index, phase in enumerate(phases):
                name(phase.name, f"$.phase.{part}[{index}].name", limits)
                _seconds(phase.seconds, f"$.phase.{part}[{index}].seconds")
    if batch.rollout is not None:
        for field in batch.rollout.__struct_fields__:
            _integer(getattr(batch.rollout, field), f"$.rollout.{field}")
    for index, gpu in enumerate(batch.gpus):
        where = f"$.gpus[{index}]"
        name(gpu.node, f"{where}.node", limits)
        name(gpu.uuid, f"{where}.uuid", limits, empty=True)
        _integer(gpu.index, f"{where}.index")
        for field in ("memory_used_bytes", "memory_total_bytes", "xid_errors", "last_xid"):
            if getattr(gpu, field) is not None:
                _integer(getattr(gpu, field), f"{where}.{field}")
    for index, event in enumerate(batch.events):
        _event(event, f"$.events[{index}]", limits)


def check_protocol(version: int) -> None:
    """Raise :class:`Refused` for any version but ours; also of use where the rest of a push cannot be read."""
    if version != PROTOCOL_VERSION:
        raise Refused(
            "protocol",
            f"This exporter speaks protocol version {PROTOCOL_VERSION}, the push has version {version}: "
            "install the same release of verl-sentinel on both sides.",
            where="$.protocol",
        )


def shortened(name: str) -> str:
    """A name as it stands in a sentence or a path: quoted, and its first characters only where it is long.

    >>> shortened("actor/loss"), shortened("a" * 61) == '"' + "a" * 60 + '…"'
    ('"actor/loss"', True)
    """
    start = name[:SHOWN_CHARACTERS]
    return json.dumps(start + "…" * (len(name) > len(start)), ensure_ascii=not start.isprintable())


def keyed(where: str, key: str) -> str:
    """The path of a dict's value.

    >>> keyed("$.steps[0].metrics", "a")
    '$.steps[0].metrics["a"]'
    """
    return f"{where}[{shortened(key)}]"


def name(value: str, where: str, limits: Limits, *, empty: bool = False) -> None:
    """Check a name that becomes a key or a label: printable, and of bounded length."""
    if not value and not empty:
        raise Refused("malformed", "A name is empty: it has to have at least one character.", where=where)
    if len(value) > limits.name_length:
        raise Refused(
            "name_too_long",
            f"The name {shortened(value)} has {len(value)} characters, and the most is {limits.name_length} "
            "(limits.name_length).",
            where=where,
        )
    if not value.isprintable():
        message = f"The name {shortened(value)} has characters that cannot be printed."
        raise Refused("malformed", message, where=where)


def _step(step: Step, where: str, limits: Limits) -> None:
    _integer(step.step, f"{where}.step")
    if len(step.metrics) > limits.metrics_per_step:
        raise Refused(
            "too_many_metrics",
            f"Step {step.step} has {len(step.metrics)} metrics, and the most is {limits.metrics_per_step} "
            "(limits.metrics_per_step).",
            where=f"{where}.metrics",
        )
    for key in step.metrics:
        if len(key) > limits.name_length:
            name(key, keyed(f"{where}.metrics", key), limits)


def _event(event: Event, where: str, limits: Limits) -> None:
    for field in (*_EVENT_INTEGERS, *_EVENT_CODES):
        if getattr(event, field, None) is not None:
            least = -MAX_INTEGER if field in _EVENT_CODES else 0
            _integer(getattr(event, field), f"{where}.{field}", least=least)
    for field in _EVENT_TEXTS:
        _text(getattr(event, field, ""), f"{where}.{field}")
    if isinstance(event, AttemptStarted) and event.changes is not None:
        _changes(event.changes, f"{where}.changes")
    elif isinstance(event, SettingApplied):
        for field in ("wanted", "restored", "found"):
            _scalar(getattr(event, field), f"{where}.{field}")
    elif isinstance(event, HooksReported):
        _parts(event.installed, f"{where}.installed", MAX_PARTS)
        _parts(event.missing, f"{where}.missing", MAX_PARTS)
        for index, hook in enumerate(event.installed):
            name(hook, f"{where}.installed[{index}]", limits)
        for index, missing in enumerate(event.missing):
            name(missing.name, f"{where}.missing[{index}].name", limits)
    elif isinstance(event, RunStarted):
        _parts(event.config, f"{where}.config", 10 * MAX_PARTS)
        for key, value in event.config.items():
            _scalar(value, keyed(f"{where}.config", key))


def _changes(changes: Changes, where: str) -> None:
    _integer(changes.skip_steps, f"{where}.skip_steps")
    for field in ("settings", "removed", "exclude"):
        _parts(getattr(changes, field), f"{where}.{field}", MAX_PARTS)
    for key, value in changes.settings.items():
        _scalar(value, keyed(f"{where}.settings", key))


def _scalar(value: Scalar, where: str) -> None:
    """A seed may well be a 64-bit number; JSON carries larger ones, which the journal cannot."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise Refused("malformed", "The value of a setting does not fit into 64 bits.", where=where)


def _text(value: str, where: str) -> None:
    if len(value) > MAX_TEXT:
        message = f"A text has {len(value)} characters, and the most is {MAX_TEXT}: shorten it."
        raise Refused("text_too_long", message, where=where)


def _parts(parts: Sized, where: str, most: int, setting: str = "") -> None:
    if len(parts) > most:
        field = where.rpartition(".")[2]
        bound = f"({setting})" if setting else "(which is no setting)"
        message = f"The push has {len(parts)} entries in {field}, and the most is {most} {bound}: send fewer a push."
        raise Refused("too_many_parts", message, where=where)


def _integer(value: int, where: str, least: int = 0) -> None:
    if not least <= value < MAX_INTEGER:
        raise Refused(
            "malformed", f"The number {value} is out of range: it has to be {least} or more, below 2^53.", where=where
        )


def _seconds(value: float, where: str) -> None:
    if not 0 <= value <= MAX_SECONDS:
        message = f"The duration {value} is not a number of seconds from 0 to {MAX_SECONDS:.0f} (ten years)."
        raise Refused("malformed", message, where=where)
