"""Draws a chart of a past run with matplotlib. Called by ``verl-sentinel replay --plot``; nothing else imports it.

From above: every finding as a bar from its onset over the step at which it was said to the last one; then the signals,
those with findings first, each with its line, what was expected of it, and its findings. Of a run that was started
again, what a later start went over again is grey.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, SymmetricalLogLocator

from exporter.detectors.base import Severity
from exporter.replay.charts import Chart, Episode
from exporter.replay.panels import MOST_ROWS, Line, line_of, rows_of, scale_of, signals_of, spelled
from exporter.signals import SIGNALS

COLOURS: Final = {Severity.INFO: "#6a8caf", Severity.WARNING: "#e08a00", Severity.CRITICAL: "#c1121f"}
MARKS: Final = {Severity.INFO: "|", Severity.WARNING: "D", Severity.CRITICAL: "v"}
INK, OLD, EXPECTED, RESTART, FORECAST = "#1d3446", "#838b92", "#7fb08a", "#7a3db8", "#8b1a8b"
WIDE: Final = 14.0
PANEL: Final = 1.45
ROW: Final = 0.22
LEFT, RIGHT, TOP, BOTTOM = 2.2, 0.2, 0.85, 0.75
"""Margins, and all sizes, in inches. What a panel or row is called stands left of it."""
EDGE: Final = 0.12
DPI: Final = 110
MOST_LABELS: Final = 6
"""Names of detectors in one panel."""
MOST_NAMED_STARTS: Final = 20


def draw(chart: Chart, file: Path, form: str) -> None:
    """Write the picture. ``form``: png, svg or pdf. Raises ``OSError``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of signs that the font does not have
        figure = _figure(chart)
        figure.savefig(file, format=form, dpi=DPI)


def _figure(chart: Chart) -> Figure:
    rows = rows_of(chart)
    signals = signals_of(chart)
    head = max(1, len(rows)) * ROW + 0.15
    high = TOP + head + len(signals) * (PANEL + 0.12) + BOTTOM
    figure = Figure(figsize=(WIDE, high))
    FigureCanvasAgg(figure)
    axes: list[Axes] = figure.subplots(
        1 + len(signals),
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw={
            "height_ratios": [head, *[PANEL] * len(signals)],
            "left": LEFT / WIDE,
            "right": 1.0 - RIGHT / WIDE,
            "top": 1.0 - TOP / high,
            "bottom": BOTTOM / high,
            "hspace": 0.12 * (1 + len(signals)) / (high - TOP - BOTTOM),
        },
    )[:, 0].tolist()
    first, last, beyond, ahead = _range(chart)
    axes[0].set_xlim(first, beyond)
    axes[0].autoscale(False, axis="x")
    _timeline(axes[0], chart, rows)
    for axis, signal in zip(axes[1:], signals, strict=True):
        axis.autoscale(False, axis="x")
        _panel(axis, chart, signal)
    for axis in axes:
        _restarts(axis, chart)
        if ahead:
            axis.axvline(last, color="#555555", lw=0.6)
    axes[-1].set_xlabel("step", fontsize=9)
    axes[-1].xaxis.set_major_locator(MaxNLocator(12, integer=True))
    _title(figure, chart, high)
    _legend(figure, chart, high)
    return figure


def _range(chart: Chart) -> tuple[float, float, float, bool]:
    """Where the picture begins, the last step, where the picture ends, and whether that is ahead of the run, as a
    forecast is."""
    first, last = float(chart.first), float(chart.last)
    ahead = [
        at + forecast.steps
        for episode in chart.episodes
        for at, forecast in episode.forecasts
        if forecast.steps is not None and math.isfinite(forecast.steps) and episode.last >= last - 1
    ]
    # What lies further ahead than that would leave the run itself little room, and is drawn as far as there is some.
    beyond = max([last, *(end for end in ahead if end <= last + 0.4 * (last - first))])
    margin = max(0.5, 0.006 * (beyond - first))
    return first - margin, last, beyond + margin, beyond > last


