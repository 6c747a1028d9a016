"""The ASGI application: Litestar for what people and programs ask now and then, and the push path beside it.

Made by :mod:`exporter.app.server`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from litestar import Litestar, Request, Response
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Scope, Send

from exporter.app.access import Access
from exporter.app.answers import fault, http_error, refusal
from exporter.app.bodies import Bodies, Disconnected
from exporter.app.description import describe
from exporter.app.lifecycle import Exporter
from exporter.app.push import PushEndpoint
from exporter.app.routes import routes
from exporter.app.run_routes import WholeSegments
from exporter.protocol import PUSH_PATH
from exporter.service.admission import Refused

Room = Callable[[Exporter, Access, Bodies], Sequence[ControllerRouterHandler]]
"""Makes the handlers of a further part of the site, such as :func:`exporter.console.console`. What it refuses, and what
fails in it, it may answer by itself; what it leaves is answered as everywhere."""


def make_app(exporter: Exporter, access: Access, rooms: Sequence[Room] = ()) -> ASGIApp:
    """The ASGI application; starting it starts the exporter, and shutting it down stops it.

    ``rooms`` are served beside the API, and are no part of its description.
    """
    bodies = Bodies()
    others = _others(exporter, access, bodies, rooms)
    push = PushEndpoint(exporter, access, bodies)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            if scope["path"] == PUSH_PATH:
                await push(scope, receive, send)
                return
            if scope["method"] == "HEAD":
                # Whatever can be had can be asked for without its body, which the server then leaves out.
                scope = cast(Scope, {**scope, "method": "GET"})
        await others(scope, receive, send)

    return app


def _others(exporter: Exporter, access: Access, bodies: Bodies, rooms: Sequence[Room]) -> Litestar:
    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        await exporter.start()
        try:
            yield
        finally:
            await exporter.stop()

    def refused(request: Request[Any, Any, Any], error: Refused) -> Response[bytes]:
        exporter.ingest.reject(error.reason)
        return refusal(request.headers, error).response()

    def wrong(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
        return http_error(request, error).response()

    def gone(_: Request[Any, Any, Any], __: Disconnected) -> Response[bytes]:
        return Response(b"", status_code=400)  # to nobody

    def failed(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        route = f"{request.method} {request.scope.get('path_template', 'a route')}"
        return fault(request.headers, route, error).response()

    handlers = routes(exporter, access, bodies)
    return WholeSegments(
        route_handlers=[
            *handlers,
            describe(handlers, exporter, access),
            *(handler for room in rooms for handler in room(exporter, access, bodies)),
        ],
        lifespan=[lifespan],
        exception_handlers={Refused: refused, HTTPException: wrong, Disconnected: gone, Exception: failed},
        request_max_body_size=None,
        openapi_config=None,  # :mod:`exporter.app.description` has it, in full
        logging_config=None,
    )
