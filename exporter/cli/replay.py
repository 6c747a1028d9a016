"""``verl-sentinel replay``. Mounted by :mod:`exporter.cli`; the work is :mod:`exporter.replay`'s."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from exporter.cli.asking import stop, tell

if TYPE_CHECKING:
    from exporter.incidents import Rules
    from exporter.replay.replaying import Keys, Replay, Saying

MOST_ROWS = 10_000
"""Of a table; where there is more to say, JSON has it."""
MOST_KEYS_SHOWN = 1000


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="verl's file log (JSONL) or console log, W&B's CSV, TensorBoard's event file or a folder of them, or "
            "trainer_state.json; .gz too.",
        ),
    ],
    form: Annotated[
        Literal["auto", "jsonl", "console", "csv", "tensorboard", "trainer-state"],
        typer.Option("--format", help="What the files hold; auto looks into each."),
    ] = "auto",
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", help="A table of episodes, or a JSON line for each verdict.")
    ] = "table",
    fail_on: Annotated[
        Literal["critical", "warning"] | None,
        typer.Option("--fail-on", help="End with exit code 1 where something so severe, or worse, would be said."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The exporter's configuration file: its detectors and incidents.")
    ] = None,
) -> None:
    """Say of past runs what would have been said, and when."""
    from exporter.detectors.base import Severity
    from exporter.replay.recognised import format_of
    from exporter.replay.replaying import Keys, Replay
    from exporter.replay.rows import FileUnusable

    options, rules = _settings(config)
    keys = Keys()
    try:
        replays = [
            Replay(path, form if form != "auto" else format_of(path), options, rules, keys, tell) for path in files
        ]
        worst = _as_json(replays) if output == "json" else _as_table(replays)
    except FileUnusable as error:
        stop(str(error), 2)
    _tell_of_keys(keys)
    for one in replays:
        tell(one.sentence())
        for run in one.runs.values():
            for name, count in run.faults.items():
                tell(f"Detector {name} failed on {count} steps of {one.path}, and said nothing of them.")
    if fail_on is not None and worst >= Severity[fail_on.upper()]:
        raise typer.Exit(1)


def _settings(config: Path | None) -> tuple[Mapping[str, Mapping[str, Any]], Rules]:
    """What the configuration says of detectors and incidents. What else it names (tokens, certificates) need not be
    there where a run is replayed."""
    from exporter.incidents import Rules

    if config is None:
        return {}, Rules()
    from exporter.config import ConfigError, parse

    try:
        settings = parse(config.read_text(encoding="utf-8"), str(config))
    except (OSError, UnicodeDecodeError) as error:
        stop(f"The configuration file {config} cannot be read: {error}.", 2)
    except ConfigError as error:
        stop(str(error), 2)
    return settings.detectors, settings.incidents


def _as_json(replays: list[Replay]) -> int:
    """Write every verdict as it comes; the worst severity, 0 where nothing was said."""
    from exporter.replay.answers import json_line

    worst = 0
    for one in replays:
        for saying in one.sayings():
            worst = max(worst, saying.verdict.severity)
            sys.stdout.write(json_line(saying.verdict, saying.attempt, str(one.path), saying.run) + "\n")
    return worst


def _as_table(replays: list[Replay]) -> int:
    """Show the episodes of all files; the worst severity, 0 where nothing was said."""
    from exporter.cli.showing import show_rows
    from exporter.replay.answers import COLUMNS, table_row

    worst = beyond = 0
    told: list[tuple[str, Saying]] = []
    for one in replays:
        for saying in one.sayings():
            worst = max(worst, saying.verdict.severity)
            if saying.news and len(told) < MOST_ROWS:
                told.append((str(one.path), saying))
            else:
                beyond += saying.news
    lead: dict[str, list[str]] = {}
    if len(replays) > 1:
        lead["FILE"] = [path for path, _ in told]
    if any(len(one.runs) > 1 for one in replays):
        lead["RUN"] = [saying.run for _, saying in told]
    if any(run.attempts > 1 for one in replays for run in one.runs.values()):
        lead["START"] = [str(saying.attempt) for _, saying in told]
    rows = [
        (*(column[index] for column in lead.values()), *table_row(saying.verdict))
        for index, (_, saying) in enumerate(told)
    ]
    show_rows((*lead, *COLUMNS), rows, none="Nothing would have been said.")
    if beyond:
        tell(f"{beyond} more are not shown: --output json has all.")
    return worst


def _tell_of_keys(keys: Keys) -> None:
    from exporter.replay.rows import listed

    if keys.unknown:
        count = len(keys.unknown)
        tell(
            f"{count} key{' is' if count == 1 else 's are'} not known here and "
            f"{'is' if count == 1 else 'are'} not judged: {listed(keys.unknown, MOST_KEYS_SHOWN)}."
        )
