"""The runbooks of the alerts as pages: what an alert links to. Mounted by :mod:`exporter.console.rooms`.

They are files of this repository and say nothing of any run, so they need no sign-in: a link in a message works at
once.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from markupsafe import Markup, escape

from exporter.bundle.sources import beside
from exporter.console.languages import N_
from exporter.console.sending import AnyRequest
from exporter.console.visiting import Console
from exporter.service.admission import Refused

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

ENDING: Final = ".md"
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,100}")
_ALERT: Final = re.compile(r"\bVerl[A-Z]\w+|\bWatchdog\b")


def runbook_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handlers, bound to one console."""

    @get("/runbooks/")
    async def runbooks(request: AnyRequest) -> Response[bytes]:
        visitor = console.visitor(request)
        listed = [(name, beginning(_text(name))) for name in names()]
        return await visitor.page("runbooks.html", title=N_("Runbooks"), section="runbooks", runbooks=listed)

    @get("/runbooks/{file:str}")
    async def runbook(request: AnyRequest, file: str) -> Response[bytes]:
        visitor = console.visitor(request)
        name = file.removesuffix(ENDING)
        if name not in names():
            raise Refused("not_found", f"There is no runbook {file}: /runbooks/ has all of them.", status=404)
        body = await asyncio.to_thread(rendered, name)
        return await visitor.page("runbook.html", title=name, section="runbooks", body=body)

    return [runbooks, runbook]


def _folder() -> Path:
    return beside() / "rules" / "runbooks"


@lru_cache(1)
def names() -> tuple[str, ...]:
    """Every alert that has a runbook."""
    try:
        files = [one.name for one in _folder().iterdir() if one.name.endswith(ENDING)]
    except OSError:  # not installed
        return ()
    return tuple(sorted(name for file in files if _NAME.fullmatch(name := file.removesuffix(ENDING))))


@lru_cache(256)
def _text(name: str) -> str:
    return (_folder() / f"{name}{ENDING}").read_text(encoding="utf-8")


def beginning(text: str) -> str:
    """The first sentence of what the alert means.

    >>> beginning("# A\\n\\n## What it means\\n\\nThe run is\\nsilent. It may be dead.\\n")
    'The run is silent.'
    """
    after = text.partition("## What it means")[2] or text.partition("\n")[2]
    paragraph = " ".join(after.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) ", paragraph, maxsplit=1)[0].replace("`", "")


@lru_cache(64)
def rendered(name: str) -> Markup:
    """A runbook as HTML, without its title: the page has that. Names of other alerts become links."""
    text = _text(name)
    if text.startswith("# "):
        text = text.partition("\n")[2]
    return Markup(_parser().render(text))


@lru_cache(1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # What is HTML in a file is shown as text: a runbook that somebody adds is no way into the page.
    made = MarkdownIt("commonmark", {"html": False}).enable("table")
    made.add_render_rule("text", _linked)
    return made


def _linked(_: Any, tokens: Any, place: int, *__: Any) -> str:
    """Text, with links to the other runbooks that it names; in a link or an emphasis as it is."""
    token = tokens[place]
    if token.level:
        return str(escape(token.content))
    known = frozenset(names())

    def link(found: re.Match[str]) -> str:
        return f'<a href="{found[0]}{ENDING}">{found[0]}</a>' if found[0] in known else found[0]

    # What is escaped has no name in it that was not there before.
    return _ALERT.sub(link, str(escape(token.content)))
