"""Markdown of text that came from outside: run ids, paths, a trainer's last words. Nothing in it is markup, or HTML, or
a link, and none of it leaves its line or its cell.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

MOST_CHARACTERS = 1000


def _quoted(found: re.Match[str]) -> str:
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "$": "&#36;"}
    return entities.get(found[0], f"\\{found[0]}")


def sentence(text: object, most: int = MOST_CHARACTERS) -> str:
    r"""A sentence of ours that may hold a name from outside: readable, and still no markup.

    >>> print(sentence("actor/grad_norm is 5.2 (limit 1.0) <b>"))
    actor/grad\_norm is 5.2 (limit 1.0) &lt;b&gt;
    """
    line = _line(text, most)
    found = re.sub(r"[\\`*_\[\]<>|~&$]", _quoted, line)
    # What makes a list or a heading does so at the beginning of a line only; "://" and "@" make links by themselves.
    found = re.sub(r"^(\s*)([#+\-=]|\d+[.)])", r"\1\\\2", found)
    return found.replace("://", "&#58;//").replace("@", "&#64;").replace("www.", "www&#46;")


def code(text: object, most: int = MOST_CHARACTERS) -> str:
    """A name to be copied, as inline code.

    >>> code("a`b"), code("")
    ('``a`b``', '–')
    """
    line = _line(text, most).strip()
    if not line:
        return "–"
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def cell(text: str) -> str:
    """What is Markdown already, in a table: a bar would end the cell, in code as well."""
    return re.sub(r"(?<!\\)\|", r"\\|", text) or " "


def block(lines: Sequence[str], most: int = 200) -> str:
    """Output of a program, as it came; no line of it ends the block."""
    shown = [_line(line, 500) for line in lines[-most:]]
    longest = max((len(run) for line in shown for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}text", *shown, fence))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are Markdown."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(one) for one in row)} |" for row in rows]
    return "\n".join(lines)


def number(value: object) -> str:
    """
    >>> number(1234.5678), number("NaN"), number(None)
    ('1235', 'NaN', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return sentence(value, 60)
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def value(of: object) -> str:
    """A value of a configuration, as a configuration file has it."""
    if of is None:
        return code("null")
    return code(str(of).lower() if isinstance(of, bool) else of, 300)


def seconds(duration: float) -> str:
    """
    >>> seconds(0.26), seconds(75.0), seconds(7322.0)
    ('0.3 s', '1 min 15 s', '2 h 2 min')
    """
    if duration < 60.0:
        return f"{duration:.1f} s"
    whole = round(duration)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(at: float) -> str:
    """UTC: a post-mortem is read by people in several places."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + " UTC"


def _line(text: object, most: int) -> str:
    plain = " ".join(str(text).split())
    plain = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in plain)
    return plain if len(plain) <= most else plain[:most] + "…"
