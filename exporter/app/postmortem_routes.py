"""The routes of post-mortems: the text, and the files beside it. Mounted by :mod:`exporter.app.routes`."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.app.access import Access
from exporter.app.lifecycle import Exporter
from exporter.postmortem.writer import FILES
from exporter.postmortem.writing import TEXT_NAME
from exporter.service.admission import Refused

AnyRequest = Request[Any, Any, Any]


def postmortem_routes(exporter: Exporter, access: Access) -> list[HTTPRouteHandler]:
    """The handlers, bound to one exporter."""

    @get("/api/v1/recoveries/{recovery_id:str}/postmortem", sync_to_thread=True)
    def postmortem(request: AnyRequest, recovery_id: str) -> Response[bytes]:
        return one(request, recovery_id, TEXT_NAME)

    @get("/api/v1/recoveries/{recovery_id:str}/postmortem/{name:str}", sync_to_thread=True)
    def file(request: AnyRequest, recovery_id: str, name: str) -> Response[bytes]:
        return one(request, recovery_id, name)

    def one(request: AnyRequest, recovery_id: str, name: str) -> Response[bytes]:
        access.require(request, "operate")
        exporter.require_replayed()
        body = exporter.postmortems.file(recovery_id, name)
        if body is None:
            raise no_postmortem(recovery_id)
        # As a header: to a media type Litestar would add a second charset.
        headers = {"Content-Type": FILES[name], "X-Content-Type-Options": "nosniff"}
        return Response(body, headers=headers)

    return [postmortem, file]


def no_postmortem(recovery_id: str) -> Refused:
    message = f"There is no post-mortem of recovery {recovery_id}: it is written when the recovery has ended."
    return Refused("not_found", message, status=404)
