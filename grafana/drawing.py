"""Draws where the panels of each dashboard are, with titles and kinds, to be looked at. ``python -m grafana --draw``.

Not what Grafana shows: places, sizes and order only, for machines without Grafana.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any, Final

_COLOURS: Final = {
    "stat": "#dbe9f6",
    "timeseries": "#e4f1e1",
    "table": "#fdf1d6",
    "heatmap": "#f6dfd6",
    "state-timeline": "#e8e1f3",
    "bargauge": "#d9eeee",
    "text": "#eeeeee",
}
_UNIT: Final = 0.28
"""Inches that a unit of the grid is high; one is twice as wide."""


def draw(folder: Path, to: Path) -> None:
    """One picture of all dashboards in ``folder``, side by side; the ending of ``to`` says in what format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    boards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    height = max(sum(_depth(row) for row in board["panels"]) + _bottom(board["panels"]) for board in boards)
    figure, axes = pyplot.subplots(1, len(boards), figsize=(24 * _UNIT * len(boards), height * _UNIT), squeeze=False)
    for axis, board in zip(axes[0], boards, strict=True):
        axis.set_xlim(-0.3, 24.3)
        axis.set_ylim(height + 0.5, -0.5)
        axis.set_axis_off()
        axis.set_title(f"{board['title']} ({board['uid']})", fontsize=11, loc="left")
        opened = 0
        for panel in board["panels"]:
            _one(axis, panel, opened)
            for inside in panel.get("panels", []):
                _one(axis, inside, opened, faint=True)
            opened += _depth(panel)
    figure.subplots_adjust(left=0.005, right=0.995, top=0.97, bottom=0.005, wspace=0.03)
    figure.savefig(to, dpi=90)
    pyplot.close(figure)


def _depth(row: Mapping[str, Any]) -> int:
    """How far a folded row moves down what is below it when it is opened."""
    return _bottom(row["panels"]) - row["gridPos"]["y"] - 1 if row.get("panels") else 0


def _bottom(panels: Sequence[Mapping[str, Any]]) -> int:
    return max(int(panel["gridPos"]["y"]) + int(panel["gridPos"]["h"]) for panel in panels)


def _one(axis: Any, panel: Mapping[str, Any], opened: int, *, faint: bool = False) -> None:
    from matplotlib.patches import Rectangle

    place = panel["gridPos"]
    x, y, w, h = place["x"], place["y"] + opened, place["w"], place["h"]
    if panel["type"] == "row":
        mark = "▸" if panel["collapsed"] else "▾"
        axis.text(x + 0.1, y + 0.75, f"{mark} {panel['title']}", fontsize=9, weight="bold")
        return
    axis.add_patch(
        Rectangle(
            (x + 0.06, y + 0.06),
            w - 0.12,
            h - 0.12,
            facecolor=_COLOURS[panel["type"]],
            edgecolor="grey",
            linewidth=0.7,
            linestyle="--" if faint else "-",
        )
    )
    title = "\n".join(wrap(panel["title"], max(8, int(w * 2.6))))
    axis.text(x + 0.25, y + 0.95, title, fontsize=7.5, weight="bold", va="center" if "\n" not in title else "top")
    if h > 4:
        axis.text(x + 0.25, y + 2.6, panel["type"], fontsize=6.5, color="dimgrey")
        text = "\n".join(wrap(shorten(panel["description"], 160), max(10, int(w * 3.1))))
        axis.text(x + 0.25, y + 3.2, text, fontsize=6, color="dimgrey", va="top")
