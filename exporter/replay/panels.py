"""What is shown in a picture of a past run, and on which scale. Called by :mod:`exporter.replay.picture`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from exporter.detectors.base import Severity
from exporter.replay.charts import Chart, Episode
from exporter.signals import SIGNALS

MAIN: Final = (
    "reward",
    "val_reward",
    "entropy",
    "kl",
    "ppo_kl",
    "loss",
    "val_loss",
    "grad_norm",
    "response_length",
    "clip_ratio",
    "rollout_kl",
    "rollout_probs_diff",
    "step_time",
    "throughput",
    "gpu_memory",
    "host_memory",
    "run_memory",
    "lr",
)
"""Shown of every run that has them, as far as there is room."""
USUAL_PANELS: Final = 10
MOST_PANELS: Final = 14
"""Where so many signals have findings that are more than a note."""
MOST_ROWS: Final = 12
"""Kinds of finding in the timeline."""
DENSE: Final = 400
"""Places from which on a line is drawn faint, with its course over it."""
LARGEST: Final = 1e60
"""What is further from 0 is drawn here: logarithms and ticks of what is larger leave the range of a float."""
SMALLEST: Final = 1e-60

Floats = npt.NDArray[np.float64]


def rows_of(chart: Chart) -> list[tuple[tuple[str, str], list[Episode]]]:
    """Episodes by detector and signal, the worst and then the earliest first, at most :data:`MOST_ROWS` kinds."""
    found: dict[tuple[str, str], list[Episode]] = {}
    for episode in chart.episodes:
        found.setdefault((episode.detector, episode.signal), []).append(episode)
    rows = sorted(found.items(), key=lambda row: _rank(row[1]))
    return rows[:MOST_ROWS]


def _rank(episodes: Sequence[Episode]) -> tuple[int, int]:
    worst = max(episode.severity for episode in episodes)
    return -worst, min(episode.said for episode in episodes if episode.severity is worst)


def signals_of(chart: Chart) -> list[str]:
    """Signals with pages and warnings first, then the main ones, then those with notes; of each what has a number."""
    shown = {name for name, trace in chart.traces.items() if any(trace.count)}
    by_signal: dict[str, list[Episode]] = {}
    for episode in chart.episodes:
        if episode.signal in shown:
            by_signal.setdefault(episode.signal, []).append(episode)
    ranked = sorted(by_signal, key=lambda name: _rank(by_signal[name]))
    found = [name for name in ranked if max(e.severity for e in by_signal[name]) > Severity.INFO][:MOST_PANELS]
    main = [name for name in MAIN if name in shown]
    others = [name for name in SIGNALS if name in shown]
    more = dict.fromkeys([*main, *(name for name in ranked if name not in found), *others])
    room = max(0, USUAL_PANELS - len(found))
    return found + [name for name in more if name not in found][:room]


@dataclass
class Line:
    """One signal as it is drawn. All arrays have a value for each place."""

    steps: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats
    smooth: Floats | None
    """The course, where there are so many places that the line itself hides it."""
    old: npt.NDArray[np.bool_]
    """What a later start went over again."""
    lower: Floats | None
    upper: Floats | None
    lost: Floats
    """Steps of values that are not finite."""
    unit: float
    """Values were divided by this."""

    def value_at(self, step: int) -> float:
        """The newest value at or before a step; NaN where there is none."""
        seen = np.flatnonzero((self.steps <= step) & np.isfinite(self.mean))
        return float(self.mean[seen[-1]]) if seen.size else math.nan


def line_of(chart: Chart, signal: str) -> Line:
    """A signal of the chart, with what the detector of its worst finding expected, or else the first that expects."""
    trace = chart.traces[signal]
    unit = 1024.0**3 if signal in SIGNALS and SIGNALS[signal].unit == "bytes" else 1.0
    places = len(chart.steps)
    steps = np.array(chart.steps, dtype=np.int64)
    attempts = np.array(chart.attempts, dtype=np.int64)
    low, high = (_padded(values, places) / unit for values in (trace.low, trace.high))
    count = _padded(trace.count, places, 0.0)
    mean = np.where(count > 0, _padded(trace.total, places, 0.0) / np.maximum(count, 1.0) / unit, np.nan)
    seen = int(np.isfinite(mean).sum())
    band = _band_of(chart, signal)
    lower = upper = None
    if band is not None:
        lower, upper = (_padded(values, places) / unit for values in (band.lower, band.upper))
        lower, upper = (np.clip(values, -LARGEST, LARGEST) for values in (lower, upper))
    return Line(
        steps=steps,
        attempts=attempts,
        mean=np.clip(mean, -LARGEST, LARGEST),
        low=np.clip(low, -LARGEST, LARGEST),
        high=np.clip(high, -LARGEST, LARGEST),
        smooth=_course(mean, max(5, seen // 80)) if seen > DENSE else None,
        old=_old(steps, attempts),
        lower=lower,
        upper=upper,
        lost=np.array([step for _, step in trace.lost], dtype=float),
        unit=unit,
    )


def _padded(values: Any, places: int, missing: float = math.nan) -> Floats:
    whole = np.full(places, missing)
    given = np.array(values[:places], dtype=float)
    whole[: given.size] = given
    return whole


def _band_of(chart: Chart, signal: str) -> Any:
    rank = {e.detector: -e.severity for e in sorted(chart.episodes, key=lambda e: e.severity) if e.signal == signal}
    bands = {detector: band for (detector, name), band in chart.bands.items() if name == signal}
    return bands[min(bands, key=lambda detector: rank.get(detector, 0))] if bands else None


def _old(steps: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Where a start that came later has a step that is as early, or earlier."""
    old = np.zeros(steps.size, dtype=bool)
    first = np.iinfo(np.int64).max
    for attempt in np.unique(attempts)[::-1]:
        part = attempts == attempt
        old |= part & (steps >= first)
        first = min(first, int(steps[part].min()))
    return old


