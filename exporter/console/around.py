"""A signal around the onset of a finding, as a drawing that needs no script. Called by
:mod:`exporter.console.incident_page`; what it reads is of :mod:`exporter.console.traces`, on that thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.console.traces import Traces
from exporter.signals import SIGNALS

BEFORE: Final = 40
"""Rows before the onset."""
AFTER: Final = 15
"""Rows after what is marked."""
MOST_ROWS: Final = 160

WIDTH: Final = 420
HEIGHT: Final = 180
LEFT: Final = 80
"""Room for the numbers at the side, ``-0.001235`` and ``-1.23e-12`` among them; the others are for those below, and
for marks."""
BOTTOM: Final = 22
TOP: Final = 12
RIGHT: Final = 10
TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Marked:
    """What is marked: where the finding begins, where it was said, where it was seen last."""

    signal: str
    attempt: int
    onset: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Around:
    """Values of one signal, row by row."""

    signal: str
    steps: Sequence[int]
    values: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]
    lost: Sequence[bool]
    """Logged, and not finite."""
    onset_row: int
    said_row: int


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """Coordinates in a box of :data:`WIDTH` by :data:`HEIGHT`."""

    signal: str
    unit: str
    line: Sequence[str]
    """Points of each stretch without a gap."""
    dots: Sequence[tuple[float, float]]
    band: Sequence[str]
    lost: Sequence[float]
    onset: float
    said: float
    across: Sequence[Tick]
    up: Sequence[Tick]
    rows: Sequence[tuple[int, float | None, float | None, float | None]]
    """Step, value, and the band: the same for who does not see the picture."""
    left: int = LEFT
    right: int = WIDTH - RIGHT
    width: int = WIDTH
    height: int = HEIGHT


def around(traces: Traces, marked: Sequence[Marked]) -> list[Around]:
    """Of each that has values in memory or archive; in their order."""
    found = (_one(traces, one) for one in marked)
    return [one for one in found if one is not None]


def _one(traces: Traces, it: Marked) -> Around | None:
    column = traces.values.get(it.signal)
    onset, said = traces.row_of(it.attempt, it.onset), traces.row_of(it.attempt, it.first_step)
    last = traces.row_of(it.attempt, it.last_step)
    if column is None or onset is None or said is None:
        return None
    begin = max(0, min(onset, said) - BEFORE)
    end = min(len(traces), max(said, last if last is not None else said) + AFTER + 1, begin + MOST_ROWS)
    end = max(end, min(len(traces), said + 2))
    band, lost = traces.bands.get(it.signal), frozenset(traces.lost.get(it.signal, ()))
    rows = range(begin, end)
    nothing = [math.nan] * len(rows)
    made = Around(
        signal=it.signal,
        steps=[traces.steps[row] for row in rows],
        values=[column[row] for row in rows],
        lower=nothing if band is None else [band.lower[row] for row in rows],
        upper=nothing if band is None else [band.upper[row] for row in rows],
        lost=[row in lost for row in rows],
        onset_row=max(0, onset - begin),
        said_row=said - begin,
    )
    return made if any(map(math.isfinite, made.values)) or any(made.lost) else None


def drawn(it: Around) -> Drawing:
    """Where everything lies."""
    count = len(it.steps)
    low, high = _range(it)
    scale = (HEIGHT - TOP - BOTTOM) / (high - low)

    def x(row: float) -> float:
        return round(LEFT + row * (WIDTH - LEFT - RIGHT) / max(1, count - 1), 1)

    def y(value: float) -> float:
        return round(TOP + (high - min(max(value, low), high)) * scale, 1)

    stretches = list(_stretches(it.values))
    bands = list(_stretches([u if math.isfinite(v) else v for u, v in zip(it.upper, it.lower, strict=True)]))
    every = max(1, math.ceil(count / TICKS))
    return Drawing(
        signal=it.signal,
        unit=SIGNALS[it.signal].unit if it.signal in SIGNALS else "",
        line=[" ".join(f"{x(row)},{y(it.values[row])}" for row in rows) for rows in stretches if len(rows) > 1],
        dots=[(x(row), y(it.values[row])) for rows in stretches for row in rows if count <= 60 or len(rows) == 1],
        band=[
            " ".join(
                [f"{x(row)},{y(it.upper[row])}" for row in rows]
                + [f"{x(row)},{y(it.lower[row])}" for row in reversed(rows)]
            )
            for rows in bands
        ],
        lost=[x(row) for row in range(count) if it.lost[row]],
        onset=x(it.onset_row),
        said=x(it.said_row),
        across=[Tick(x(row), it.steps[row]) for row in range(0, count, every)],
        up=[Tick(y(value), value) for value in (low, (low + high) / 2, high)],
        rows=[
            (step, _known(value), _known(lower), _known(upper))
            for step, value, lower, upper in zip(it.steps, it.values, it.lower, it.upper, strict=True)
        ],
    )


def _range(it: Around) -> tuple[float, float]:
    """Lowest and highest of the values, with the band as far as it does not flatten them."""
    values = [value for value in it.values if math.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    room = 0.75 * ((high - low) or abs(high) or 1.0)
    least, most = low - room, high + room
    for value in (*it.lower, *it.upper):
        if math.isfinite(value):
            low, high = min(low, max(value, least)), max(high, min(value, most))
    pad = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - pad, high + pad


def _stretches(values: Iterable[float]) -> Iterable[list[int]]:
    """Rows of each stretch of finite values."""
    stretch: list[int] = []
    for row, value in enumerate(values):
        if math.isfinite(value):
            stretch.append(row)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
