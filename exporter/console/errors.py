"""What is refused, or fails, in the console: a page for a browser, an error answer for everything else.

Called by :mod:`exporter.console.rooms`, which puts :func:`guarded` around all handlers.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final

from litestar import Response, Router
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from exporter.app.answers import fault, http_error, refusal
from exporter.console.languages import N_
from exporter.console.sending import HEADERS, AnyRequest, Sent, see_other
from exporter.console.sentences_shown import retold
from exporter.console.visiting import LIVE, Console, SignInNeeded, Visitor
from exporter.service.admission import Refused

TITLES: Final = {
    400: N_("This cannot be understood"),
    401: N_("Sign in first"),
    403: N_("This is not allowed"),
    404: N_("There is no such thing"),
    405: N_("Nothing to see here"),
    409: N_("Too late for that"),
    413: N_("This is too large"),
    415: N_("This cannot be understood"),
    429: N_("Too many at a time"),
    500: N_("The exporter has a fault"),
    503: N_("Not ready yet"),
}


def guarded(console: Console, handlers: Sequence[HTTPRouteHandler]) -> Router:
    """The handlers, with errors answered as here."""

    def refused(request: AnyRequest, error: Refused) -> Response[bytes]:
        console.exporter.ingest.reject(error.reason)
        if not is_browser(request):
            return _plain(refusal(request.headers, error).response())
        return Later(error_page(console, request, error.status, error.message, retry_after=error.retry_after))

    def wrong(request: AnyRequest, error: HTTPException) -> Response[bytes]:
        if not is_browser(request):
            return _plain(http_error(request, error).response())
        return Later(error_page(console, request, error.status_code, ""))

    def failed(request: AnyRequest, error: Exception) -> Response[bytes]:
        route = f"{request.method} {request.scope.get('path_template', 'a page')}"
        written = fault(request.headers, route, error)
        if not is_browser(request):
            return _plain(written.response())
        return Later(error_page(console, request, 500, N_("Its log has the details.")))

    def unknown(request: AnyRequest, _: SignInNeeded) -> Response[bytes]:
        return _sign_in(console, request)

    return Router(
        "/",
        route_handlers=list(handlers),
        exception_handlers={Refused: refused, HTTPException: wrong, SignInNeeded: unknown, Exception: failed},
    )


class Later(Response[bytes]):
    """An answer that takes a while to make, where Litestar wants one at once: from what handles an exception."""

    def __init__(self, made: Coroutine[Any, Any, Response[bytes]]) -> None:
        super().__init__(b"")
        self._made = made

    def to_asgi_response(self, app: Any, request: AnyRequest, **given: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            response = await self._made
            await response.to_asgi_response(app=app, request=request, **given)(scope, receive, send)

        return answer


def is_browser(request: AnyRequest) -> bool:
    """Whether a person will see the answer: a script that fetches a page again wants no page in place of an error."""
    return "text/html" in request.headers.get("accept", "") and LIVE not in request.headers


async def error_page(
    console: Console, request: AnyRequest, status: int, reason: str, *, retry_after: int | None = None
) -> Response[bytes]:
    visitor = console.visitor(request)
    title = TITLES.get(status) or HTTPStatus(status).phrase
    headers = {"Retry-After": str(retry_after)} if retry_after else {}
    return await visitor.page(
        "error.html",
        status=status,
        headers=headers,
        title=title,
        status_code=status,
        reason=reason,
        retold=retold,
        wait=retry_after,
    )


def _sign_in(console: Console, request: AnyRequest) -> Response[bytes]:
    visitor = console.visitor(request)
    if request.method == "GET" and is_browser(request):
        if request.headers.get("sec-fetch-site") == "cross-site":
            # From a link in a message: the browser keeps the cookie back until one of our own pages asks.
            return Later(_arrival(console, visitor))
        return see_other(console.link("/console/login", next=visitor.here))
    message = N_("Nobody is signed in to the console, or not any more: sign in, and do it again. Nothing was done.")
    if is_browser(request):
        return Later(error_page(console, request, 401, message))
    return _plain(refusal(request.headers, Refused("session", message, where="cookie", status=401)).response())


async def _arrival(console: Console, visitor: Visitor) -> Response[bytes]:
    body = await console.pages.render("arrival.html", visitor.language, {"here": console.prefix + visitor.here})
    return await Sent(body).response(visitor.request)


def _plain(response: Response[bytes]) -> Response[bytes]:
    response.headers.update({**HEADERS, "Cache-Control": "no-store"})
    return response
