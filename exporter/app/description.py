"""The OpenAPI document of the exporter, served at ``/schema/openapi.json``. Made by :mod:`exporter.app.application`.

The schemas come from the types that are decoded and encoded, the bounds from the limits that are in force. What each
operation is for, and what it may answer, stands here; a test compares it with the routes that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.app import views
from exporter.app.access import Access
from exporter.app.lifecycle import Exporter
from exporter.app.notify_route import NOTIFY_PATH, TEST_PATH, Notified
from exporter.app.schemas import NUMBER, REQUESTS, bounded, shown
from exporter.postmortem.writer import FILES
from exporter.protocol import JSON, MSGPACK, PUSH_PATH, ErrorAnswer, PushAnswer
from exporter.recovery.explaining import RunExplained
from exporter.recovery.record import Recovery
from exporter.service.admission import MAX_INTEGER, Limits
from exporter.service.export import MEDIA_TYPES

SCHEMA_PATH = "/schema/openapi.json"
TEXT = "text/plain"
ERRORS = {
    400: "The request is malformed: `where` names the place.",
    401: "No token, or one that is not known.",
    403: "A token of another scope; or none is set and the host's name is not local.",
    404: "There is no such thing.",
    408: "The request had not arrived in full after a minute.",
    409: "It is not in a state in which this can be done.",
    413: "The body is larger than `limits.body_bytes`, as sent or when decompressed.",
    415: "The content type or the encoding is not accepted.",
    429: "A bound is reached: too many runs, senders or requests a second. `Retry-After` says when to come again.",
    500: "A fault of the exporter, which is in its log.",
    502: "A target did not take the message: `reason` says which. Send it again after `Retry-After` seconds; those "
    "that took it are left out then.",
    503: "It cannot be kept now (the disk, or the journal is still being read): nothing was taken over. Keep it, "
    "and send it again after `Retry-After` seconds.",
}

_RUN_ID = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The run's id, percent-encoded as a whole.",
}
_LIMIT = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100},
    "description": "Most entries, the newest first.",
}


def _path(name: str, text: str, *values: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", **({"enum": list(values)} if values else {})}
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text}


class Operation(NamedTuple):
    """One method of one path. ``answer``: a type, or the media types of an answer that is no JSON."""

    tag: str
    summary: str
    scope: str
    answer: type | tuple[str, ...]
    errors: tuple[int, ...]
    parameters: tuple[dict[str, Any], ...] = ()
    body: str = ""
    """Name of the schema of the body."""
    text: str = ""


_READ = (400, 401, 403, 429, 500, 503)
_WRITE = (400, 401, 403, 408, 413, 415, 429, 500, 503)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", PUSH_PATH): Operation(
        "push", "Push one batch", "push", PushAnswer, _WRITE, body="Batch",
        text="It is answered when it is in the journal. `(run.run_id, sender.id, seq)` makes it idempotent: what was "
        "not answered is sent again. In JSON, `\"NaN\"`, `\"Infinity\"` and `\"-Infinity\"` stand for what JSON cannot "
        "say. The body may be compressed (`Content-Encoding: gzip` or `zstd`).",
    ),
    ("POST", "/api/v1/alerts"): Operation(
        "recovery", "Alertmanager's webhook, version 4", "alert", views.AlertsTaken, _WRITE, body="Webhook",
        text="The answer says what became of each alert.",
    ),
    ("POST", NOTIFY_PATH): Operation(
        "notifications", "Alertmanager's webhook as a message to people", "alert", Notified, (*_WRITE, 404, 502),
        (
            {
                "name": "target",
                "in": "query",
                "schema": {"type": "string", "default": ""},
                "description": "Name of one target of the configuration; all where none is named.",
            },
        ),
        body="Notification",
        text="Answered when every target has it. A target that has this very message is not sent it again.",
    ),
    ("POST", TEST_PATH): Operation(
        "notifications", "Send a test message", "operate", Notified, (*_WRITE, 404, 502), body="NotifyTest"
    ),
    ("GET", "/metrics"): Operation(
        "metrics", "Metrics for Prometheus", "", (TEXT, "application/openmetrics-text"), (500,),
        text="By `Accept`; gzipped where `Accept-Encoding` allows it.",
    ),
    ("GET", "/healthz"): Operation("health", "Whether the process answers", "", views.Health, (500,)),
    ("GET", "/readyz"): Operation(
        "health", "Whether pushes are taken and kept", "", views.Readiness, (500,), text="503, with why, where not."
    ),
    ("GET", "/api/v1/runs"): Operation("runs", "All runs", "operate", views.RunList, _READ),
    ("GET", "/api/v1/runs/{run_id}"): Operation(
        "runs", "One run", "operate", views.RunDetail, (*_READ, 404), (_RUN_ID,)
    ),
    ("DELETE", "/api/v1/runs/{run_id}"): Operation(
        "runs", "Forget a run that has ended", "operate", views.Forgotten, (*_READ, 404, 409),
        (
            _RUN_ID,
            {
                "name": "who",
                "in": "query",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
                "description": "Who does so, in printable characters; goes into the audit log.",
            },
        ),
        text="It is removed from memory, journal and history, for good.",
    ),
    ("GET", "/api/v1/runs/{run_id}/steps"): Operation(
        "runs", "The steps of a run as a file", "operate", tuple(MEDIA_TYPES.values()), (*_READ, 404),
        (
            _RUN_ID,
            {
                "name": "format",
                "in": "query",
                "schema": {"type": "string", "enum": ["jsonl", "csv"], "default": "jsonl"},
                "description": "JSONL as verl's `file` logger writes it, or CSV.",
            },
            {
                "name": "attempt",
                "in": "query",
                "schema": {"type": "integer", "minimum": 1, "exclusiveMaximum": MAX_INTEGER},
                "description": "Only steps of this attempt.",
            },
            {
                "name": "all_attempts",
                "in": "query",
                "schema": {"type": "boolean", "default": False},
                "description": "Also steps that a later attempt took back; each line then says of which it is.",
            },
        ),
        text="Metrics of every step under verl's own keys, oldest first.",
    ),
    ("GET", "/api/v1/incidents"): Operation("incidents", "Incidents", "operate", views.IncidentList, _READ),
    ("POST", "/api/v1/incidents/acknowledge"): Operation(
        "incidents", "Say that a person has seen an incident", "operate", views.IncidentView, (*_WRITE, 404),
        body="Acknowledgement",
    ),
    ("GET", "/api/v1/recoveries"): Operation(
        "recovery", "Recoveries", "operate", views.RecoveryList, _READ, (_LIMIT,)
    ),
    ("GET", "/api/v1/recoveries/{recovery_id}"): Operation(
        "recovery", "One recovery", "operate", Recovery, (*_READ, 404), (_path("recovery_id", "Its id."),)
    ),
    ("GET", "/api/v1/recovery/policy"): Operation(
        "recovery", "Which policy holds for a run, and what would be done now", "operate", RunExplained, (*_READ, 404),
        ({"name": "run", "in": "query", "required": True, "schema": {"type": "string"}, "description": "Its id."},),
    ),
    ("GET", "/api/v1/recoveries/{recovery_id}/postmortem"): Operation(
        "recovery", "The post-mortem of a recovery", "operate", ("text/markdown",), (*_READ, 404),
        (_path("recovery_id", "Its id."),),
        text="Markdown. Written when the recovery has ended; until then there is none (404). Pictures that it names "
        "are beside it.",
    ),
    ("GET", "/api/v1/recoveries/{recovery_id}/postmortem/{name}"): Operation(
        "recovery", "A file of a post-mortem", "operate", ("text/markdown", "image/png"), (*_READ, 404),
        (_path("recovery_id", "Its id."), _path("name", "Of the file.", *FILES)),
    ),
    ("POST", "/api/v1/recoveries/{recovery_id}/{decision}"): Operation(
        "recovery", "Decide on a recovery", "operate", Recovery, (*_WRITE, 404, 409),
        (
            _path("recovery_id", "Its id."),
            _path("decision", "What is decided.", "approve", "refuse", "abort", "acknowledge"),
        ),
        body="Person",
    ),
    ("GET", "/api/v1/audit"): Operation("recovery", "The audit log", "operate", views.AuditLog, _READ, (_LIMIT,)),
    ("GET", SCHEMA_PATH): Operation("schema", "This document", "", (JSON,), (500,)),
}  # fmt: skip


def describe(handlers: Iterable[HTTPRouteHandler], exporter: Exporter, access: Access) -> HTTPRouteHandler:
    """The route that serves the document of these handlers, of the push path, and of itself."""

    @get(SCHEMA_PATH, sync_to_thread=False)
    def schema() -> Response[bytes]:
        return Response(body, media_type=JSON)

    served = [("POST", PUSH_PATH), *operations_of([*handlers, schema])]
    open_scopes = {scope for scope, tokens in access.tokens.by_scope.items() if not tokens}
    body = msgspec.json.encode(document(served, exporter.version, exporter.config.limits, open_scopes))
    return schema


def operations_of(handlers: Iterable[HTTPRouteHandler]) -> list[tuple[str, str]]:
    """Method and path, as OpenAPI spells it, of each handler."""
    return sorted(
        (str(method), "/".join(_spelled(part) for part in path.split("/")))
        for handler in handlers
        for path in handler.paths
        for method in handler.http_methods
    )


def _spelled(part: str) -> str:
    return f"{part.partition(':')[0]}}}" if part.startswith("{") and ":" in part else part


def document(
    served: Iterable[tuple[str, str]], version: str, limits: Limits, open_scopes: Iterable[str] = ()
) -> dict[str, Any]:
    """The whole document.

    Args:
        served: method and path of what is there.
        version: of the exporter.
        limits: in force.
        open_scopes: scopes for which no token is set.
    """
    answers = [it.answer for it in OPERATIONS.values() if isinstance(it.answer, type)]
    answered, names = shown([*answers, ErrorAnswer])
    paths: dict[str, dict[str, Any]] = {}
    for method, path in served:
        operation = OPERATIONS[method, path]
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, names, set(open_scopes))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "verl-sentinel exporter",
            "version": version,
            "description": "Takes what training runs push, and answers what people and programs ask. Errors are "
            "always an `ErrorAnswer`. Every GET can be asked for as HEAD.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Number": NUMBER, **bounded(limits), **answered},
            "securitySchemes": {
                f"{scope}Token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"A token of scope {scope} (`tokens.{scope}` of the configuration).",
                }
                for scope in ("push", "alert", "operate")
            },
        },
    }


def _operation(
    method: str, path: str, it: Operation, names: Mapping[type, str], open_scopes: set[str]
) -> dict[str, Any]:
    words = [method.lower(), *(part.strip("{}") for part in path.split("/") if part)]
    described: dict[str, Any] = {
        "operationId": "_".join(words).replace(".", "_"),
        "summary": it.summary + (f" (scope {it.scope})" if it.scope else ""),
        "tags": [it.tag],
        "responses": {"200": _answer(it, names), **{str(code): _error(code, it) for code in sorted(it.errors)}},
    }
    if it.text:
        described["description"] = it.text
    if it.parameters:
        described["parameters"] = list(it.parameters)
    if it.scope:
        described["security"] = [{f"{it.scope}Token": []}, *([{}] if it.scope in open_scopes else [])]
    if it.body:
        types = (MSGPACK, "application/x-msgpack", JSON) if it.body == "Batch" else (JSON,)
        schema = {"$ref": f"#/components/schemas/{REQUESTS[it.body]}"}
        described["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in types}}
    if it.answer is views.Readiness:
        described["responses"]["503"] = {**described["responses"]["200"], "description": "Not ready, and why."}
    return described


def _answer(it: Operation, names: Mapping[type, str]) -> dict[str, Any]:
    if not isinstance(it.answer, type):
        kind = "object" if it.answer == (JSON,) else "string"
        return {"description": it.summary, "content": {media: {"schema": {"type": kind}} for media in it.answer}}
    schema = {"$ref": f"#/components/schemas/{names[it.answer]}"}
    types = (JSON, MSGPACK) if it.answer is PushAnswer else (JSON,)
    return {"description": it.summary, "content": {kind: {"schema": schema} for kind in types}}


def _error(code: int, it: Operation) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ErrorAnswer"}
    answer: dict[str, Any] = {
        "description": ERRORS[code],
        "content": {kind: {"schema": schema} for kind in (JSON, MSGPACK)},
    }
    if code in (429, 502, 503):
        text = "Seconds to wait before it is sent again."
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": text}}
    return answer
