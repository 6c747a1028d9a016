"""How answers are shown in a terminal or a pipe: tables, times, and names that came from outside. By all commands."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

WIDE = 100_000
"""Columns of what is not a terminal: a line for each row."""
LEAST_PROSE = 30
"""Columns for sentences, also where a narrow terminal then folds the lines by itself."""
LONG = 60
"""Characters of an id that is never folded; a longer one is, where there is no room for it."""
LEAST_ID = 20
"""Columns for an id that is folded."""


def clean(text: str) -> str:
    r"""Text from outside with every character that a terminal would obey, or could not show, as its code.

    >>> clean("a\x1b[31m b\nc\u202e")
    'a\\x1b[31m b\\nc\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def show_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2))


def show_rows(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, none: str = "None.") -> None:
    """A table. The last column is prose and gives way; the others hold what is to be copied: they are never cut off.

    On a terminal an id that is longer than any should be is folded over several lines, so that it does not push what
    is beside it, and the rows of others, out of sight. In a pipe each row is one line.
    """
    if not rows:
        print(none)
        return
    from rich.cells import cell_len, chop_cells
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = [[clean(cell) for cell in row] for row in rows]
    lengths = [[cell_len(row[index]) for row in shown] for index in range(len(columns))]
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    gaps, prose = 2 * (len(columns) - 1), max(lengths[-1])
    widths = _widths(columns[:-1], lengths[:-1], console.width - gaps - min(max(prose, len(columns[-1])), LEAST_PROSE))
    prose = max(prose, *map(len, columns[-1].split()))  # a heading of two words may have two lines
    console.width = max(console.width, sum(widths) + gaps + min(prose, LEAST_PROSE))
    table = Table(box=None, pad_edge=False)
    for column, width in zip(columns, widths, strict=False):
        table.add_column(column, no_wrap=True, min_width=width)
    table.add_column(columns[-1], overflow="fold")
    for row in shown:
        ids = ["\n".join(chop_cells(cell, width)) for cell, width in zip(row, widths, strict=False)]
        table.add_row(*map(Text, (*ids, row[-1])))  # as text: what senders named is no markup
    console.print(table)


def _widths(columns: Sequence[str], lengths: Sequence[Sequence[int]], room: int) -> list[int]:
    """Columns of a terminal for each column of a table: as many as its cells have, where there is room for all. Where
    there is not, cells beyond :data:`LONG` have what is left."""
    whole = [max(len(column), *cells) for column, cells in zip(columns, lengths, strict=True)]
    widths = [
        max(len(column), min(most, LEAST_ID), *(length for length in cells if length <= LONG), 1)
        for column, cells, most in zip(columns, lengths, whole, strict=True)
    ]
    for index, most in enumerate(whole):
        widths[index] += min(most - widths[index], max(0, room - sum(widths)))
    return widths


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


def counted(count: int, one: str, more: str = "") -> str:
    """A number with what it counts.

    >>> counted(1, "run"), counted(0, "run"), counted(2, "entry", "entries")
    ('1 run', '0 runs', '2 entries')
    """
    return f"{count} {one if count == 1 else more or f'{one}s'}"
