"""Reads CSV as W&B exports it, and as an exporter of ours does. Called by the replay.

A chart's export has a column ``Step`` and for each run and metric three, ``<run> - <metric>`` and the same with
``__MIN`` and ``__MAX``; a table of a run's history has ``_step`` and the metrics by their names. An empty cell is a
metric that the step does not have.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.follow.parsing import Garbage
from exporter.replay.opened import CUT_OFF, DAMAGED, lines, opened
from exporter.replay.rows import MOST_METRICS, FileUnusable, Found, Row, verl_key, whole_step

STEP_COLUMNS: Final = (
    "Step",
    "_step",
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
)
"""Of several that are there the first counts."""
MOST_RUNS: Final = 200
_BETWEEN = " - "
_EXTREMES = ("__MIN", "__MAX")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where things stand in a row."""

    step: int
    attempt: int | None
    time: dict[str, int]
    """By run."""
    metrics: dict[str, list[tuple[int, str]]]
    """Place and key, by run."""


def columns_of(header: Sequence[str]) -> Columns | None:
    """How to read the rows under a header; None where it has no column of steps.

    >>> columns_of(["Step", "a - b - train/learning_rate", "a - b - train/learning_rate__MIN"]).metrics
    {'a - b': [(1, 'train/lr')]}
    """
    step = next((header.index(name) for name in STEP_COLUMNS if name in header), None)
    if step is None or len(header) < 2:
        return None
    attempt = header.index("attempt") if "attempt" in header else None
    times: dict[str, int] = {}
    metrics: dict[str, list[tuple[int, str]]] = {}
    for place, title in enumerate(header):
        run, _, name = title.rpartition(_BETWEEN)
        if place in (step, attempt) or not name or name.endswith(_EXTREMES):
            continue
        if name == "_timestamp":
            times[run] = place
        elif not name.startswith("_"):  # W&B's own: _runtime, _step
            metrics.setdefault(run, []).append((place, verl_key(name)))
    return Columns(step, attempt, times, metrics)


def header_of(line: bytes) -> list[str]:
    """The cells of a first line; none where it is not CSV."""
    try:
        return next(csv.reader([line.decode("utf-8-sig", "replace")]), [])
    except csv.Error:
        return []


def read_sheet(path: Path) -> Iterator[Found]:
    """Rows of a CSV file, in its order."""
    with opened(path) as file:
        try:
            yield from _rows(path, csv.reader(_text(lines(file))))
        except DAMAGED:
            yield CUT_OFF


def _text(raw: Iterator[bytes | None]) -> Iterator[str]:
    for index, line in enumerate(raw):
        # A row that is too long becomes one without a step, and is counted as such.
        yield "too long" if line is None else line.decode("utf-8" if index else "utf-8-sig", "replace")


def _rows(path: Path, cells: Iterator[list[str]]) -> Iterator[Found]:
    columns: Columns | None = None
    while True:
        try:
            row = next(cells, None)
        except csv.Error as error:
            yield Garbage(f"a row is no CSV: {error}")
            continue
        if row is None:
            return
        if not row:
            continue
        if columns is None:
            columns = columns_of(row)
            if columns is None:
                raise FileUnusable(f"{path} has no column of steps; one is called {', '.join(STEP_COLUMNS[:4])}.")
            if len(row) > MOST_METRICS or len(columns.metrics) > MOST_RUNS:
                raise FileUnusable(
                    f"{path} has {len(row)} columns of {len(columns.metrics)} runs: "
                    f"at most {MOST_METRICS} columns of {MOST_RUNS} runs are read. Export fewer at a time."
                )
            continue
        yield from _row(row, columns)


def _row(row: list[str], columns: Columns) -> Iterator[Found]:
    step_number = _number(row[columns.step]) if columns.step < len(row) else None
    step = None if step_number is None else whole_step(step_number)
    if step is None:
        yield Garbage("a row has no step that is a whole number")
        return
    width = len(row)
    attempt = columns.attempt
    writer = f"attempt {row[attempt]}" if attempt is not None and attempt < width and row[attempt] else ""
    for run, places in columns.metrics.items():
        metrics: dict[str, float] = {}
        left_out = 0
        for place, key in places:
            text = row[place] if place < width else ""
            if not text:
                continue
            value = _number(text)
            if value is None:
                left_out += 1
            else:
                metrics[key] = value
        if metrics or left_out:
            place = columns.time.get(run, width)
            time = _number(row[place]) if place < width else None
            yield Row(step, metrics, writer, run, time or 0.0, left_out)


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # takes NaN, Infinity and -inf, with spaces around
    except ValueError:
        return None
