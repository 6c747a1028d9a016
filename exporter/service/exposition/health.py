"""The exporter's own metrics: what comes in, the journal, the detectors, the sinks, the scrapes, the process.

Put on the page by the exposition at every scrape; there are few of them, so nothing is kept in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import ProcessCollector

from exporter.service.archivist import ArchivistHealth
from exporter.service.core import Core
from exporter.service.exposition import families as f
from exporter.service.exposition.ingest import Ingest
from exporter.service.exposition.text import Page
from exporter.service.recorder import COMMIT_BUCKETS, RecorderHealth
from exporter.service.sinks.contract import SinkHealth


class Health:
    """Where the figures come from; the parameters are those of the exposition."""

    def __init__(
        self,
        core: Core,
        ingest: Ingest,
        version: str,
        sinks: Callable[[], Sequence[SinkHealth]],
        archive: Callable[[], ArchivistHealth | None],
    ) -> None:
        self.core = core
        self.ingest = ingest
        self.version = version
        self.sinks = sinks
        self.archive = archive
        self.scrapes: dict[str, tuple[int, float]] = {"render": (0, 0.0), "compress": (0, 0.0)}
        """Number and seconds of the scrapes so far, by stage."""
        self.scrape_faults = 0
        self.process = ProcessCollector(registry=None)

    def spent(self, stage: str, seconds: float) -> None:
        """A stage of a scrape took so long."""
        count, total = self.scrapes[stage]
        self.scrapes[stage] = (count + 1, total + seconds)


def put_health(page: Page, health: Health, audit: Mapping[str, int], *, runs: int, ready: bool) -> None:
    """Add every metric of the exporter itself; ``audit`` has the lines of the audit log by kind, ``runs`` is how many
    are shown."""
    core, ingest = health.core, health.ingest
    page.put(f.BUILD, 1, health.version)
    page.put(f.READY, int(ready and not core.reasons_not_ready()))
    page.put(f.RUNS, runs)
    page.put(f.RUNS_LIMIT, core.limits.runs)
    page.put(f.BATCHES, core.intake.accepted, "accepted")
    page.put(f.BATCHES, core.intake.duplicates, "duplicate")
    page.put(f.INGESTED_STEPS, core.intake.steps)
    page.put(f.INGESTED_SAMPLES, core.intake.samples)
    for reason, count in sorted(ingest.rejected.items()):
        page.put(f.REJECTED, count, reason)
    for what, count in ingest.reload_failures.items():
        page.put(f.RELOAD_FAILURES, count, what)
    for (target, outcome), count in ingest.notifications.items():
        page.put(f.NOTIFICATIONS, count, target, outcome)
    page.summary(f.PUSH_DURATION, ingest.answered, ingest.seconds)
    page.put(f.JOURNAL_ERROR, int(bool(core.journal_error or core.mending)))
    page.put(f.JOURNAL_UNREADABLE, core.unreadable_entries)
    page.put(f.FAULTS, core.faults + core.recorder.health.faults)
    for name, timed in core.detector_times.by_name.items():
        page.summary(f.DETECTOR_DURATION, timed.count, timed.seconds, name)
    _journal(page, core.recorder.health)
    _archive(page, health.archive())
    for sink in health.sinks():
        _sink(page, sink)
    for kind, count in audit.items():
        page.put(f.AUDIT_ENTRIES, count, kind)
    page.put(f.SCRAPE_FAULTS, health.scrape_faults)
    for stage, (count, seconds) in health.scrapes.items():
        page.summary(f.SCRAPE_DURATION, count, seconds, stage)
    _process(page, health.process)


def _journal(page: Page, journal: RecorderHealth) -> None:
    page.put(f.JOURNAL_QUEUE, journal.queued)
    page.put(f.JOURNAL_ENTRIES, journal.entries)
    page.put(f.JOURNAL_FAILURES, journal.failures)
    page.put(f.JOURNAL_MENDED, journal.mended)
    page.put(f.JOURNAL_LOST, journal.lost_entries)
    page.put(f.JOURNAL_LOST_RUNS, journal.lost_runs)
    page.histogram(f.JOURNAL_COMMIT, COMMIT_BUCKETS, journal.commit_counts, journal.commit_seconds)


def _archive(page: Page, archive: ArchivistHealth | None) -> None:
    if archive is None:
        return
    page.put(f.JOURNAL_BYTES, archive.journal_bytes)
    page.put(f.HISTORY_BYTES, archive.history_bytes)
    page.put(f.HISTORY_MOVED, archive.moved_entries)
    page.put(f.HISTORY_FAILURES, archive.failures)


def _sink(page: Page, sink: SinkHealth) -> None:
    page.put(f.SINK_UP, int(sink.up), sink.name)
    page.put(f.SINK_LAG_ENTRIES, sink.lag_entries, sink.name)
    page.put(f.SINK_LAG_SECONDS, sink.lag_seconds, sink.name)
    page.put(f.SINK_WRITTEN, sink.written_points, sink.name)
    page.put(f.SINK_REJECTED, sink.rejected_points, sink.name)
    page.put(f.SINK_FAILED, sink.failed_writes, sink.name)
    page.put(f.SINK_DROPPED, sink.dropped_entries, sink.name)


def _process(page: Page, collector: ProcessCollector) -> None:
    """What the operating system says of this process; nothing where there is no /proc."""
    for metric in collector.collect():
        family = f.PROCESS.get(metric.name)
        for sample in metric.samples:
            if family is not None and math.isfinite(sample.value):
                page.put(family, sample.value)