def _title(figure: Figure, chart: Chart, high: float) -> None:
    counts = {severity: sum(1 for e in chart.episodes if e.severity is severity) for severity in Severity}
    starts = len(chart.starts)
    parts = [
        f"{chart.rows:,} steps ({chart.first:,} to {chart.last:,})",
        *([f"{starts - 1} restart{'' if starts == 2 else 's'}"] if starts > 1 else []),
        "findings by their worst: " + ", ".join(f"{counts[one]} {one.label}" for one in reversed(Severity)),
    ]
    name = spelled(f"{chart.path.name}  {chart.run}".strip(), 110)
    x = EDGE / WIDE
    figure.text(x, 1 - 0.3 / high, name, fontsize=13, weight="bold", color=INK, va="center", parse_math=False)
    figure.text(x, 1 - 0.58 / high, "   ·   ".join(parts), fontsize=9, color="#444444", va="center")


def _legend(figure: Figure, chart: Chart, high: float) -> None:
    marks: list[Any] = [
        Line2D([], [], color=COLOURS[s], marker=MARKS[s], ls="none", ms=7 if s is Severity.INFO else 5, label=s.label)
        for s in reversed(Severity)
    ]
    marks += [
        Patch(facecolor=COLOURS[Severity.CRITICAL], alpha=0.11, label="onset to first said"),
        Patch(facecolor=COLOURS[Severity.CRITICAL], alpha=0.22, label="said"),
        Patch(facecolor=EXPECTED, alpha=0.35, label="expected"),
    ]
    if len(chart.starts) > 1:
        marks.append(Line2D([], [], color=RESTART, ls="--", lw=1, label="started again"))
        marks.append(Line2D([], [], color=OLD, lw=1, label="gone over again later"))
    if any(trace.lost for trace in chart.traces.values()):
        marks.append(Line2D([], [], color="#c1121f", marker="x", ls="none", ms=5, label="NaN or infinite"))
    if any(episode.forecasts for episode in chart.episodes):
        marks.append(Line2D([], [], color=FORECAST, ls=":", lw=1.4, label="forecast"))
    figure.legend(
        handles=marks, loc="lower left", bbox_to_anchor=(LEFT / WIDE, 0.06 / high), ncols=len(marks), frameon=False,
        fontsize=8, borderaxespad=0, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip


def _timeline(axis: Axes, chart: Chart, rows: Sequence[tuple[tuple[str, str], Sequence[Episode]]]) -> None:
    """Each detector's findings on a signal are a row."""
    axis.set_ylim(max(1, len(rows)) - 0.4, -0.6)
    axis.yaxis.set_major_locator(NullLocator())
    axis.set_facecolor("#f6f6f3")
    for name in ("top", "right", "left"):
        axis.spines[name].set_visible(False)
    axis.tick_params(labelbottom=False, length=0)
    if not rows:
        axis.text(
            0.5, 0.5, "nothing would have been said", transform=axis.transAxes, ha="center", va="center", fontsize=8
        )
        return
    for height, ((detector, signal), episodes) in enumerate(rows):
        for episode in episodes:
            colour = COLOURS[episode.severity]
            axis.hlines(height, episode.onset, episode.said, color=colour, lw=2, alpha=0.35)
            axis.hlines(height, episode.said, max(episode.last, episode.said), color=colour, lw=5, alpha=0.55)
            axis.plot(episode.worst_said, height, MARKS[episode.severity], color=colour, ms=6, mew=1.2, zorder=5)
        axis.axhline(height + 0.5, color="white", lw=1)
        named = spelled(detector if signal in ("", detector) else f"{detector}: {signal}", 38)
        _left_of(axis, named, ("data", height), size=7.5)
    every = len({(e.detector, e.signal) for e in chart.episodes})
    if every > len(rows):
        axis.annotate(
            f"and {every - MOST_ROWS} more", (0.996, len(rows) - 1), ha="right", va="center",
            xycoords=("axes fraction", "data"), fontsize=7.5, style="italic",
        )  # fmt: skip


def _panel(axis: Axes, chart: Chart, signal: str) -> None:
    episodes = [episode for episode in chart.episodes if episode.signal == signal]
    line = line_of(chart, signal)
    scale = scale_of(line, [f.limit for e in episodes for _, f in e.forecasts])
    if scale.kind == "symlog":
        axis.set_yscale("symlog", linthresh=scale.linear)
        axis.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=scale.linear))
        axis.yaxis.get_major_locator().set_params(numticks=5)  # type: ignore[call-arg]
    elif scale.kind == "log":
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(numticks=5))
    else:
        axis.yaxis.set_major_locator(MaxNLocator(4))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axis.set_ylim(scale.bottom, scale.top)
    axis.tick_params(labelsize=7.5, length=2)
    axis.grid(axis="y", color="#e6e6e6", lw=0.6)
    axis.set_axisbelow(True)
    for name in ("top", "right"):
        axis.spines[name].set_visible(False)
    if line.lower is not None and line.upper is not None:
        for attempt in np.unique(line.attempts):  # each by itself, for the steps of the next one may lie before it
            part = (line.attempts == attempt) & ~line.old & np.isfinite(line.lower) & np.isfinite(line.upper)
            lower, upper = (np.clip(edge, scale.bottom, scale.top) for edge in (line.lower, line.upper))
            axis.fill_between(
                line.steps, lower, upper, where=part, step="mid", color=EXPECTED, alpha=0.3, lw=0, zorder=0.5
            )
    _draw_line(axis, line)
    _findings(axis, episodes, line)
    unit = SIGNALS[signal].unit.replace("_", " ") if signal in SIGNALS else ""
    unit = "GiB" if unit == "bytes" else unit
    _left_of(axis, spelled(signal, 28), ("axes fraction", 1.0), size=9, weight="bold", color=INK)
    _left_of(axis, unit, ("axes fraction", 0.86), size=7.5, color="#666666")


