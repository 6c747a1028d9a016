"""The HTTP routes: alerts, metrics, health, and the API for operators. Mounted by :mod:`exporter.app`."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from exporter.app.access import Access
from exporter.app.answers import answer
from exporter.app.asked import Acknowledgement, Person, decoded, person, settle, settled
from exporter.app.bodies import Bodies, content_type
from exporter.app.lifecycle import Exporter
from exporter.app.notify_route import notify_routes
from exporter.app.policy_route import policy_routes
from exporter.app.postmortem_routes import postmortem_routes
from exporter.app.run_routes import run_routes
from exporter.app.views import (
    AlertsTaken,
    AlertTaken,
    AuditLog,
    Health,
    IncidentList,
    Readiness,
    RecoveryList,
    RunList,
    all_incidents,
    all_situations,
    dormant_view,
    incident_view,
    run_view,
)
from exporter.incidents import Incident
from exporter.protocol import JSON
from exporter.recovery.alertmanager import alerts_from_webhook
from exporter.recovery.engine import WrongStage
from exporter.recovery.record import Recovery
from exporter.service.admission import Refused

AnyRequest = Request[Any, Any, Any]

JSON_ONLY = {JSON: JSON}
SMALL_BODY = 1024 * 1024
"""Most bytes of a webhook or of an operator's request."""


def routes(exporter: Exporter, access: Access, bodies: Bodies) -> list[HTTPRouteHandler]:
    """All handlers but the one for pushes (:mod:`exporter.app.push`), bound to one exporter."""
    core, clock = exporter.core, exporter.clock

    @post("/api/v1/alerts", status_code=200)
    async def alerts(request: AnyRequest) -> Response[bytes]:
        access.require(request, "alert")
        content_type(request.headers, JSON_ONLY)
        body = await bodies.read(request.receive, request.headers, SMALL_BODY)
        exporter.require_replayed()
        received = decoded(lambda: alerts_from_webhook(body))
        try:
            decisions = [core.alert(alert, clock()) for alert in received]
        except sqlite3.Error as error:
            raise store_failed(error) from None
        named = zip(received, decisions, strict=True)
        taken = [
            AlertTaken(fingerprint=a.fingerprint, outcome=d.outcome, reason=d.reason, recovery_id=d.recovery_id)
            for a, d in named
        ]
        return answer(AlertsTaken(alerts=taken))

    @get("/metrics")
    async def metrics(request: AnyRequest) -> Response[bytes]:
        """Prometheus text or OpenMetrics by `Accept`, gzipped where `Accept-Encoding` allows it."""
        headers = request.headers
        page = await exporter.exposition.scrape(headers.get("accept", ""), headers.get("accept-encoding", ""))
        # Given as a header: as a media type Litestar would add a second charset to it.
        return Response(page.body, headers={**page.headers, "content-type": page.content_type})

    @get("/healthz", sync_to_thread=False)
    def healthz() -> Response[bytes]:
        return answer(Health(status="ok", version=exporter.version))

    @get("/readyz", sync_to_thread=False)
    def readyz() -> Response[bytes]:
        reasons = exporter.reasons_not_ready()
        return answer(Readiness(ready=not reasons, reasons=reasons), status=503 if reasons else 200)

    @get("/api/v1/runs", sync_to_thread=False)
    def runs(request: AnyRequest) -> Response[bytes]:
        read(request)
        awake = [run_view(run, clock()) for run in core.runs.values()]
        return answer(RunList(runs=[*awake, *map(dormant_view, core.roster.dormant.values())]))

    @get("/api/v1/incidents", sync_to_thread=False)
    def incidents(request: AnyRequest) -> Response[bytes]:
        read(request)
        return answer(IncidentList(incidents=all_incidents(core), situations=all_situations(core)))

    @post("/api/v1/incidents/acknowledge", status_code=200)
    async def acknowledge_incident(request: AnyRequest) -> Response[bytes]:
        body = await operator_body(request)
        given = decoded(lambda: msgspec.json.decode(body, type=Acknowledgement))
        done: asyncio.Future[Incident | Refused] = asyncio.get_running_loop().create_future()
        core.acknowledge(given.id, person(given.who), clock(), partial(settle, done))
        return answer(incident_view(await settled(done)))

    @get("/api/v1/recoveries", sync_to_thread=False)
    def recoveries(request: AnyRequest, limit: int = Parameter(default=100, ge=1, le=10_000)) -> Response[bytes]:
        read(request)
        return answer(RecoveryList(recoveries=core.engine.recoveries(limit)))

    @get("/api/v1/recoveries/{recovery_id:str}", sync_to_thread=False)
    def recovery(request: AnyRequest, recovery_id: str) -> Response[bytes]:
        read(request)
        found = core.engine.get(recovery_id)
        if found is None:
            raise no_recovery(recovery_id)
        return answer(found)

    @post("/api/v1/recoveries/{recovery_id:str}/{decision:str}", status_code=200)
    async def decide(request: AnyRequest, recovery_id: str, decision: str) -> Response[bytes]:
        """`decision` is approve, refuse, abort or acknowledge; the body says who decides (scope operate)."""
        body = await operator_body(request)
        who = person(decoded(lambda: msgspec.json.decode(body, type=Person)).who)
        decisions = {
            "approve": core.engine.approve,
            "refuse": core.engine.refuse,
            "abort": core.engine.abort,
            "acknowledge": core.engine.acknowledge,
        }
        if decision not in decisions:
            message = f"{decision} is no decision: approve, refuse, abort or acknowledge is."
            raise Refused("not_found", message, status=404)
        try:
            decided: Recovery = decisions[decision](recovery_id, who, clock())
        except KeyError:
            raise no_recovery(recovery_id) from None
        except WrongStage as error:
            raise Refused("wrong_stage", str(error), status=409) from None
        except sqlite3.Error as error:
            raise store_failed(error) from None
        return answer(decided)

    @get("/api/v1/audit", sync_to_thread=False)
    def audit(request: AnyRequest, limit: int = Parameter(default=100, ge=1, le=10_000)) -> Response[bytes]:
        read(request)
        return answer(AuditLog(audit=core.engine.audit(limit)))

    def read(request: AnyRequest) -> None:
        access.require(request, "operate")
        exporter.require_replayed()

    async def operator_body(request: AnyRequest) -> bytes:
        access.require(request, "operate")
        # A page in somebody's browser cannot send this type to another origin without asking first.
        content_type(request.headers, JSON_ONLY)
        body = await bodies.read(request.receive, request.headers, SMALL_BODY)
        exporter.require_replayed()
        return body

    return [
        *run_routes(exporter, access), *postmortem_routes(exporter, access), *notify_routes(exporter, access, bodies),
        alerts,
        metrics, healthz, readyz, runs, incidents, acknowledge_incident,
        recoveries, recovery, decide, audit, *policy_routes(exporter, access),
    ]  # fmt: skip


def no_recovery(recovery_id: str) -> Refused:
    return Refused("not_found", f"There is no recovery {recovery_id}.", status=404)


def store_failed(error: sqlite3.Error) -> Refused:
    message = f"The recovery store cannot be written: {error}. Nothing was done; send it again."
    return Refused("store", message, status=503, retry_after=5)
