"""Who may do what: bearer tokens by scope, and how a body is read. Called by every route that is not open."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Literal

from litestar import Request

from exporter.service.admission import Refused

Scope = Literal["push", "alert", "operate"]

DRAIN_BYTES = 64 * 1024 * 1024
"""A body that is too large is read to its end up to here, so that the sender gets to see why it was refused."""


class Access:
    """Checks bearer tokens. ``tokens`` by scope; a scope without tokens is open."""

    def __init__(self, tokens: Mapping[str, tuple[str, ...]]) -> None:
        self._tokens = {scope: tuple(token.encode() for token in found) for scope, found in tokens.items()}

    def require(self, request: Request[Any, Any, Any], scope: Scope) -> None:
        """Raise :class:`Refused` (401, or 403 for a token of another scope) where the request may not do this."""
        wanted = self._tokens.get(scope, ())
        if not wanted:
            _require_local_name(request, scope)
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given.strip():
            raise Refused(
                "token",
                f"This needs a token of scope {scope}: send it as 'Authorization: Bearer <token>'.",
                where="header Authorization",
                status=401,
            )
        token = given.strip().encode()
        if _matches(token, wanted):
            return
        others = [other for other, tokens in self._tokens.items() if other != scope and _matches(token, tokens)]
        if others:
            message = f"This token is of scope {others[0]}, and this needs one of scope {scope}."
            raise Refused("token", message, where="header Authorization", status=403)
        message = f"The token is not one of those that are set for scope {scope}."
        raise Refused("token", message, where="header Authorization", status=401)


def _require_local_name(request: Request[Any, Any, Any], scope: Scope) -> None:
    """What is open without a token is open to programs here, not to a web page whose name was made to point here."""
    host = request.headers.get("host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in ("", "localhost", "::1") and not name.startswith("127."):
        message = f"It was asked for as {name!r}: without a token of scope {scope} only localhost may ask."
        raise Refused("host", message, where="header Host", status=403)


def _matches(token: bytes, known: tuple[bytes, ...]) -> bool:
    """Compare with every known token, in a time that does not tell which one or how much of it was right."""
    found = False
    for one in known:
        found |= hmac.compare_digest(token, one)
    return found


def content_type(request: Request[Any, Any, Any], accepted: Mapping[str, str]) -> str:
    """The canonical content type of the body; raises :class:`Refused` (415) for one that is not ``accepted``."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"The body is encoded as {encoding!r}: send it as it is."
        raise Refused("content_type", message, where="header Content-Encoding", status=415)
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in accepted:
        expected = " or ".join(dict.fromkeys(accepted.values()))
        message = f"The content type is {given or 'not set'}: {expected} is expected."
        raise Refused("content_type", message, where="header Content-Type", status=415)
    return accepted[given]


async def read_body(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The body, at most ``limit`` bytes; raises :class:`Refused` (413) for a larger one."""
    chunks: list[bytes] = []
    size = 0
    announced = request.headers.get("content-length", "")
    too_large = announced.isdecimal() and int(announced) > limit
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            too_large = True
            chunks.clear()
        if too_large and size > DRAIN_BYTES:
            break
        if not too_large:
            chunks.append(chunk)
    if too_large:
        shown = announced if announced.isdecimal() else f"more than {limit}"
        raise Refused(
            "too_large",
            f"The body has {shown} bytes, at most {limit} are accepted (limits.body_bytes): send fewer steps a push.",
            where="body",
            status=413,
        )
    return b"".join(chunks)
