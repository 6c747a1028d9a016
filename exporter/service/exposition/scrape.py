"""One scrape: what is on the page, in which format, and how long that took. Called by the route ``/metrics``.

The page is made in slices between which others on the event loop get their turn; each run is on it as it was at one
moment, and two runs may be some milliseconds apart. Compressing happens in a thread.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from exporter.service.archivist import ArchivistHealth
from exporter.service.core import Core
from exporter.service.exposition.health import Health, put_health
from exporter.service.exposition.ingest import Ingest
from exporter.service.exposition.negotiation import takes_gzip, wants_openmetrics
from exporter.service.exposition.series import RunSeries
from exporter.service.exposition.text import CLASSIC, OPENMETRICS, Page
from exporter.service.recoveries import Recoveries
from exporter.service.sinks.contract import SinkHealth
from exporter.service.watch import WatchedRun

log = logging.getLogger("exporter.exposition")

GZIP_LEVEL = 1
"""The text is so repetitive that a higher level saves little and costs several times as much."""

SLICE_SECONDS = 0.005
"""Longest time for which a scrape keeps others waiting, but for the end, in which the lines are put together."""

RUNS_BETWEEN_LOOKS = 8
"""The clock of a slice is read after as many runs."""

RUNS_SETTLED = 64
"""Lines are put together after as many runs."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The answer to a scrape."""

    body: bytes
    content_type: str
    content_encoding: str
    """``gzip``, or empty where the body is as it is."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the body, besides its type."""
        found = {"Vary": "Accept, Accept-Encoding"}
        return found | ({"Content-Encoding": self.content_encoding} if self.content_encoding else {})


class Exposition:
    """``/metrics``; every scrape reads the core anew.

    Args:
        core: read on the thread that scrapes, which must be the one that changes it.
        ingest: the app's counters.
        clock: Unix seconds.
        version: of this program.
        ready: whether the journal has been read; before that there is nothing to say of runs.
        sinks: figures of each sink.
        archive: figures of what moves pushes into the history; None while nothing does.
        slice_seconds: others on the event loop get their turn after as long.
    """

    def __init__(
        self,
        core: Core,
        ingest: Ingest,
        clock: Callable[[], float],
        version: str,
        ready: Callable[[], bool],
        *,
        sinks: Callable[[], Sequence[SinkHealth]] = tuple,
        archive: Callable[[], ArchivistHealth | None] = lambda: None,
        slice_seconds: float = SLICE_SECONDS,
    ) -> None:
        self._core = core
        self._clock = clock
        self._ready = ready
        self._slice_seconds = slice_seconds
        self._health = Health(core, ingest, version, sinks, archive)
        self._series: dict[str, RunSeries] = {}
        self._recoveries = Recoveries(core)

    def render(self, accept: str = "", accept_encoding: str = "") -> Rendered:
        """The page for a scraper with these headers, at once."""
        began = time.perf_counter()
        page = Page()
        for _ in self._fill(page):
            pass
        openmetrics = wants_openmetrics(accept)
        body = page.body(openmetrics=openmetrics)
        self._health.spent("render", time.perf_counter() - began)
        if takes_gzip(accept_encoding):
            return _rendered(self._compressed(body), openmetrics, "gzip")
        return _rendered(body, openmetrics, "")

    async def scrape(self, accept: str = "", accept_encoding: str = "") -> Rendered:
        """The same as :meth:`render`, in slices, for the event loop."""
        began = slice_began = time.perf_counter()
        waited = 0.0
        page = Page()
        for _ in self._fill(page):
            now = time.perf_counter()
            if now - slice_began > self._slice_seconds:
                await asyncio.sleep(0)
                slice_began = time.perf_counter()
                waited += slice_began - now
        openmetrics = wants_openmetrics(accept)
        body = page.body(openmetrics=openmetrics)
        self._health.spent("render", time.perf_counter() - began - waited)
        if takes_gzip(accept_encoding):
            return _rendered(await asyncio.to_thread(self._compressed, body), openmetrics, "gzip")
        return _rendered(body, openmetrics, "")

    def _compressed(self, body: bytes) -> bytes:
        began = time.perf_counter()
        found = gzip.compress(body, GZIP_LEVEL, mtime=0)
        self._health.spent("compress", time.perf_counter() - began)
        return found

    def _fill(self, page: Page) -> Iterator[None]:
        """Put everything on the page; yields now and then."""
        now = self._clock()
        shown = {}
        if self._ready():
            self._recoveries.refresh()
            for number, (run_id, run) in enumerate(list(self._core.runs.items()), start=1):
                if self._core.shown(run, now):
                    shown[run_id] = self._of(run)
                    self._put(page, shown[run_id], now)
                if number % RUNS_BETWEEN_LOOKS == 0:
                    yield
                if number % RUNS_SETTLED == 0:
                    page.settle()
        self._series = shown
        put_health(page, self._health, self._recoveries.audit_counts, runs=len(shown), ready=self._ready())

    def _of(self, run: WatchedRun) -> RunSeries:
        known = self._series.get(run.state.run_id)
        return known if known is not None and known.run is run else RunSeries(run)

    def _put(self, page: Page, series: RunSeries, now: float) -> None:
        """A fault in one run must not take the others from those who watch them; it is counted, and logged once."""
        try:
            series.render(page, self._recoveries.of(series.run.state.run_id), now)
        except Exception:
            if not self._health.scrape_faults:
                log.exception("The series of run %s could not be shown in full", series.run.state.run_id)
            self._health.scrape_faults += 1


def _rendered(body: bytes, openmetrics: bool, encoding: str) -> Rendered:
    return Rendered(body, OPENMETRICS if openmetrics else CLASSIC, encoding)
