"""How answers are written: JSON or msgpack, errors always as :class:`exporter.protocol.ErrorAnswer`."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from exporter.protocol import JSON, MSGPACK, ErrorAnswer
from exporter.service.admission import Refused

log = logging.getLogger("exporter.app")


def spell(data: Any) -> Any:
    """Plain data with every float that is not finite as the string that stands for it, for JSON has none.

    >>> spell({"a": [float("nan"), 1.5, float("-inf")]})
    {'a': ['NaN', 1.5, '-Infinity']}
    """
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else ("Infinity" if data > 0 else "-Infinity")
    if isinstance(data, dict):
        return {key: spell(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [spell(value) for value in data]
    return data


def answer(
    content: Any, *, status: int = 200, media_type: str = JSON, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """Write any of our structs or plain data."""
    if media_type == MSGPACK:
        body = msgspec.msgpack.encode(content)
    else:
        body = msgspec.json.encode(spell(msgspec.to_builtins(content)))
    return Response(body, status_code=status, media_type=media_type, headers=headers)


def wanted_type(request: Request[Any, Any, Any], default: str = JSON) -> str:
    """JSON or msgpack, by the header Accept; ``default`` where it asks for neither."""
    accept = request.headers.get("accept", "").lower()
    if MSGPACK in accept or "application/x-msgpack" in accept:
        return MSGPACK
    return JSON if JSON in accept else default


def refusal(request: Request[Any, Any, Any], refused: Refused) -> Response[bytes]:
    """The answer to a refused request."""
    headers = {"Retry-After": str(refused.retry_after)} if refused.retry_after else {}
    if refused.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="verl-sentinel"'
    content = ErrorAnswer(error=refused.reason, reason=refused.message, where=refused.where)
    return answer(content, status=refused.status, media_type=wanted_type(request), headers=headers)


def http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: no such path, no such method, a query parameter of the wrong type."""
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        reason = f"There is nothing at {path}."
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        reason = f"{path} does not take {request.method}."
    else:
        parts = [
            f"{item.get('key', '')}: {item.get('message', '')}" for item in error.extra or [] if isinstance(item, dict)
        ]
        reason = f"{error.detail.removesuffix('.')}{': ' if parts else ''}{'; '.join(parts)}."
    content = ErrorAnswer(
        error=HTTPStatus(error.status_code).phrase.lower().replace(" ", "_"), reason=reason, where=path
    )
    return answer(content, status=error.status_code, media_type=wanted_type(request))


def fault(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A fault of ours: logged in full, told in brief."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    content = ErrorAnswer(error="internal", reason="The exporter has a fault; its log has the details.")
    return answer(content, status=500, media_type=wanted_type(request), headers={"Retry-After": "5"})
