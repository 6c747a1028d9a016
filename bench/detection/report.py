"""The result as tables that people like to read. Called by the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.detection.faults import SEVERITIES

SPLITS: Final = {
    "tuned": "real runs that thresholds were chosen on",
    "held_out": "real runs that no threshold was chosen on",
    "generated": "generated runs",
}


def show(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print all tables."""
    to = console or Console(highlight=False)
    asked = {name: one for name, one in result["contenders"].items() if one["installed"]}
    if not result["real_runs"]:
        to.print("The real runs are not here (VERL_SENTINEL_DATA names their folder): generated ones stand in.")
    for split, title in SPLITS.items():
        if any(split in one["healthy"] for one in asked.values()):
            to.print(_overview(asked, split, title))
    if len(asked) > 1:
        for split, title in SPLITS.items():
            if split != "tuned" and any(split in one["healthy"] for one in asked.values()):
                to.print(_side_by_side(asked, split, title))
    ours = asked.get("ours")
    if ours is not None:
        for split, title in SPLITS.items():
            if split in ours["recall"]:
                to.print(_by_severity(ours["recall"][split], title))
    if any(one["controls"] for one in asked.values()):
        to.print(_controls(asked))
    if ours is not None:
        to.print(_forecasts(ours["forecasts"]))
    for one in result["contenders"].values():
        if not one["installed"]:
            to.print(f"{one['name']}: not installed (the extra 'peers' installs it)")
        for fault, count in one.get("faults", {}).items():
            to.print(f"{one['name']} failed {count} times: {fault}")
    for row in result["bars"]:
        to.print(f"{'met   ' if row['met'] else 'MISSED'}  {row['bar']}: {row['value']} (bound {row['bound']})")
    to.print(f"{result['seconds']:.0f} s")


def _overview(asked: Mapping[str, Any], split: str, title: str) -> Table:
    table = Table(title=f"On {title}")
    for column in (
        "",
        "pages per\n1,000 healthy steps",
        "warnings per\n1,000",
        "steps that\npage, %",
        "moderate and severe\npaged in time, %",
        "mild warned\nof, %",
        "said, fault\nor not, %",
        "median delay,\nsteps",
        "µs a step",
        "times\nours",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for one in asked.values():
        if split not in one["healthy"]:
            continue
        calm, found = one["healthy"][split], one["recall"][split]
        grave = found["moderate_and_severe"]
        table.add_row(
            one["name"],
            f"{calm['pages_per_1000']:.2f}",
            f"{calm['warnings_per_1000']:.2f}",
            f"{100 * calm['steps_that_page'] / max(1, calm['steps']):.1f}",
            _percent(grave),
            _percent(found["mild"]),
            "" if (said := found["said_also_without_fault"]) is None else f"{100 * said:.1f}",
            "" if grave["median_delay"] is None else f"{grave['median_delay']:.0f}",
            f"{one['microseconds_per_step']:.0f}",
            f"{one['times_ours']:.1f}" if "times_ours" in one else "",
        )
    return table


def _side_by_side(asked: Mapping[str, Any], split: str, title: str) -> Table:
    table = Table(title=f"Caught in time in all severities, % (median delay, steps), on {title}")
    table.add_column("fault")
    names = [name for name in asked if split in asked[name]["recall"]]
    for name in names:
        table.add_column(asked[name]["name"], justify="right")
    kinds = dict.fromkeys(kind for name in names for kind in asked[name]["recall"][split]["by_kind"])
    for kind in kinds:
        rows = [asked[name]["recall"][split]["by_kind"].get(kind) for name in names]
        table.add_row(kind, *("" if row is None else _percent(row["all"], delay=True) for row in rows))
    return table


def _by_severity(recall: Mapping[str, Any], title: str) -> Table:
    table = Table(title=f"verl-sentinel by severity: caught of tries (median delay, steps), on {title}")
    table.add_column("fault")
    for label in SEVERITIES:
        table.add_column(label, justify="right")
    for name, row in recall["by_kind"].items():
        table.add_row(name, *(_count(row.get(label)) for label in SEVERITIES))
    return table


def _controls(asked: Mapping[str, Any]) -> Table:
    table = Table(title="Negative controls: tries that paged, of all")
    table.add_column("control")
    for one in asked.values():
        table.add_column(one["name"], justify="right")
    for name in dict.fromkeys(name for one in asked.values() for name in one["controls"]):
        rows = [one["controls"].get(name) for one in asked.values()]
        table.add_row(name, *("" if row is None else f"{row['pages']}/{row['tries']}" for row in rows))
    return table


def _forecasts(forecasts: Mapping[str, Any]) -> Table:
    table = Table(title="Forecasts of full memory, at half way: error in parts of the time that is left")
    table.add_column("leak")
    table.add_column("runs")
    for column in ("tries", "without forecast", "median", "95 %", "within 15 %"):
        table.add_column(column, justify="right")
    for split, rows in forecasts.items():
        for name, row in rows.items():
            numbers = (row["median_error"], row["p95_error"], row["within_15_percent"])
            shown = ("" if number is None else f"{100 * number:.1f} %" for number in numbers)
            table.add_row(name, split.replace("_", " "), str(row["tries"]), str(row["missing"]), *shown)
    return table


def _percent(share: Mapping[str, Any], *, delay: bool = False) -> str:
    if not share["tries"]:
        return ""
    after = f" ({share['median_delay']:.0f})" if delay and share["median_delay"] is not None else ""
    return f"{100 * share['caught'] / share['tries']:.1f}{after}"


def _count(share: Mapping[str, Any] | None) -> str:
    if share is None:
        return ""
    delay = "" if share["median_delay"] is None else f" ({share['median_delay']:.0f})"
    return f"{share['caught']}/{share['tries']}{delay}"
