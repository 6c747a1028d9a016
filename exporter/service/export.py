"""The steps of a run as files: verl's own ``file`` form (JSONL) and CSV. Called by the route that exports.

What arrived is read in the order of arrival, more than once, and never held whole: a run of a week is larger than the
memory that may be spent on one question. The first reading finds what later attempts took back, the next (for CSV) the
columns, the last writes.

The *final history* is what a run that had never been restarted would have logged: where a later attempt trained step N
again, what earlier ones logged from N on is left out, as verl's own file would not have it either. A validation that a
resumed attempt logs on the step it was resumed from joins that step's line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

import msgspec

from exporter.service.admission import Refused

Format = Literal["jsonl", "csv"]

MEDIA_TYPES: Mapping[Format, str] = {"jsonl": "application/jsonl", "csv": "text/csv"}

CHUNK_BYTES = 256 * 1024
OPEN_STEPS = 64
"""Steps that wait for parts that are still to come. A part that is later than that becomes a line of its own."""
MOST_COLUMNS = 20_000
"""Of a CSV file. JSONL has no such bound."""


class ArchivedPart(Protocol):
    """One step, or a part of one, as it was pushed (``exporter.service.history.ArchivedStep``)."""

    @property
    def step(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def sender(self) -> str: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


Reading = Callable[[], Iterator[ArchivedPart]]
"""Begins to read the parts of a run anew, in the order in which they arrived."""


@dataclass
class Line:
    """One step with all its parts."""

    step: int
    attempt: int
    metrics: dict[str, float]


Life = tuple[int, int]
"""An attempt, and which trainer in it, for one that was restarted by hand keeps the attempt's number."""


@dataclass
class _Lives:
    """Tells the life that each part belongs to. Gives the same for every reading of the same parts."""

    newest: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    """Attempt to the number of its newest life, and that life's newest step and sender."""

    def of(self, part: ArchivedPart) -> Life:
        number, step, sender = self.newest.get(part.attempt, (0, part.step, part.sender))
        if part.step < step and part.sender != sender:
            number, step = number + 1, part.step
        # A part that comes late from the same sender does not turn the time back.
        if part.step >= step:
            self.newest[part.attempt] = (number, part.step, part.sender)
        return part.attempt, number


def trains(metrics: Mapping[str, float]) -> bool:
    """Whether this is of a training step and not only of a validation."""
    return any(not key.startswith("val") for key in metrics)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Export:
    """The steps of one run. Reads nothing before it is iterated.

    Args:
        reading: begins to read.
        attempt: only steps of this one.
        all_attempts: also steps that a later attempt took back; then a line says of which attempt it is.
    """

    def __init__(self, reading: Reading, *, attempt: int | None = None, all_attempts: bool = False) -> None:
        self._reading = reading
        self._attempt = attempt
        self._all = all_attempts
        self.parts = 0
        """How many the run has, of any attempt; known when the first chunk is."""

    def chunks(self, form: Format) -> Generator[bytes, None, None]:
        """The file, in pieces of some 256 KiB.

        Raises what ``reading`` raises, and :class:`Refused` for a CSV with too many columns, before the first piece
        where that can be known.
        """
        return self._csv() if form == "csv" else self._jsonl()

    def _jsonl(self) -> Generator[bytes, None, None]:
        buffer = bytearray()
        encode = msgspec.json.Encoder().encode  # writes what is not finite as null, as verl's encoder does
        for line in self._lines(*self._survey()):
            mark = {"attempt": line.attempt} if self._all else {}
            buffer += encode({"step": line.step, **mark, "data": line.metrics}) + b"\n"
            if len(buffer) >= CHUNK_BYTES:
                yield bytes(buffer)
                buffer.clear()
        yield bytes(buffer)

    def _csv(self) -> Generator[bytes, None, None]:
        surveyed = self._survey()
        names: set[str] = set()
        for line in self._lines(*surveyed):
            names.update(line.metrics)
            if len(names) > MOST_COLUMNS:
                raise Refused(
                    "too_many_metrics",
                    f"The run has more than {MOST_COLUMNS} different metrics, which is more columns than a CSV file is "
                    "written with: take format=jsonl.",
                    where="query format",
                )
        columns = sorted(names)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["step", *(["attempt"] if self._all else []), *map(heading, columns)])
        for line in self._lines(*surveyed):
            start = [line.step, *([line.attempt] if self._all else [])]
            cells = (line.metrics.get(name) for name in columns)
            writer.writerow([*start, *("" if value is None else spelled(value) for value in cells)])
            if text.tell() >= CHUNK_BYTES:
                yield text.getvalue().encode()
                text.seek(0)
                text.truncate()
        yield text.getvalue().encode()

    def _survey(self) -> tuple[dict[Life, float], int]:
        """For each life the first step that a later one trained again, and how many parts were looked at."""
        first: dict[Life, int] = {}
        lives, count = _Lives(), 0
        for part in self._reading():
            count += 1
            life = lives.of(part)
            if trains(part.metrics) and self._wanted(part):
                first[life] = min(part.step, first.get(life, part.step))
            else:
                first.setdefault(life, _NEVER)
        self.parts = count
        again: dict[Life, float] = {}
        earliest = math.inf
        for life in sorted(first, reverse=True):
            again[life] = earliest
            earliest = min(earliest, first[life])
        return again, count

    def _wanted(self, part: ArchivedPart) -> bool:
        return self._attempt is None or part.attempt == self._attempt

    def _lines(self, again: Mapping[Life, float], count: int) -> Iterator[Line]:
        """Steps with their parts put together. ``count``: what arrived since the survey is not looked at."""
        waiting: dict[tuple[int, Life | None], Line] = {}
        lives = _Lives()
        for part in islice(self._reading(), count):
            life = lives.of(part)
            if not self._wanted(part) or not (self._all or part.step < again.get(life, math.inf)):
                continue
            key = (part.step, life if self._all else None)
            line = waiting.get(key)
            if line is not None:
                line.metrics.update(part.metrics)
                continue
            waiting[key] = Line(part.step, part.attempt, dict(part.metrics))
            if len(waiting) > OPEN_STEPS:
                yield waiting.pop(self._next(waiting))
        while waiting:
            yield waiting.pop(self._next(waiting))

    def _next(self, waiting: Mapping[tuple[int, Life | None], Line]) -> tuple[int, Life | None]:
        """In the final history steps come in order; with all attempts in the order in which they began."""
        return next(iter(waiting)) if self._all else min(waiting, key=lambda key: key[0])


_NEVER = 2**63


def heading(name: str) -> str:
    """A metric's name as the heading of a CSV column. Who pushes chooses the names: one that a spreadsheet would take
    for a formula gets an apostrophe before it. Numbers stay as they are.

    >>> heading("actor/kl"), heading("=cmd|'/C calc'!A0")
    ('actor/kl', "'=cmd|'/C calc'!A0")
    """
    return f"'{name}" if name.startswith(_FORMULA) else name


def spelled(value: float) -> str:
    """A number in a CSV cell; an empty cell is a metric that the step does not have.

    >>> spelled(0.1), spelled(float("nan")), spelled(float("-inf"))
    ('0.1', 'NaN', '-Infinity')
    """
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
