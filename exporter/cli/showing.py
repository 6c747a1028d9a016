"""How answers are shown in a terminal or a pipe: tables, times, and names that came from outside. By all commands."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import typer

WIDE = 100_000
"""Columns of what is not a terminal: a line for each row."""
LEAST_PROSE = 30
"""Columns for sentences, also where a narrow terminal then folds the lines by itself."""


def clean(text: str) -> str:
    r"""Text from outside with every character that a terminal would obey, or could not show, as its code.

    >>> clean("a\x1b[31m b\nc\u202e")
    'a\\x1b[31m b\\nc\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def show_json(answer: Any) -> None:
    typer.echo(json.dumps(answer, indent=2))


def show_rows(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, none: str = "None.") -> None:
    """A table. The last column is prose and gives way; the others hold what is to be copied: they are never cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, whole = Table(box=None, pad_edge=False), 0
    for index, column in enumerate(columns[:-1]):
        width = max([len(column), *(Text(clean(row[index])).cell_len for row in rows)])
        table.add_column(column, no_wrap=True, min_width=width)
        whole += width + 2
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))  # as text: what senders named is no markup
    console = Console()
    to_a_program = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = WIDE if to_a_program else max(console.width, whole + LEAST_PROSE)
    console.print(table if rows else none)


def ago(at: float) -> str:
    return f"{lasting(time.time() - at)} ago"


def lasting(seconds: float) -> str:
    """A duration in its largest fitting unit.

    >>> lasting(7300.0), lasting(90.4), lasting(-1.0)
    ('2 h', '90 s', '0 s')
    """
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def moment(at: float) -> str:
    """A time of day, by this machine's clock and zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
