"""The charts of one run as plain data for the browser: thinned out, with their marks. Called by
:mod:`exporter.console.series`, on its thread.

Of a signal with more values than a chart has room for, the smallest and the largest of each stretch stay: a single
spike is what somebody looks for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from exporter.console.traces import CHARTS, PHASES, Traces
from exporter.signals import SIGNALS

MOST_POINTS: Final = 2000
"""Of one series."""
PHASE_POINTS: Final = 300
AXIS_POINTS: Final = 500
MOST_MARKS: Final = 300
"""Of each kind: the newest."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An incident, as the charts mark it."""

    incident: str
    detector: str
    signal: str
    severity: str
    is_open: bool
    attempt: int
    onset: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint."""

    attempt: int
    step: int
    verified: bool


def picture(traces: Traces, findings: Iterable[Finding], saves: Iterable[Save], points: int) -> dict[str, Any]:
    """Everything that the script draws; each series has at most ``points`` points."""
    points = min(max(points, 20), MOST_POINTS)
    return {
        "rows": len(traces),
        "judged_from": traces.judged_from,
        "axis": _axis(traces),
        "starts": [[row, traces.attempts[row], traces.steps[row]] for row in traces.starts[-MOST_MARKS:]],
        "charts": [_chart(traces, name, points) for name in charted(traces.values)],
        "phases": _phases(traces),
        "findings": [_mark(traces, one) for one in list(findings)[-MOST_MARKS:]],
        "saves": [[traces.row_of(one.attempt, one.step), one.step, one.verified] for one in list(saves)[-MOST_MARKS:]],
    }


def charted(present: Iterable[str]) -> list[str]:
    """The signals that have a chart, of those that a run has."""
    names = frozenset(present)
    return [found for choice in CHARTS if (found := next((name for name in choice if name in names), None))]


def _axis(traces: Traces) -> dict[str, list[Any]]:
    """Step, attempt and time of some rows, for the labels."""
    every = max(1, math.ceil(len(traces) / AXIS_POINTS))
    rows = sorted({*range(0, len(traces), every), *([len(traces) - 1] if len(traces) else [])})
    return {
        "rows": rows,
        "steps": [traces.steps[row] for row in rows],
        "times": [round(traces.times[row]) for row in rows],
    }


def _chart(traces: Traces, name: str, points: int) -> dict[str, Any]:
    column = traces.values[name]
    rows = extremes(column, points)
    made: dict[str, Any] = {
        "signal": name,
        "unit": SIGNALS[name].unit,
        "rows": rows,
        "steps": [traces.steps[row] for row in rows],
        "values": rounded(column[row] for row in rows),
        "lost": [[row, traces.steps[row]] for row in traces.lost.get(name, ())],
    }
    band = traces.bands.get(name)
    if band is not None:
        made["expected"] = rounded(band.expected[row] for row in rows)
        made["lower"] = rounded(band.lower[row] for row in rows)
        made["upper"] = rounded(band.upper[row] for row in rows)
    return made


def extremes(column: array[float], points: int) -> list[int]:
    """Rows of at most ``points`` values: all, or the smallest and the largest of each stretch, the first and the last.

    >>> spike = array("f", [0.0] * 500 + [9.0] + [0.0] * 499)
    >>> rows = extremes(spike, 20)
    >>> len(rows) <= 20, 500 in rows, rows[0], rows[-1]
    (True, True, 0, 999)
    """
    values = np.frombuffer(column, dtype=np.float32) if len(column) else np.empty(0, dtype=np.float32)
    there = np.flatnonzero(np.isfinite(values))
    if len(there) <= points:
        return [int(row) for row in there]
    stretches = max(1, (points - 2) // 2)
    found = {int(there[0]), int(there[-1])}
    for part in np.array_split(there, stretches):
        among = values[part]
        found.update((int(part[among.argmin()]), int(part[among.argmax()])))
    return sorted(found)


def _phases(traces: Traces) -> dict[str, Any] | None:
    """Where the time of a step goes: means over stretches of rows, so that the parts add up to the whole."""
    names = [name for name in PHASES if name in traces.values]
    if not names or "step_time" not in traces.values:
        return None
    whole = np.frombuffer(traces.values["step_time"], dtype=np.float32)
    rows = np.flatnonzero(np.isfinite(whole))
    if not len(rows):
        return None
    stretches = np.array_split(rows, min(len(rows), PHASE_POINTS))
    parts = {name: np.nan_to_num(np.frombuffer(traces.values[name], dtype=np.float32)) for name in names}
    means = {name: [float(values[part].mean()) for part in stretches] for name, values in parts.items()}
    total = [float(whole[part].mean()) for part in stretches]
    rest = [max(0.0, one - sum(means[name][place] for name in names)) for place, one in enumerate(total)]
    return {
        "rows": [int(part[-1]) for part in stretches],
        "steps": [traces.steps[int(part[-1])] for part in stretches],
        "names": names,
        "values": [rounded(means[name]) for name in names],
        "rest": rounded(rest),
    }


def _mark(traces: Traces, one: Finding) -> dict[str, Any]:
    return {
        "incident": one.incident,
        "detector": one.detector,
        "signal": one.signal,
        "severity": one.severity,
        "open": one.is_open,
        "onset": one.onset,
        "step": one.first_step,
        "from": traces.row_of(one.attempt, one.onset),
        "row": traces.row_of(one.attempt, one.first_step),
        "to": traces.row_of(one.attempt, one.last_step),
    }


def rounded(values: Iterable[float]) -> list[float | None]:
    """Six digits that say something, which is what a column of single precision has; None for no value."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def named(signals: Sequence[str]) -> list[str]:
    """Units of signals, in their order; empty for a pure number."""
    return [SIGNALS[name].unit for name in signals]