def _left_of(
    axis: Axes, text: str, at: tuple[Literal["data", "axes fraction"], float], *, size: float, color: str = "#333333",
    weight: str = "normal",
) -> None:  # fmt: skip
    """Name a row or a panel, at a height in its data or of it, in the margin."""
    axis.annotate(
        text, (EDGE / WIDE, at[1]), xycoords=("figure fraction", at[0]), va="center" if at[0] == "data" else "top",
        annotation_clip=False, fontsize=size, fontweight=weight, color=color, parse_math=False,
    )  # fmt: skip


def _draw_line(axis: Axes, line: Line) -> None:
    few = len(line.steps) <= 250
    for colour, part, order in ((OLD, line.old, 2), (INK, ~line.old, 3)):
        if not part.any():
            continue
        # A line goes on only where its neighbour is of the same part: between starts there is a gap.
        mean, low, high = (np.where(part, values, np.nan) for values in (line.mean, line.low, line.high))
        if line.smooth is None:
            axis.plot(*_gaps(line, mean), color=colour, lw=1.1, marker="o" if few else "", ms=2.4, zorder=order)
            continue
        axis.fill_between(line.steps, low, high, color=colour, alpha=0.25, lw=0.4, zorder=order)
        axis.plot(*_gaps(line, mean), color=colour, lw=0.5, alpha=0.45, zorder=order)
        axis.plot(*_gaps(line, np.where(part, line.smooth, np.nan)), color=colour, lw=1.3, zorder=order + 1)
    if line.lost.size:
        axis.plot(
            line.lost, np.full(line.lost.size, 0.06), "x", transform=axis.get_xaxis_transform(), color="#c1121f",
            ms=4, mew=1, zorder=7, clip_on=False,
        )  # fmt: skip


