"""``GET /api/v1/recovery/policy``: which policy holds for a run, and what would be done now. Mounted by
:mod:`exporter.app.routes`.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.app.access import Access
from exporter.app.answers import answer
from exporter.app.lifecycle import Exporter
from exporter.service.admission import Refused

AnyRequest = Request[Any, Any, Any]


def policy_routes(exporter: Exporter, access: Access) -> list[HTTPRouteHandler]:
    """The handler, bound to one exporter."""
    core, clock = exporter.core, exporter.clock

    @get("/api/v1/recovery/policy", sync_to_thread=False)
    def policy(request: AnyRequest, run: str) -> Response[bytes]:
        access.require(request, "operate")
        exporter.require_replayed()
        known = core.find(run)
        if known is None:
            raise Refused("not_found", f"No run {run} has ever pushed.", status=404)
        try:
            return answer(core.engine.explain(core.link.facts_of(known), clock()))
        except sqlite3.Error as error:
            message = f"The recovery store cannot be read: {error}."
            raise Refused("store", message, status=503, retry_after=5) from None

    return [policy]
