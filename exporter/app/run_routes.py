"""The routes of one run: what is known of it, its steps as a file, and forgetting it. Mounted by :mod:`exporter.app`.

A run id may hold any printable character, a slash too. It is one segment of the path, percent-encoded whole, so these
routes have to be found by the path as it was sent: :class:`WholeSegments` sees to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response, delete, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import Stream

from exporter.app.access import Access
from exporter.app.answers import answer
from exporter.app.asked import person
from exporter.app.lifecycle import Exporter
from exporter.app.views import Forgotten, run_detail
from exporter.service.admission import MAX_INTEGER, Refused, shortened
from exporter.service.export import MEDIA_TYPES, Export, Format
from exporter.service.history import Archive
from exporter.service.stored import JournalUnavailable

RUNS_PATH = "/api/v1/runs/"
MOST_EXPORTS = 2
"""At a time. Each takes a thread that shares the interpreter with those who push."""

AnyRequest = Request[Any, Any, Any]
Chunks = Callable[[], Generator[bytes, None, None]]


class WholeSegments(Litestar):
    """Litestar, but a slash in a run id, which was sent as ``%2F``, does not part it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = scope.get("raw_path") if scope["type"] == "http" else None
        if isinstance(raw, bytes):
            path = raw.partition(b"?")[0].decode("latin-1")
            if path.startswith(RUNS_PATH):
                scope["path"] = path
        await super().__call__(scope, receive, send)


def run_routes(exporter: Exporter, access: Access) -> list[HTTPRouteHandler]:
    """The handlers, bound to one exporter."""
    core, clock = exporter.core, exporter.clock
    archive = Archive(Path(exporter.config.data_dir))
    exports = Exports()

    @get(RUNS_PATH + "{run_id:str}", sync_to_thread=False)
    def run(request: AnyRequest, run_id: str) -> Response[bytes]:
        read(request)
        name = named(run_id)
        found = core.find(name)
        if found is None:
            raise no_run(name)
        return answer(run_detail(found, clock()))

    @get(RUNS_PATH + "{run_id:str}/steps")
    async def steps(
        request: AnyRequest,
        run_id: str,
        format: str = "jsonl",
        attempt: int | None = Parameter(default=None, ge=1, lt=MAX_INTEGER),
        all_attempts: bool = False,
    ) -> Stream:
        """Metrics of every step under verl's own keys, oldest first."""
        read(request)
        name = named(run_id)
        form = form_of(format)
        export = Export(lambda: archive.steps(name), attempt=attempt, all_attempts=all_attempts)
        first, rest = await exports.begin(lambda: export.chunks(form))
        if not export.parts and core.find(name) is None:
            await rest.aclose()
            raise no_run(name)
        return Stream(joined(first, rest), media_type=MEDIA_TYPES[form])

    @delete(RUNS_PATH + "{run_id:str}", status_code=200)
    async def forget(request: AnyRequest, run_id: str, who: str | None = None) -> Response[bytes]:
        """Remove it from memory, journal and history, for good; ``who`` did so goes into the audit log."""
        read(request)
        name = named(run_id)
        await exporter.forget(name, "" if who is None else person(who, "query who"))
        return answer(Forgotten(forgotten=name))

    def read(request: AnyRequest) -> None:
        access.require(request, "operate")
        exporter.require_replayed()

    return [run, steps, forget]


def named(segment: str) -> str:
    """The run id that a segment of the path stands for."""
    try:
        return urllib.parse.unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Refused("not_found", "The run id in the path is not UTF-8 text.", status=404) from None


def form_of(wanted: str) -> Format:
    """The form of a file that the query asks for. Raises :class:`Refused` with those that there are."""
    found = next((form for form in MEDIA_TYPES if form == wanted), None)
    if found is None:
        message = f"There is no format {shortened(wanted)}: take {' or '.join(MEDIA_TYPES)}."
        raise Refused("malformed", message, where="query format")
    return found


def no_run(name: str) -> Refused:
    return Refused("not_found", f"No run {name!r} has ever pushed, or it is forgotten.", status=404)


async def joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


class Exports:
    """Runs exports on threads of their own, one each, and not too many at a time."""

    def __init__(self) -> None:
        self._running = 0

    async def begin(
        self, chunks: Callable[[], Generator[bytes, None, None]]
    ) -> tuple[bytes, AsyncGenerator[bytes, None]]:
        """The first piece, so that what fails fails before the answer begins; and the others, to be closed by the
        caller. Raises :class:`Refused`."""
        if self._running >= MOST_EXPORTS:
            message = f"{MOST_EXPORTS} exports are running, and no more do at a time: ask again when one has ended."
            raise Refused("too_many_exports", message, status=429, retry_after=5)
        self._running += 1
        pieces = self._pieces(chunks)
        try:
            return await anext(pieces), pieces
        except JournalUnavailable as error:
            raise Refused("journal", str(error), status=503, retry_after=5) from None

    async def _pieces(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """Each piece is made when the one before it was taken, always on the same thread: SQLite wants that."""
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "export")
        source = chunks()
        try:
            while (piece := await loop.run_in_executor(thread, next, source, None)) is not None:
                yield piece
        finally:
            self._running -= 1
            # Closes the files, on their thread, after the piece that may be in the making.
            thread.submit(source.close)
            thread.shutdown(wait=False)
