"""The result as tables that people like to read. Called by the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.detection.faults import SEVERITIES

SPLIT_NAMES = {"tuned": "tuned on", "held_out": "held out", "generated": "generated"}


def show(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print all tables."""
    to = console or Console(highlight=False)
    for one in result["contenders"].values():
        for split, calm in one["healthy"].items():
            to.print(
                f"{one['name']}, {SPLIT_NAMES[split]}: {calm['pages']} pages and {calm['warnings']} warnings "
                f"in {calm['steps']} steps"
            )
            to.print(_recall(one["recall"][split], f"{one['name']}, {SPLIT_NAMES[split]}"))
        if one["controls"]:
            to.print(_controls(one["controls"]))
        to.print(f"{one['microseconds_per_step']} µs a step")
    for row in result["bars"]:
        to.print(f"{'met   ' if row['met'] else 'MISSED'} {row['bar']}: {row['value']} (bound {row['bound']})")


def _recall(recall: Mapping[str, Any], title: str) -> Table:
    table = Table("fault", *(f"{label} caught (delay)" for label in SEVERITIES), title=title)
    for name, row in recall["by_kind"].items():
        table.add_row(name, *(_cell(row.get(label)) for label in SEVERITIES))
    return table


def _cell(share: Mapping[str, Any] | None) -> str:
    if share is None:
        return ""
    delay = "" if share["median_delay"] is None else f" ({share['median_delay']:.0f})"
    return f"{share['caught']}/{share['tries']}{delay}"


def _controls(controls: Mapping[str, Any]) -> Table:
    table = Table("control", "tries", "pages", "warnings", "who paged")
    for name, row in controls.items():
        table.add_row(name, str(row["tries"]), str(row["pages"]), str(row["warnings"]), ", ".join(row["by_source"]))
    return table