def _course(values: Floats, width: int) -> Floats:
    """The median of ``width`` values around each, by way of the values that are there."""
    seen = np.flatnonzero(np.isfinite(values))
    half = width // 2
    padded = np.pad(values[seen], half, mode="edge")
    course = np.full(values.size, np.nan)
    course[seen] = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    return course


@dataclass(frozen=True)
class Scale:
    kind: Literal["linear", "log", "symlog"]
    bottom: float
    top: float
    linear: float = 1.0
    """Of symlog: up to here it is linear."""


def scale_of(line: Line, limits: Sequence[float]) -> Scale:
    """A scale on which the usual course can be seen beside what is far from it.

    ``limits``: of forecasts, in the signal's own unit; shown where they are near.
    """
    values = np.concatenate([line.low[np.isfinite(line.low)], line.high[np.isfinite(line.high)]])
    bottom, top = float(values.min()), float(values.max())
    early, late = (float(edge) for edge in np.percentile(values, (2, 98)))
    usual = late - early or abs(late) or 1.0
    far = top - late > 12 * usual or early - bottom > 12 * usual
    if bottom > 0 and (far or late > 20 * early):
        return Scale("log", max(bottom, SMALLEST) / 1.5, max(top, SMALLEST) * 1.8)
    if far:
        linear = max(float(np.percentile(np.abs(values), 90)), SMALLEST)
        return Scale(
            "symlog",
            bottom * 2.0 if bottom < 0 else -0.1 * linear,
            top * 2.0 if top > 0 else 0.1 * linear,
            linear=linear,
        )
    span = top - bottom or abs(top) * 0.2 or 1.0
    low, high = bottom - 0.08 * span, top + 0.2 * span
    for band in (line.lower, line.upper):  # the band is shown as far as that costs the line little of its height
        if band is not None and np.isfinite(band).any():
            edges = np.percentile(band[np.isfinite(band)], (5, 95))
            low, high = max(min(low, edges[0]), bottom - 0.6 * span), min(max(high, edges[1]), top + 0.6 * span)
    for limit in (limit / line.unit for limit in limits):
        if bottom - 3 * span <= limit <= top + 3 * span:
            low, high = min(low, limit - 0.1 * span), max(high, limit + 0.1 * span)
    if bottom >= 0.0:
        low = max(low, -0.03 * (high - low))
    return Scale("linear", low, high)


def spelled(text: str, most: int) -> str:
    """A name from outside on one line, and not too long.

    >>> spelled("a\\nb" * 3, 8)
    'a b…ba b'
    """
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return plain if len(plain) <= most else f"{plain[: most - most // 2 - 1]}…{plain[len(plain) - most // 2 :]}"
