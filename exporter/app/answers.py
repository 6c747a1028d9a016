"""How answers are written: JSON or msgpack, errors always as :class:`exporter.protocol.ErrorAnswer`.

The push path writes its answers by itself (:mod:`exporter.app.push`), all others through Litestar. Both use what is
here, so that an error looks the same wherever it comes from.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import Send

from exporter.protocol import JSON, MSGPACK, ErrorAnswer
from exporter.service.admission import Refused

log = logging.getLogger("exporter.app")


class Headers(Protocol):
    """The headers of a request, by their name in small letters."""

    def get(self, name: str, default: str, /) -> str: ...


class RawHeaders:
    """:class:`Headers` of an ASGI scope."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = dict(raw)

    def get(self, name: str, default: str = "", /) -> str:
        value = self._raw.get(name.encode())
        return default if value is None else value.decode("latin-1")


class Written(NamedTuple):
    """An answer in bytes."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str] = {}

    def response(self) -> Response[bytes]:
        """For Litestar."""
        return Response(self.body, status_code=self.status, media_type=self.media_type, headers=dict(self.headers))

    async def send(self, send: Send) -> None:
        """Without Litestar."""
        headers = [
            (b"content-type", self.media_type.encode()),
            (b"content-length", b"%d" % len(self.body)),
            *((name.lower().encode(), value.encode("latin-1", "replace")) for name, value in self.headers.items()),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


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


def write(
    content: Any, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
) -> Written:
    """Write any of our structs or plain data."""
    if media_type == MSGPACK:
        body = msgspec.msgpack.encode(content)
    else:
        body = msgspec.json.encode(spell(msgspec.to_builtins(content)))
    return Written(status, media_type, body, headers or {})


def answer(
    content: Any, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
) -> Response[bytes]:
    """:func:`write`, for Litestar."""
    return write(content, status=status, media_type=media_type, headers=headers).response()


def wanted_type(headers: Headers, default: str = JSON) -> str:
    """JSON or msgpack, by the header Accept; ``default`` where it asks for neither."""
    accept = headers.get("accept", "").lower()
    if MSGPACK in accept or "application/x-msgpack" in accept:
        return MSGPACK
    return JSON if JSON in accept else default


def refusal(headers: Headers, refused: Refused) -> Written:
    """The answer to a refused request."""
    more = {"Retry-After": str(refused.retry_after)} if refused.retry_after else {}
    if refused.status == HTTPStatus.UNAUTHORIZED:
        more["WWW-Authenticate"] = 'Bearer realm="verl-sentinel"'
    elif refused.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        more["Accept-Encoding"] = "gzip, zstd"
    content = ErrorAnswer(error=refused.reason, reason=refused.message, where=refused.where)
    return write(content, status=refused.status, media_type=wanted_type(headers), headers=more)


def wrong_method(headers: Headers, path: str, method: str, allowed: str) -> Written:
    """The answer to a method that the path does not take. ``allowed``: those that it takes."""
    content = ErrorAnswer(error="method_not_allowed", reason=f"{path} does not take {method}.", where=path)
    return write(content, status=405, media_type=wanted_type(headers), headers={"Allow": allowed} if allowed else {})


def http_error(request: Request[Any, Any, Any], error: HTTPException) -> Written:
    """What Litestar itself refuses: no such path, no such method, a query parameter of the wrong type."""
    path = request.url.path
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = {name.lower(): value for name, value in (error.headers or {}).items()}.get("allow", "")
        return wrong_method(request.headers, path, request.method, allowed)
    if error.status_code == HTTPStatus.NOT_FOUND:
        reason = f"There is nothing at {path}."
    else:
        parts = [
            f"{item.get('key', '')}: {item.get('message', '')}" for item in error.extra or [] if isinstance(item, dict)
        ]
        # Not Litestar's own words: they repeat the query, and somebody may have put a token there.
        reason = f"The query or the path is not what is expected{': ' if parts else ''}{'; '.join(parts)}."
    content = ErrorAnswer(
        error=HTTPStatus(error.status_code).phrase.lower().replace(" ", "_"), reason=reason, where=path
    )
    return write(content, status=error.status_code, media_type=wanted_type(request.headers))


def fault(headers: Headers, what: str, error: Exception) -> Written:
    """A fault of ours: logged in full, told in brief. ``what``: the route, without what the request put into it."""
    log.error("%s failed", what, exc_info=error)
    content = ErrorAnswer(error="internal", reason="The exporter has a fault; its log has the details.")
    return write(content, status=500, media_type=wanted_type(headers), headers={"Retry-After": "5"})