def _gaps(line: Line, values: Any) -> tuple[Any, Any]:
    """Steps and values without the places that have none, with a break where another start begins."""
    seen = np.isfinite(values)
    places = np.flatnonzero(seen)
    steps, values = line.steps[places].astype(float), values[places]
    breaks = np.flatnonzero(np.diff(line.attempts[places]) != 0) + 1
    # A single one of many places is no line: NaN between would hide it, so that is put only where a start ends.
    return np.insert(steps, breaks, np.nan), np.insert(values, breaks, np.nan)


def _findings(axis: Axes, episodes: Sequence[Episode], line: Line) -> None:
    labels: list[float] = []
    left, right = float(line.steps.min()), float(line.steps.max())
    for episode in sorted(episodes, key=lambda e: (-e.severity, e.said)):
        colour = COLOURS[episode.severity]
        if episode.severity is Severity.INFO:
            axis.plot(
                episode.said, 0.05, "|", transform=axis.get_xaxis_transform(), color=colour, ms=8, mew=1.3, zorder=6
            )
            continue
        axis.axvspan(episode.onset, episode.said, color=colour, alpha=0.11, lw=0, zorder=1)
        axis.axvspan(episode.said, max(episode.last, episode.said), color=colour, alpha=0.22, lw=0, zorder=1)
        axis.axvline(episode.worst_said, color=colour, lw=1, alpha=0.9, zorder=5)
        axis.plot(
            episode.worst_said, 1.0, MARKS[episode.severity], transform=axis.get_xaxis_transform(), color=colour, ms=6,
            clip_on=False, zorder=8,
        )  # fmt: skip
        _forecast(axis, episode, line)
        near = any(abs(at - episode.worst_said) < 0.09 * max(1.0, right - left) for at in labels)
        if len(labels) < MOST_LABELS and not near:
            labels.append(episode.worst_said)
            late = episode.worst_said > left + 0.85 * (right - left)
            axis.annotate(
                spelled(episode.detector, 40), (episode.worst_said, 1.0), xycoords=axis.get_xaxis_transform(),
                xytext=(-6 if late else 6, -1), textcoords="offset points", va="top", ha="right" if late else "left",
                fontsize=7.5, color=colour, weight="bold", parse_math=False, zorder=9,
                bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7},
            )  # fmt: skip


def _forecast(axis: Axes, episode: Episode, line: Line) -> None:
    """A dotted line from where the forecast was made to where the limit would be reached, and its interval."""
    end = axis.get_xlim()[1]
    # Of a finding that is over, the forecast that it was said with; of the others the newest one too.
    for at, forecast in episode.forecasts if episode.last >= line.steps.max() - 1 else episode.forecasts[:1]:
        limit = forecast.limit / line.unit
        value = line.value_at(at)
        if forecast.steps is None or not all(map(math.isfinite, (forecast.steps, limit, value))):
            continue
        axis.axhline(limit, color=FORECAST, lw=0.7, ls=(0, (1, 3)), zorder=4)
        axis.plot([at, at + forecast.steps], [value, limit], color=FORECAST, lw=1.4, ls=":", zorder=6)
        if forecast.interval is not None and all(map(math.isfinite, forecast.interval)):
            early, late = (min(at + steps, end) for steps in forecast.interval)
            axis.plot([early, late], [limit, limit], color=FORECAST, lw=3.5, alpha=0.35, zorder=6)


def _restarts(axis: Axes, chart: Chart) -> None:
    for number, (attempt, step) in enumerate(chart.starts.items()):
        if number and number <= 200:
            axis.axvline(step, color=RESTART, lw=1, ls="--", alpha=0.8 if len(chart.starts) <= 40 else 0.3, zorder=4)
            if axis.get_subplotspec().is_first_row() and len(chart.starts) <= MOST_NAMED_STARTS:  # type: ignore[union-attr]
                axis.annotate(
                    f"start {attempt}", (step, 1.0), xycoords=axis.get_xaxis_transform(), xytext=(0, 2), ha="center",
                    textcoords="offset points", fontsize=7, color=RESTART, va="bottom",
                )  # fmt: skip
