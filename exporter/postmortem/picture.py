"""Draws the signals around a failure and its recovery with matplotlib, which is an extra (``plot``). Called by the
process that writes; nothing else imports it.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Final, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from exporter.postmortem.plots import Mark, Panel, Plot

COLOURS: Final = {"before": "#9aa3aa", "failed": "#c1121f", "after": "#1f6fb2", "other": "#b58900"}
MARKS: Final = {"onset": "#e08a00", "planned": "#5b3a8c", "target": "#2a7f3f"}
STYLES: Final[dict[str, Literal["--", ":", "-."]]] = {"onset": "--", "planned": ":", "target": "-."}
NAMES: Final = {
    "failed": "failed attempt",
    "after": "next attempt",
    "before": "earlier attempt",
    "other": "later attempt",
    "onset": "onset",
    "planned": "alert and plan",
    "target": "restored checkpoint",
}
WIDE: Final = 11.0
PANEL: Final = 1.7
DPI: Final = 110


def draw(plot: Plot, file: Path) -> None:
    """Write a PNG. Raises ``OSError``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of signs that the font does not have
        _figure(plot).savefig(file, format="png", dpi=DPI)


def _figure(plot: Plot) -> Figure:
    high = PANEL * len(plot.panels) + 1.3
    figure = Figure(figsize=(WIDE, high))
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(plot.panels), 1, sharex=True, squeeze=False)
    axes: list[Axes] = grid[:, 0].tolist()
    for axis, panel in zip(axes, plot.panels, strict=True):
        _panel(axis, panel, plot.marks)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    figure.subplots_adjust(left=0.16, right=0.98, top=1.0 - 0.65 / high, bottom=0.55 / high, hspace=0.18)
    _legend(figure, plot)
    return figure


def _panel(axis: Axes, panel: Panel, marks: list[Mark]) -> None:
    for line in panel.lines:
        colour = COLOURS[line.part]
        axis.plot(line.steps, line.values, color=colour, linewidth=1.3, marker=".", markersize=3.5)
        for step in line.lost[:50]:
            axis.axvline(step, ymax=0.06, color=colour, linewidth=2.0)
    for mark in marks:
        axis.axvline(mark.step, color=MARKS[mark.what], linestyle=STYLES[mark.what], linewidth=1.2)
    if panel.logarithmic:
        axis.set_yscale("log")
    unit = f"\n[{panel.unit}]" if panel.unit else ""
    axis.set_ylabel(f"{panel.signal}{unit}", rotation=0, ha="right", va="center", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(True, color="#e5e8ea", linewidth=0.7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if not any(math.isfinite(value) for line in panel.lines for value in line.values):
        axis.text(0.5, 0.5, "not a single value is a finite number", transform=axis.transAxes, ha="center", fontsize=9)


def _legend(figure: Figure, plot: Plot) -> None:
    lines = [line for panel in plot.panels for line in panel.lines]
    handles = []
    for part in dict.fromkeys(line.part for line in lines):
        attempts = sorted({line.attempt for line in lines if line.part == part})
        label = f"{NAMES[part]} ({', '.join(map(str, attempts))})"
        handles.append(Line2D([], [], color=COLOURS[part], linewidth=2.0, label=label))
    for mark in plot.marks:
        label = f"{NAMES[mark.what]}, step {mark.step}"
        handles.append(Line2D([], [], color=MARKS[mark.what], linestyle=STYLES[mark.what], label=label))
    if any(line.lost for line in lines):
        handles.append(Line2D([], [], color="#555555", marker="|", linestyle="", label="NaN or infinite"))
    figure.legend(handles=handles, loc="upper center", ncol=4, fontsize=8, frameon=False)
