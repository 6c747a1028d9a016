"""Reads what verl itself writes: its ``file`` log (JSONL) and its console log. Called by the replay.

The lines are parsed by what ``follow`` parses them with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from exporter.follow.parsing import Garbage, Logged, Parser, parse_console, parse_jsonl
from exporter.replay.opened import CUT_OFF, DAMAGED, lines, opened
from exporter.replay.rows import Found, Row

TOO_LONG = Garbage("a line is longer than 4 MiB")

_ATTEMPT = re.compile(rb'\s*\{"step":\s*\d+,\s*"attempt":\s*(\d{1,9}),')
"""Begins a line of an exporter's own export of all attempts."""


def read_jsonl(path: Path) -> Iterator[Found]:
    """Steps of verl's ``file`` log; ``null`` is NaN."""
    return _read(path, parse_jsonl)


def read_console(path: Path) -> Iterator[Found]:
    """Steps of verl's console log."""
    return _read(path, parse_console)


def _read(path: Path, parse: Parser) -> Iterator[Found]:
    with opened(path) as file:
        try:
            for line in lines(file):
                if line is None:
                    yield TOO_LONG
                    continue
                for found in parse(line):
                    if isinstance(found, Logged):
                        attempt = _ATTEMPT.match(line) if parse is parse_jsonl else None
                        writer = f"attempt {int(attempt[1])}" if attempt else found.writer
                        yield Row(found.step, found.metrics, writer, left_out=found.left_out)
                    else:
                        yield found
        except DAMAGED:
            yield CUT_OFF
