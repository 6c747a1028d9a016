"""Signing in to the console and out of it. Mounted by :mod:`exporter.console.rooms`."""

from __future__ import annotations

import logging
from http import HTTPStatus

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from exporter.app.asked import person
from exporter.console.languages import N_
from exporter.console.sending import AnyRequest, see_other
from exporter.console.sessions import new_id
from exporter.console.visiting import HOME, LONGEST_NEXT, Console, Visitor
from exporter.service.admission import Refused

log = logging.getLogger("exporter.console")

_TOLD = {
    HTTPStatus.UNAUTHORIZED: N_("This is not a token of scope operate. Look at tokens.operate of the configuration."),
    HTTPStatus.FORBIDDEN: N_("This token is good for something else: the console needs one of scope operate."),
    HTTPStatus.TOO_MANY_REQUESTS: N_("Too many wrong tokens came from this address. Wait a moment and try again."),
    HTTPStatus.BAD_REQUEST: N_("Say who you are, in 1 to 200 printable characters: it goes into the audit log."),
}
TOKEN_CHARACTERS = 4096


def sign_in_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handlers, bound to one console."""

    @get("/")
    async def root(request: AnyRequest) -> Response[bytes]:
        return see_other(console.link(HOME))

    @get("/console/login")
    async def login(request: AnyRequest) -> Response[bytes]:
        visitor = console.visitor(request)
        after = safe_next(visitor.asked("next"))
        if console.open or visitor.session is not None:
            return see_other(console.prefix + after)
        return await _form(visitor, after)

    @post("/console/login", status_code=200)
    async def sign_in(request: AnyRequest) -> Response[bytes]:
        visitor = console.visitor(request)
        if console.open:
            return see_other(console.link(HOME))
        form = await console.form(visitor)
        after = safe_next(form.get("next", ""))
        token = form.get("token", "").strip()[:TOKEN_CHARACTERS]
        peer = request.client.host if request.client else ""
        try:
            who = person(form.get("who", ""), "who")
            console.access.check({"authorization": f"Bearer {token}"}, peer, "operate")
        except Refused as refused:
            console.exporter.ingest.reject(refused.reason)
            wrong = _TOLD.get(HTTPStatus(refused.status), refused.message)
            return await _form(visitor, after, refused, wrong, who=form.get("who", "")[:200])
        # Another id than before: one that somebody planted in this browser is worth nothing.
        visitor.set_cookie(console.sessions.open(token.encode("latin-1", "replace"), who))
        log.info("%s signed in to the console from %s", who, peer)
        return see_other(console.prefix + after, visitor.cookies)

    @post("/console/logout", status_code=303)
    async def sign_out(request: AnyRequest) -> Response[bytes]:
        visitor = console.visitor(request)
        await console.form(visitor)
        console.sessions.close(visitor.cookie)
        visitor.set_cookie(new_id())
        return visitor.go_to("/console/login")

    async def _form(
        visitor: Visitor, after: str, refused: Refused | None = None, wrong: str = "", who: str = ""
    ) -> Response[bytes]:
        retry = {"Retry-After": str(refused.retry_after)} if refused is not None and refused.retry_after else {}
        return await visitor.page(
            "login.html",
            status=refused.status if refused is not None else 200,
            headers=retry,
            title=N_("Sign in"),
            after=after,
            wrong=wrong,
            who=who,
        )

    return [root, login, sign_in, sign_out]


def safe_next(given: str) -> str:
    """Where to go after the sign-in: a page of this console, whatever the address says.

    >>> safe_next("/console/run?id=a%2Fb"), safe_next("//evil.example/console/"), safe_next("/console/\\\\evil.example")
    ('/console/run?id=a%2Fb', '/console/', '/console/')
    """
    fits = given.startswith("/console/") and len(given) <= LONGEST_NEXT
    if (
        fits
        and given.isascii()
        and given.isprintable()
        and not set(given) & set('\\ "<>')
        and "//" not in given.partition("?")[0]
    ):
        return given
    return HOME
