"""The HTTP routes: push, alerts, metrics, health, and the API for operators. Mounted by :mod:`exporter.app`."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from prometheus_client.exposition import choose_encoder

from exporter.app.access import Access, content_type, read_body
from exporter.app.answers import answer, wanted_type
from exporter.app.lifecycle import Exporter
from exporter.app.views import all_incidents, incident_view, run_detail, run_view
from exporter.incidents import Incident
from exporter.protocol import JSON, MSGPACK, PUSH_PATH, PushAnswer, decode_batch, protocol_of
from exporter.recovery.alertmanager import alerts_from_webhook
from exporter.recovery.engine import WrongStage
from exporter.recovery.record import Recovery
from exporter.service.admission import Refused, check_protocol

AnyRequest = Request[Any, Any, Any]

PUSH_TYPES = {MSGPACK: MSGPACK, "application/x-msgpack": MSGPACK, JSON: JSON}
JSON_ONLY = {JSON: JSON}
SMALL_BODY = 1024 * 1024
"""Most bytes of a webhook or of an operator's request."""

NON_FINITE_IN_JSON = 'JSON has no NaN: a metric is a number, or the string "NaN", "Infinity" or "-Infinity".'
_BARE_NON_FINITE = re.compile(rb"[:,\[]\s*-?(NaN|Infinity)\b")

_T = TypeVar("_T")


