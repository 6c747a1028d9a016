"""A visit to the console: who it is, what may be done, and the page that is the answer. Used by every page.

Where tokens are set for scope operate, a visitor is who signed in; where none are, whoever asks by a local name, as for
the API. A cookie is good for the console alone: the routes of the API know nothing of it.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from litestar import Response
from litestar.datastructures import Cookie
from markupsafe import Markup

from exporter.app.access import Access
from exporter.app.asked import person
from exporter.app.bodies import Bodies, content_type
from exporter.app.lifecycle import Exporter
from exporter.console.languages import N_, chosen
from exporter.console.rendering import Pages
from exporter.console.sending import AnyRequest, Sent, see_other
from exporter.console.sessions import Session, Sessions, new_id
from exporter.console.static_files import Files
from exporter.service.admission import Refused

__all__ = ["AnyRequest", "Console", "SignInNeeded", "Visitor"]

COOKIE: Final = "verl_console"
WHO_COOKIE: Final = "verl_console_who"
LANGUAGE_COOKIE: Final = "verl_console_lang"
THEME_COOKIE: Final = "verl_console_theme"
THEMES: Final = ("auto", "light", "dark")
YEAR_SECONDS: Final = 365 * 86_400
LIVE: Final = "x-console-live"
"""Header of the scripts that fetch a page, or its data, again."""

FORM: Final = "application/x-www-form-urlencoded"
FORM_BYTES: Final = 64 * 1024
FORM_FIELDS: Final = 50
HOME: Final = "/console/"
LONGEST_NEXT: Final = 4000


class SignInNeeded(Exception):
    """Nobody is signed in; answered with the page for that (:mod:`exporter.console.errors`)."""


class Console:
    """What all pages share: the exporter, the sessions, the templates."""

    def __init__(self, exporter: Exporter, access: Access, bodies: Bodies) -> None:
        self.exporter = exporter
        self.core, self.clock = exporter.core, exporter.clock
        self.access = access
        self._bodies = bodies
        links = exporter.config.links
        address = urllib.parse.urlsplit(links.console)
        self._origin = origin_of(address)
        self.prefix = address.path.rstrip("/")
        """Path under which a proxy has this exporter; empty where it is at the root."""
        self.grafana = links.grafana.rstrip("/")
        self.secure = exporter.config.tls is not None or address.scheme == "https"
        self.sessions = Sessions(lambda: access.tokens.of("operate"))
        self.files = Files()
        self.pages = Pages(
            {
                "link": self.link,
                "static": lambda name: self.prefix + self.files.address(name),
                "grafana": self.grafana,
                "version": exporter.version,
            }
        )

    @property
    def open(self) -> bool:
        """No token is needed: there is no sign-in."""
        return not self.access.tokens.of("operate")

    def link(self, path: str, **query: object) -> str:
        """The address of a page: ``link("/console/run", id=run_id)``; what is None or empty is left out."""
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"{self.prefix}{path}{'?' if given else ''}{urllib.parse.urlencode(given, quote_via=urllib.parse.quote)}"

    def visitor(self, request: AnyRequest) -> Visitor:
        """Whoever asks, signed in or not: for the pages that are open."""
        return Visitor(self, request)

    def enter(self, request: AnyRequest, *, ready: bool = True) -> Visitor:
        """Who asks for a page. Raises :class:`SignInNeeded`; :class:`Refused` (403) for a name of this machine that is
        not local, and (503), unless ``ready`` is false, while the journal is being read."""
        visitor = Visitor(self, request)
        if self.open:
            self.access.require(request, "operate")
        elif visitor.session is None:
            raise SignInNeeded
        if ready:
            self.exporter.require_replayed()
        return visitor

    async def decide(self, request: AnyRequest) -> tuple[Visitor, Mapping[str, str]]:
        """Who sends a form that changes something, and its fields. Raises as :meth:`enter`, and :class:`Refused` (403)
        for a form that is not of this browser and this site."""
        visitor = self.enter(request, ready=False)
        form = await self.form(visitor)
        self.exporter.require_replayed()
        return visitor, form

    async def form(self, visitor: Visitor) -> Mapping[str, str]:
        """The fields of a form, each once; its origin and its token are checked."""
        headers = visitor.request.headers
        self._require_own_origin(headers)
        content_type(headers, {FORM: FORM})
        try:
            body = await self._bodies.read(visitor.request.receive, headers, FORM_BYTES)
        except Refused as error:
            if error.status != 413:
                raise
            # What the API says is for whoever pushes steps.
            message = N_("The form holds too much text: write less, and send it again.")
            raise Refused("too_large", message, where="body", status=413) from None
        try:
            fields = urllib.parse.parse_qsl(
                body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS
            )
        except ValueError:
            raise Refused("malformed", N_("This is not what a form of the console sends."), where="body") from None
        form = dict(fields)
        if not self.sessions.is_form_token(form.pop("csrf", ""), visitor.cookie):
            message = N_(
                "The form is out of date or was not made by this console: load the page again, and send it then."
            )
            raise Refused("form", message, where="csrf", status=403)
        return form

    def _require_own_origin(self, headers: Any) -> None:
        """Browsers say where a form comes from; what says nothing of it is no browser, and has no cookie to lend."""
        site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "").lower()
        host = headers.get("host", "").lower()
        is_own = origin in (f"http://{host}", f"https://{host}", self._origin)
        if (site and site != "same-origin") or (origin and not is_own) or not (site or origin):
            message = N_("The form was not sent by a page of this console: open the console, and decide there.")
            raise Refused("origin", message, where="header Origin", status=403)

    def cookie(self, name: str, value: str, *, seconds: int | None = None) -> Cookie:
        """A cookie for the console and the runbooks; without ``seconds`` for as long as the browser is open."""
        return Cookie(
            key=name,
            value=value,
            path=f"{self.prefix}/",
            max_age=seconds,
            secure=self.secure,
            httponly=True,
            samesite="strict",
        )


def origin_of(address: urllib.parse.SplitResult) -> str:
    """As a browser spells it in the header Origin: without a port that goes without saying.

    >>> origin_of(urllib.parse.urlsplit("https://Ops.example.org:443/verl"))
    'https://ops.example.org'
    """
    usual = {"http": ":80", "https": ":443"}.get(address.scheme, "")
    return f"{address.scheme}://{address.netloc.lower().removesuffix(usual)}"


class Visitor:
    """One request to the console."""

    def __init__(self, console: Console, request: AnyRequest) -> None:
        self.console = console
        self.request = request
        self.query: dict[str, str] = dict(request.query_params.items())
        cookies = request.cookies
        self.cookies: list[Cookie] = []
        """To be set by the answer."""
        self.cookie = cookies.get(COOKIE, "")
        self.session: Session | None = None
        if self.cookie and not console.open:
            # A page that is open somewhere and fetches itself is nobody who is there.
            self.session = console.sessions.find(self.cookie, used=LIVE not in request.headers)
        self.language = chosen(
            self.asked("lang"), cookies.get(LANGUAGE_COOKIE, ""), request.headers.get("accept-language", "")
        )
        self.theme = next((t for t in (self.asked("theme"), cookies.get(THEME_COOKIE, "")) if t in THEMES), "auto")
        self._remember()

    def _remember(self) -> None:
        if self.asked("lang") == self.language:
            self.cookies.append(self.console.cookie(LANGUAGE_COOKIE, self.language, seconds=YEAR_SECONDS))
        if self.asked("theme") == self.theme:
            self.cookies.append(self.console.cookie(THEME_COOKIE, self.theme, seconds=YEAR_SECONDS))

    @property
    def may_look(self) -> bool:
        """Whether the pages behind the sign-in are open to whoever asks."""
        return self.console.open or self.session is not None

    @property
    def who(self) -> str:
        """The name that goes into the audit log; empty where it was not given yet."""
        if self.session is not None:
            return self.session.who
        return urllib.parse.unquote(self.request.cookies.get(WHO_COOKIE, ""))[:200]

    @property
    def path(self) -> str:
        """Path of the page as it was asked for, percent-encoded; with one slash at its start, as a link to
        ``//console`` would lead to a machine of that name."""
        given = bytes(self.request.scope["raw_path"]).partition(b"?")[0].decode("latin-1")
        return "/" + given.lstrip("/\\")

    @property
    def here(self) -> str:
        """Path and query of the page, to come back to."""
        query = bytes(self.request.scope["query_string"]).decode("latin-1")
        return f"{self.path}{'?' if query else ''}{query}"

    def gettext(self, text: str) -> str:
        """A text in the visitor's language, for what is no template. English before the first page of a language."""
        return self.console.pages.gettext(self.language, text)

    def asked(self, name: str) -> str:
        """A parameter of the query; empty where it is not there."""
        return str(self.query.get(name, ""))

    def named(self, form: Mapping[str, str]) -> str:
        """Who decides: who signed in; without sign-in the form's field ``who``, which is remembered. Raises
        :class:`Refused` where that is no name."""
        if self.session is not None:
            return self.session.who
        who = person(form.get("who", ""), "who")
        self.cookies.append(self.console.cookie(WHO_COOKIE, urllib.parse.quote(who, safe=""), seconds=YEAR_SECONDS))
        return who

    def form_token(self) -> str:
        """For the forms of the page; a browser that has no cookie yet is given one."""
        if not self.cookie:
            self.set_cookie(new_id())
        return self.console.sessions.form_token(self.cookie)

    def set_cookie(self, value: str) -> None:
        """The browser gets another id."""
        self.cookie = value
        self.cookies.append(self.console.cookie(COOKIE, value))

    def go_to(self, path: str, **query: object) -> Response[bytes]:
        """The answer to a form that did what it should."""
        return see_other(self.console.link(path, **query), self.cookies)

    async def page(
        self, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
    ) -> Response[bytes]:
        """A page. ``values`` are the template's; ``title`` is one of them, ``section`` the entry of the menu."""

        def guard() -> Markup:
            # Only where a form asks for it. Who comes by a link from elsewhere shows no cookie, and one that a page
            # without a form gave would take the place of that of the session.
            return Markup('<input type="hidden" name="csrf" value="{}">').format(self.form_token())

        # Read before the page is made, which takes a while: what it shows is of one moment.
        common = {
            "visitor": self,
            "theme": self.theme,
            "query": {name: value for name, value in self.query.items() if name not in ("lang", "theme")},
            "form_guard": guard,
            "section": "",
            "problems": self.console.exporter.reasons_not_ready() if self.may_look else [],
            "now": self.console.clock(),
        }
        body = await self.console.pages.render(template, self.language, {**common, **values})
        sent = Sent(body, status=status, headers=dict(headers or {}), cookies=self.cookies)
        return await sent.response(self.request)
