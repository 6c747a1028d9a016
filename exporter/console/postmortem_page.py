"""The post-mortem of a recovery as a page, and its files. Mounted by :mod:`exporter.console.rooms`."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from markupsafe import Markup, escape

from exporter.app.postmortem_routes import no_postmortem
from exporter.console.languages import N_
from exporter.console.sending import HEADERS, AnyRequest
from exporter.console.visiting import Console
from exporter.postmortem.writer import FILES

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

PATH: Final = "/console/postmortem"
FILE: Final = "/console/postmortem/file"


def postmortem_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handlers, bound to one console."""

    @get(PATH)
    async def postmortem(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        recovery_id = visitor.asked("id")
        text = await asyncio.to_thread(console.exporter.postmortems.text, recovery_id)
        if text is None:
            raise no_postmortem(recovery_id)
        body = await asyncio.to_thread(
            rendered, text.decode("utf-8", "replace"), lambda name: console.link(FILE, id=recovery_id, name=name)
        )
        return await visitor.page(
            "postmortem.html", title=N_("Post-mortem"), section="recoveries", recovery_id=recovery_id, body=body
        )

    @get(FILE)
    async def file(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        recovery_id, name = visitor.asked("id"), visitor.asked("name")
        body = await asyncio.to_thread(console.exporter.postmortems.file, recovery_id, name)
        if body is None:
            raise no_postmortem(recovery_id)
        kind = "attachment" if name.endswith(".md") else "inline"
        headers = {
            **HEADERS,
            "Cache-Control": "no-store",
            "Content-Type": FILES[name],
            "Content-Disposition": f'{kind}; filename="{recovery_id}-{name}"',
        }
        return Response(body, headers=headers)

    return [postmortem, file]


def rendered(text: str, address: Any) -> Markup:
    """As HTML, one heading below the page's own. ``address`` gives that of a picture; one that is none of ours is left
    out."""
    below = f"#{text}" if text.startswith("# ") else text
    return Markup(_parser().render(below, {"address": address}))


@lru_cache(1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # What is HTML in it is shown as text, whatever a run is called.
    made = MarkdownIt("commonmark", {"html": False}).enable("table")
    made.add_render_rule("image", _image)
    return made


def _image(_: Any, tokens: Any, place: int, __: Any, env: Any) -> str:
    token = tokens[place]
    name = str(token.attrs.get("src", ""))
    if name not in FILES:
        return str(escape(token.content))
    source, alternative = escape(env["address"](name)), escape(token.content)
    return f'<img src="{source}" alt="{alternative}" width="1210" loading="lazy">'
