"""``verl-sentinel detectors``: what is in effect, and where it comes from. Mounted by :mod:`exporter.cli.program`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from exporter.cli.telling import stop, tell

if TYPE_CHECKING:
    from exporter.detectors.described import Described

COLUMNS = ("DETECTOR", "OPTION", "VALUE", "FROM", "DEFAULT", "UNIT", "MEANING")


def detectors(
    preset: Annotated[
        str | None, typer.Option("--preset", help="grpo, ppo, dapo, sft or manual; goes before the file's.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="The exporter's configuration file (YAML).")] = None,
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", help="A table, or one JSON object.")
    ] = "table",
) -> None:
    """Show every detector with its options, and where each value comes from."""
    from exporter.detectors.calibration import Budget
    from exporter.detectors.described import described
    from exporter.detectors.presets import DEFAULT_PRESET

    options: dict[str, dict[str, Any]] = {}
    pages, named = Budget().pages_per_week, DEFAULT_PRESET
    if config is not None:
        from exporter.config import ConfigError, parse
        from exporter.policy_file import read_bounded

        try:
            settings = parse(read_bounded(config, f"The configuration file {config}"), str(config))
        except ConfigError as error:
            stop(str(error), 2)
        options, named, pages = settings.detectors, settings.detection.preset, settings.detection.pages_per_week
    named = preset if preset is not None else named
    try:
        found = described(named, options)
    except ValueError as error:
        stop(f"--{error}." if str(error).startswith("preset ") else f"{error}.", 2)
    if output == "json":
        _as_json(named, pages, found)
    else:
        _as_table(found)
        tell(f"Preset: {named}. Pages that a week of a healthy run may cost: {pages:g}.")


def _as_json(preset: str, pages: float, found: tuple[Described, ...]) -> None:
    answer = {"preset": preset, "pages_per_week": pages, "detectors": [asdict(one) for one in found]}
    typer.echo(json.dumps(answer, indent=2))


def _as_table(found: tuple[Described, ...]) -> None:
    from exporter.cli.showing import show_rows
    from exporter.detectors.described import shown

    rows: list[tuple[str, ...]] = []
    for one in found:
        meaning = one.meaning.replace("``", "") + (" Nothing is set, so it does not run." if one.idle else "")
        rows.append((one.name, "enabled", shown(one.enabled), one.origin, "true", "", meaning))
        rows += [
            (
                one.name,
                option.name,
                shown(option.value),
                option.origin,
                shown(option.default),
                option.unit,
                option.meaning.replace("``", ""),
            )
            for option in one.options
        ]
    show_rows(COLUMNS, rows)
