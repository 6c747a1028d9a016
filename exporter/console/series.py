"""``/console/series``: the data of a run's charts as JSON, for the script of its page. Mounted by
:mod:`exporter.console.rooms`.

With ``span=recent`` it is what memory has, at once. Otherwise the whole run, made by one thread for all (see
:mod:`exporter.console.traces`) and kept for the runs that were looked at last.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.app.run_routes import no_run
from exporter.console.kept import Kept
from exporter.console.sending import AnyRequest, Sent
from exporter.console.visiting import Console
from exporter.detectors.setup import RunSetup
from exporter.service.admission import Refused
from exporter.service.history import Archive
from exporter.service.recent import RecentStep
from exporter.service.stored import JournalUnavailable
from exporter.service.watch import WatchedRun

if TYPE_CHECKING:
    from exporter.console.picture import Finding, Save
    from exporter.console.traces import Traces

MOST_WAITING: Final = 6
"""Different things that wait for the thread. Who asks for one more is asked to come again."""
POINTS: Final = 600
"""Of a series, where the address does not say."""
JSON: Final = "application/json"

_MADE: weakref.WeakKeyDictionary[Console, Series] = weakref.WeakKeyDictionary()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What the thread needs of a run, taken on the thread that changes it."""

    run: WatchedRun
    setup: RunSetup
    trainer: str
    resumes: Mapping[int, int | None]
    newest: Sequence[RecentStep]
    findings: Sequence[Finding]
    saves: Sequence[Save]
    steps_total: int


def series_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handler, bound to one console."""
    made = series_of(console)

    @get("/console/series")
    async def series(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        run_id = visitor.asked("id")
        run = console.core.find(run_id)
        if run is None:
            raise no_run(run_id)
        points = visitor.asked("points")
        work = made.of(
            run,
            points=int(points) if points.isdecimal() and len(points) < 6 else POINTS,
            recent=visitor.asked("span") == "recent",
            known=visitor.asked("known"),
        )
        body = await unless_gone(request, work)
        return await Sent(body, JSON, cookies=visitor.cookies).response(request)

    return [series]


async def unless_gone(request: AnyRequest, work: Coroutine[Any, Any, bytes]) -> bytes:
    """What ``work`` gives; it is cancelled, and the answer empty, when the browser does not wait for it any more."""
    made, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((made, gone), return_when=asyncio.FIRST_COMPLETED)
        return await made if made.done() else b""
    finally:
        for one in (made, gone):
            one.cancel()


async def _gone(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def series_of(console: Console) -> Series:
    """The one of this console: what one page has read is there for the others."""
    if console not in _MADE:
        _MADE[console] = Series(console)
    return _MADE[console]


class _Job:
    """Something for the thread, and how many wait for it."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
        self.waiting = 0


