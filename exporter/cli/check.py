"""``verl-sentinel check``. Mounted by :mod:`exporter.cli.program`; the work is :mod:`exporter.bundle.check`'s."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exporter.cli.telling import stop, tell

if TYPE_CHECKING:
    from exporter.bundle.findings import Report


def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="An export, or a folder with rules/ and grafana/.", show_default=".")
    ] = Path(),
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="PROGRAM", help="promtool or amtool: is not called. May be given twice."),
    ] = None,
    allow_metric: Annotated[
        list[str] | None,
        typer.Option("--allow-metric", metavar="REGEX", help="Metrics that others export. May be repeated."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Addresses that are still the defaults are findings too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings and counts as one JSON object.")] = False,
) -> None:
    """Check rules, their tests, runbooks, routes and dashboards before they are loaded.

    Runs promtool and amtool, and looks at what they cannot know.
    Is each metric and label one that the exporter exports?
    Has each alert a test, a runbook, a summary, something to do, and links that lead somewhere?
    Has each panel a title, a description and a unit?

    Exit code: 0 nothing found; 1 findings; 2 called wrongly, or a program is not installed.
    """
    from exporter.bundle.check import check as look
    from exporter.bundle.programs import PROGRAMS
    from exporter.cli.showing import show_json

    for program in without or ():
        if program not in PROGRAMS:
            stop(f"--without {program}: it is {' or '.join(PROGRAMS)} that can be left out.", 2)
    if not directory.is_dir():
        stop(f"{directory} is no directory.", 2)
    allowed: list[re.Pattern[str]] = []
    for pattern in allow_metric or []:
        try:
            allowed.append(re.compile(pattern))
        except re.error as error:
            stop(f"--allow-metric {pattern} is no regular expression: {error}.", 2)
    report = look(directory, without=without or (), allowed=allowed, strict=strict)
    if as_json:
        show_json(report.as_json())
    else:
        _show(report)
    for sentence in report.missing:
        tell(f"verl-sentinel: {sentence}")
    raise typer.Exit(2 if report.missing else 1 if report.findings else 0)


def _show(report: Report) -> None:
    from exporter.cli.showing import clean, counted

    findings = report.sorted()
    for finding in findings:
        print(clean(str(finding)))
    for note in report.notes:
        tell(note)
    seen = ", ".join(f"{count} {what}" for what, count in report.looked_at.items())
    tell(f"Looked at {seen or 'nothing'}.")
    by_check = ", ".join(f"{name} {count}" for name, count in sorted(Counter(one.check for one in findings).items()))
    tell(f"{counted(len(findings), 'finding')}{f': {by_check}' if by_check else ''}.")
