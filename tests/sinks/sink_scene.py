"""A journal in a folder, pushes into it, and a sink that reads it; with a source that can be told what has moved."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from victoria import Labels

from exporter.protocol import PROTOCOL_VERSION, Batch, Run, Sender, Step
from exporter.service.entries import batch_entry
from exporter.service.history import Archive
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.sinks.influx import CURSOR_FILE_NAME, InfluxSink, Pace
from exporter.service.sinks.settings import InfluxSettings
from exporter.service.stored import Entry

FAST = Pace(poll=0.02, first_retry=0.02, longest_retry=0.1, save=0.0, rest=0.0)


class Source:
    """The archive, with a mark that a test sets."""

    def __init__(self, folder: Path) -> None:
        self._archive = Archive(folder)
        self.moved = 0

    def entries(self, after: int, limit: int) -> Sequence[Entry]:
        return self._archive.entries(after, limit)

    def last_position(self) -> int:
        return self._archive.last_position()

    def moved_upto(self) -> int:
        return self.moved


class Scene:
    """What an exporter leaves in its data folder, without the exporter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / FILE_NAME)
        self.source = Source(folder)
        self._seq = itertools.count(1)

    def close(self) -> None:
        self.journal.close()

    def push(self, *, at: float | None = None, **fields: Any) -> Entry:
        """One push that is in the journal; the entry as it is there. Times are by the real clock unless given."""
        entry = batch_entry(batch(seq=next(self._seq), **fields), time.time() if at is None else at)
        return replace(entry, position=self.journal.append([entry])[0])

    def step(self, number: int, run: str = "r", at: float | None = None, **metrics: float) -> Entry:
        values = {f"actor/{name}": value for name, value in (metrics or {"loss": number / 8}).items()}
        return self.push(run=run, at=at, steps=[Step(step=number, metrics=values)])

    def sink(
        self, url: str, *, pace: Pace = FAST, environment: dict[str, str] | None = None, **more: Any
    ) -> InfluxSink:
        """A sink that is not started; ``more`` are settings, and ``clock``."""
        clock = more.pop("clock", time.time)
        settings = msgspec.convert({"url": url, "org": "org", "bucket": "bucket", **more}, InfluxSettings)
        path = self.folder / CURSOR_FILE_NAME
        return InfluxSink(settings, self.source, path, environment or {}, clock=clock, pace=pace, jitter=lambda: 0.0)


def batch(run: str = "r", seq: int = 1, attempt: int = 1, sender: str = "trainer-1", **fields: Any) -> Batch:
    """A push of a PPO trainer."""
    return Batch(
        protocol=PROTOCOL_VERSION,
        run=Run(run_id=run, attempt=attempt, project="p", experiment="e", cohort="c", trainer="ppo_v1"),
        sender=Sender(id=sender),
        seq=seq,
        **fields,
    )


def series(name: str, run: str = "r", attempt: int = 1, **more: str) -> Labels:
    """Labels of a series of that run, as a receiver of InfluxDB's lines names it."""
    tags = {
        "__name__": name,
        "run": run,
        "attempt": str(attempt),
        "project": "p",
        "experiment": "e",
        "cohort": "c",
        **more,
    }
    return frozenset(tags.items())


def milliseconds(entry: Entry) -> int:
    """When the entry arrived, as it stands in a point."""
    return int(entry.at * 1000.0)