class Series:
    """The traces of the runs that were looked at last."""

    def __init__(self, console: Console) -> None:
        self._plan = console.exporter.config.detector_plan()
        self._archive = Archive(Path(console.exporter.config.data_dir))
        self._thread = ThreadPoolExecutor(1, "console")
        self._kept = Kept()
        self._stopped: Callable[[], bool] = bool
        self._jobs: dict[Hashable, _Job] = {}

    async def of(self, run: WatchedRun, *, points: int, recent: bool, known: str) -> bytes:
        """The picture as JSON; ``known``: the version that the browser has, for which the answer is short. Raises
        :class:`Refused` (429) where too many wait, (503) where the archive cannot be read."""
        version = version_of(run)
        if known == version and not recent:
            return msgspec.json.encode({"version": version, "unchanged": True})
        snapshot = _snapshot(run)
        work = self._recent if recent else self._whole
        # Of one run object: a run that was forgotten may come again under its id.
        key = (id(run), points, recent, version)
        return await self._on_thread(key, lambda: work(snapshot, points, version))

    async def ask(self, run: WatchedRun, question: Callable[[Traces], _T]) -> _T:
        """Ask for something of the run's traces; same errors."""
        snapshot = _snapshot(run)
        return await self._on_thread(object(), lambda: question(self._traces_of(snapshot)))

    async def _on_thread(self, key: Hashable, work: Callable[[], _T]) -> _T:
        """Equal questions are asked once. What nobody waits for any more leaves the queue."""
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) >= MOST_WAITING:
                raise Refused("busy", "Too many charts are being made: ask again.", status=429, retry_after=2)
            # The program ends when the thread does: that must not wait for a long run to be read.
            self._stopped = asyncio.get_running_loop().is_closed
            job = self._jobs[key] = _Job(self._thread.submit(work))
        job.waiting += 1
        try:
            found: _T = await asyncio.shield(asyncio.wrap_future(job.future))
            return found
        except JournalUnavailable as error:
            raise Refused("journal", str(error), status=503, retry_after=5) from None
        finally:
            job.waiting -= 1
            # One that is being worked on is not cancelled: its traces are kept for who comes next.
            if job.future.done() or (not job.waiting and job.future.cancel()):
                self._forget(key, job)
            elif not job.waiting:
                loop = asyncio.get_running_loop()
                job.future.add_done_callback(lambda _: _soon(loop, lambda: self._forget(key, job)))

    def _forget(self, key: Hashable, job: _Job) -> None:
        if self._jobs.get(key) is job:
            del self._jobs[key]

    def _recent(self, it: _Snapshot, points: int, version: str) -> bytes:
        traces = self._fresh(it, judged=False)
        traces.go_on(it.newest)
        return _encoded(traces, it, points, "", complete=len(traces) >= it.steps_total)

    def _whole(self, it: _Snapshot, points: int, version: str) -> bytes:
        return _encoded(self._traces_of(it), it, points, version, complete=True)

    def _traces_of(self, it: _Snapshot) -> Traces:
        from exporter.console.traces import Gap

        traces = self._kept.get(it.run)
        if traces is None:
            traces = self._read(it)
        else:
            traces.now_known(it.setup, it.resumes)
            try:
                traces.go_on(it.newest)
            except Gap:
                traces = self._read(it)
        self._kept.put(it.run, traces)
        return traces

    def _read(self, it: _Snapshot) -> Traces:
        traces = self._fresh(it)
        traces.read(self._archive.steps(it.run.state.run_id), it.steps_total)
        # Steps that are older than the retention are in memory only.
        if not len(traces):
            traces.go_on(it.newest)
        return traces

    def _fresh(self, it: _Snapshot, *, judged: bool = True) -> Traces:
        # Late: it brings numpy, for those who look at a chart.
        from exporter.console.traces import Traces

        return Traces(self._plan().step if judged else (), it.setup, it.trainer, it.resumes, self._stopped)


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the exporter has ended meanwhile
        loop.call_soon_threadsafe(work)


def version_of(run: WatchedRun) -> str:
    """Changes whenever the charts do."""
    state = run.state
    newest = max((incident.updated_at for incident in run.book), default=0.0)
    counts = (state.attempt, state.current, state.steps_total, len(state.signals), len(state.checkpoints))
    return "-".join(map(str, (*counts, len(run.book.history), sum(1 for _ in run.book), newest)))


def _snapshot(run: WatchedRun) -> _Snapshot:
    from exporter.console.picture import MOST_MARKS, Finding, Save

    incidents = (*run.book.history, *run.book)
    return _Snapshot(
        run=run,
        setup=run.state.setup,
        trainer=run.state.identity.trainer,
        resumes={one.number: one.resume_step for one in run.state.attempts},
        newest=list(run.state.recent),
        findings=[
            Finding(
                incident=one.id,
                detector=one.detector,
                signal=one.signal,
                severity=one.severity.label,
                is_open=one.state != "resolved",
                attempt=one.attempt,
                onset=one.onset,
                first_step=one.first_step,
                last_step=one.last_step,
            )
            for one in incidents[-MOST_MARKS:]
        ],
        saves=[
            Save(one.attempt, one.step, one.verified)
            for one in list(islice(reversed(run.state.checkpoints), MOST_MARKS))[::-1]
        ],
        steps_total=run.state.steps_total,
    )


def _encoded(traces: Traces, it: _Snapshot, points: int, version: str, *, complete: bool) -> bytes:
    from exporter.console.picture import picture

    made = picture(traces, it.findings, it.saves, points)
    return msgspec.json.encode({"version": version, "unchanged": False, "complete": complete, **made})
