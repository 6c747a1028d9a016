"""All handlers of the console, bound to one exporter. Called by the application through :func:`console`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from exporter.app.access import Access
from exporter.app.bodies import Bodies
from exporter.app.lifecycle import Exporter
from exporter.console.audit_page import audit_pages
from exporter.console.errors import guarded
from exporter.console.incident_page import incident_pages
from exporter.console.languages import N_
from exporter.console.postmortem_page import postmortem_pages
from exporter.console.recovery_page import recovery_pages
from exporter.console.run_page import run_pages
from exporter.console.runbooks import runbook_pages
from exporter.console.runs_page import runs_pages
from exporter.console.series import series_pages
from exporter.console.signing_in import sign_in_pages
from exporter.console.static_files import static_pages
from exporter.console.visiting import AnyRequest, Console
from exporter.service.admission import Refused

PAGES: Final[Sequence[Callable[[Console], list[HTTPRouteHandler]]]] = (
    sign_in_pages,
    runs_pages,
    incident_pages,
    recovery_pages,
    postmortem_pages,
    audit_pages,
    run_pages,
    series_pages,
    runbook_pages,
)
"""What makes the handlers of each page, or of some that belong together."""


def console(exporter: Exporter, access: Access, bodies: Bodies) -> Sequence[ControllerRouterHandler]:
    """The room of :func:`exporter.app.make_app` with all pages of the console."""
    made = Console(exporter, access, bodies)
    handlers = [handler for pages in PAGES for handler in pages(made)]
    return [guarded(made, [*handlers, *_only_posted(handlers), _nothing(made), *static_pages(made.files)])]


def _only_posted(handlers: Sequence[HTTPRouteHandler]) -> list[HTTPRouteHandler]:
    """A page for each path that takes POST only: somebody loads again what a form led to."""
    read = {path for handler in handlers for path in handler.paths if "GET" in handler.http_methods}
    posted = {path for handler in handlers for path in handler.paths} - read

    @get(sorted(posted))
    async def only_posted(request: AnyRequest) -> Response[bytes]:
        message = N_("This address only takes what a form of the console sends.")
        raise Refused("method_not_allowed", message, status=405)

    return [only_posted] if posted else []


def _nothing(made: Console) -> HTTPRouteHandler:
    @get("/console/{rest:path}")
    async def nothing(request: AnyRequest) -> Response[bytes]:
        made.enter(request)
        raise Refused("not_found", f"There is nothing at {request.url.path}.", status=404)

    return nothing