class Person(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who decides; goes into the audit log."""

    who: str


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which incident is acknowledged, and by whom."""

    id: str
    who: str


def decoded(decode: Callable[[], _T]) -> _T:
    """What ``decode`` gives; raises :class:`Refused` with msgspec's message, which ends with the path of the field."""
    try:
        return decode()
    except RecursionError:
        raise Refused("malformed", "The body is nested too deeply to be read.", where="body") from None
    except msgspec.DecodeError as error:
        raise malformed(error) from None


def malformed(error: msgspec.DecodeError) -> Refused:
    message, _, place = str(error).partition(" - at `")
    where = place.rstrip("`") or ("$" if isinstance(error, msgspec.ValidationError) else "body")
    return Refused("malformed", f"The body is not what is expected: {message.removesuffix('.')}.", where=where)


def routes(exporter: Exporter, access: Access) -> list[HTTPRouteHandler]:
    """All handlers, bound to one exporter."""
    core, ingest, clock = exporter.core, exporter.ingest, exporter.clock

    @post(PUSH_PATH, status_code=200, summary="Push one batch (scope push)", tags=["push"])
    async def push(request: AnyRequest) -> Response[bytes]:
        """The body is one `Batch` of the wire protocol, as msgpack or JSON. It is answered when it is on disk."""
        began = time.perf_counter()
        access.require(request, "push")
        kind = content_type(request, PUSH_TYPES)
        body = await read_body(request, exporter.config.limits.body_bytes)
        exporter.require_replayed()
        try:
            batch = decoded(lambda: decode_batch(body, kind))
        except Refused as refused:
            # Of another version the whole shape may be another; what has to be said then is that, not the field.
            if (version := protocol_of(body, kind)) is not None:
                check_protocol(version)
            if kind == JSON and (".metrics[" in refused.where or _BARE_NON_FINITE.search(body)):
                raise Refused("malformed", f"{refused} {NON_FINITE_IN_JSON}", where=refused.where) from None
            raise
        done: asyncio.Future[PushAnswer | Refused] = asyncio.get_running_loop().create_future()
        core.submit(batch, clock(), partial(settle, done))
        result = await settled(done)
        ingest.answered += 1
        ingest.seconds += time.perf_counter() - began
        return answer(result, media_type=wanted_type(request, default=kind))

    @post("/api/v1/alerts", status_code=200, summary="Alertmanager's webhook (scope alert)", tags=["recovery"])
    async def alerts(request: AnyRequest) -> Response[bytes]:
        """Takes Alertmanager's webhook, version 4; the answer says what became of each alert."""
        access.require(request, "alert")
        content_type(request, JSON_ONLY)
        body = await read_body(request, SMALL_BODY)
        exporter.require_replayed()
        received = decoded(lambda: alerts_from_webhook(body))
        try:
            decisions = [core.alert(alert, clock()) for alert in received]
        except sqlite3.Error as error:
            raise store_failed(error) from None
        named = zip(received, decisions, strict=True)
        return answer({"alerts": [{"fingerprint": a.fingerprint, **msgspec.to_builtins(d)} for a, d in named]})

    @get("/metrics", summary="Metrics for Prometheus", tags=["metrics"], sync_to_thread=False)
    def metrics(request: AnyRequest) -> Response[bytes]:
        encoder, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(exporter.registry), media_type=media_type)

    @get("/healthz", summary="Whether the process answers", tags=["health"], sync_to_thread=False)
    def healthz() -> Response[bytes]:
        return answer({"status": "ok", "version": exporter.version})

    @get("/readyz", summary="Whether pushes are taken and kept", tags=["health"], sync_to_thread=False)
    def readyz() -> Response[bytes]:
        reasons = exporter.reasons_not_ready()
        return answer({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    @get("/api/v1/runs", summary="All runs (scope operate)", tags=["runs"], sync_to_thread=False)
    def runs(request: AnyRequest) -> Response[bytes]:
        read(request)
        return answer({"runs": [run_view(run, clock()) for run in core.runs.values()]})

    @get("/api/v1/runs/{run_id:path}", summary="One run (scope operate)", tags=["runs"], sync_to_thread=False)
    def run(request: AnyRequest, run_id: str) -> Response[bytes]:
        read(request)
        found = core.runs.get(run_id.removeprefix("/"))
        if found is None:
            raise Refused("not_found", f"No run {run_id.removeprefix('/')} has ever pushed.", status=404)
        return answer(run_detail(found, clock()))

    @get("/api/v1/incidents", summary="Incidents (scope operate)", tags=["incidents"], sync_to_thread=False)
    def incidents(request: AnyRequest) -> Response[bytes]:
        read(request)
        return answer({"incidents": all_incidents(core)})

    @post("/api/v1/incidents/acknowledge", status_code=200, summary="Acknowledge (scope operate)", tags=["incidents"])
    async def acknowledge_incident(request: AnyRequest) -> Response[bytes]:
        body = await operator_body(request)
        given = decoded(lambda: msgspec.json.decode(body, type=Acknowledgement))
        done: asyncio.Future[Incident | Refused] = asyncio.get_running_loop().create_future()
        core.acknowledge(given.id, person(given.who), clock(), partial(settle, done))
        return answer(incident_view(await settled(done)))

    @get("/api/v1/recoveries", summary="Recoveries (scope operate)", tags=["recovery"], sync_to_thread=False)
    def recoveries(request: AnyRequest, limit: int = Parameter(default=100, ge=1, le=10_000)) -> Response[bytes]:
        read(request)
        return answer({"recoveries": core.engine.recoveries(limit)})

    @get("/api/v1/recoveries/{recovery_id:str}", summary="One recovery", tags=["recovery"], sync_to_thread=False)
    def recovery(request: AnyRequest, recovery_id: str) -> Response[bytes]:
        read(request)
        found = core.engine.get(recovery_id)
        if found is None:
            raise no_recovery(recovery_id)
        return answer(found)

    @post("/api/v1/recoveries/{recovery_id:str}/{decision:str}", status_code=200, tags=["recovery"])
    async def decide(request: AnyRequest, recovery_id: str, decision: str) -> Response[bytes]:
        """`decision` is approve, refuse or acknowledge; the body says who decides (scope operate)."""
        body = await operator_body(request)
        who = person(decoded(lambda: msgspec.json.decode(body, type=Person)).who)
        decisions = {
            "approve": core.engine.approve,
            "refuse": core.engine.refuse,
            "acknowledge": core.engine.acknowledge,
        }
        if decision not in decisions:
            message = f"{decision} is no decision: approve, refuse or acknowledge is."
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

    @get("/api/v1/audit", summary="The audit log (scope operate)", tags=["recovery"], sync_to_thread=False)
    def audit(request: AnyRequest, limit: int = Parameter(default=100, ge=1, le=10_000)) -> Response[bytes]:
        read(request)
        return answer({"audit": core.engine.audit(limit)})

    def read(request: AnyRequest) -> None:
        access.require(request, "operate")
        exporter.require_replayed()

    async def operator_body(request: AnyRequest) -> bytes:
        access.require(request, "operate")
        # A page in somebody's browser cannot send this type to another origin without asking first.
        content_type(request, JSON_ONLY)
        body = await read_body(request, SMALL_BODY)
        exporter.require_replayed()
        return body

    return [
        push, alerts, metrics, healthz, readyz, runs, run, incidents, acknowledge_incident,
        recoveries, recovery, decide, audit,
    ]  # fmt: skip


def settle(done: asyncio.Future[_T | Refused], result: _T | Refused) -> None:
    """Hand over what the core answered; whoever asked may be gone by then."""
    if not done.done():
        done.set_result(result)


async def settled(done: asyncio.Future[_T | Refused]) -> _T:
    result = await done
    if isinstance(result, Refused):
        raise result
    return result


def person(who: str) -> str:
    if not who.strip() or len(who) > 200 or not who.isprintable():
        message = "Say who decides, in 1 to 200 printable characters: it goes into the audit log."
        raise Refused("malformed", message, where="$.who")
    return who.strip()


def no_recovery(recovery_id: str) -> Refused:
    return Refused("not_found", f"There is no recovery {recovery_id}.", status=404)


def store_failed(error: sqlite3.Error) -> Refused:
    message = f"The recovery store cannot be written: {error}. Nothing was done; send it again."
    return Refused("store", message, status=503, retry_after=5)
