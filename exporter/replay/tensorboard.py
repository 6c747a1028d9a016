"""Reads TensorBoard's event files: one, or all of a folder, as a run has it that was started several times.

Called by the replay. A logger writes each metric of a step as an event of its own; those that follow each other with
one step are put together again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from exporter.follow.parsing import MAX_STEP, Garbage
from exporter.replay.event_records import Malformed, records, scalars
from exporter.replay.opened import CUT_OFF, DAMAGED, opened
from exporter.replay.rows import MOST_METRICS, FileUnusable, Found, Row, verl_key

EVENT_FILES: Final = "*tfevents*"
TOO_LARGE = Garbage("a record is larger than 16 MiB")


def read_events(path: Path) -> Iterator[Found]:
    """Steps of an event file; of a folder's files, each of which is another start of the trainer, by their names,
    which begin with the time of the start."""
    if not path.is_dir():
        yield from _read(path, "")
        return
    files = sorted(file for file in path.glob(EVENT_FILES) if file.is_file())
    if not files:
        raise FileUnusable(f"The folder {path} has no event file of TensorBoard ({EVENT_FILES}).")
    for file in files:
        yield from _read(file, file.name)


def _read(path: Path, writer: str) -> Iterator[Found]:
    step = -1
    metrics: dict[str, float] = {}
    time = 0.0
    keys: dict[str, str] = {}
    with opened(path) as file:
        try:
            for record in records(file):
                if record is None:
                    yield TOO_LARGE
                    continue
                try:
                    event = scalars(record)
                except Malformed as error:
                    yield Garbage(str(error))
                    continue
                if not event.values:
                    continue
                if event.step != step or len(metrics) >= MOST_METRICS:
                    if metrics:
                        yield Row(step, metrics, writer, time=time)
                    step, metrics = event.step, {}
                    time = event.time if math.isfinite(event.time) else 0.0
                if step >= MAX_STEP:
                    yield Garbage(f"step {step} is out of range")
                    continue
                for tag, value in event.values:
                    key = keys.get(tag)
                    if key is None:
                        key = verl_key(tag)
                        if len(keys) < MOST_METRICS:
                            keys[tag] = key
                    metrics[key] = value
        except Malformed as error:
            yield Garbage(str(error))
        except DAMAGED:
            yield CUT_OFF
    if metrics:
        yield Row(step, metrics, writer, time=time)
