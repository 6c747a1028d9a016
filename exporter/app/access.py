"""Who may do what: bearer tokens by scope. Called by every route that is not open.

Failed attempts are limited by the address they come from. A right token is let in however many wrong ones came from
the same address: behind one address may stand a whole training cluster, and one of its members must not be able to
lock the others out.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from litestar import Request

from exporter.app.answers import Headers
from exporter.app.tokens import LiveTokens
from exporter.service.admission import Refused

log = logging.getLogger("exporter.access")

Scope = Literal["push", "alert", "operate"]

FAILURES = 30
"""Failed attempts of one address that are answered in full, in any :data:`FAILURE_SECONDS`."""
FAILURE_SECONDS = 60.0
MAX_ADDRESSES = 4096
LOG_SECONDS = 60.0
"""Refused attempts are told in the log at most once in this time, with their number."""


class Access:
    """Checks bearer tokens; a scope without tokens is open, to programs of this machine.

    Args:
        tokens: those in force.
        monotonic: seconds.
    """

    def __init__(self, tokens: LiveTokens, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.tokens = tokens
        self._failures = Failures(monotonic)

    def require(self, request: Request[Any, Any, Any], scope: Scope) -> None:
        """:meth:`check`, for a request of Litestar."""
        self.check(request.headers, request.client.host if request.client else "", scope)

    def check(self, headers: Headers, peer: str, scope: Scope) -> None:
        """Raise :class:`Refused` where the request may not do this.

        401 without a right token, 403 for a token of another scope or a foreign name for this machine, 429 after too
        many of these from one address (``peer``).
        """
        wanted = self.tokens.of(scope)
        if not wanted:
            _require_local_name(headers, scope)
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1", "replace") if kind.lower() == "bearer" else b""
        if token and _matches(token, wanted):
            return
        self._failures.note(peer, scope)
        if not token:
            raise Refused(
                "token",
                f"This needs a token of scope {scope}: send it as 'Authorization: Bearer <token>'.",
                where="header Authorization",
                status=401,
            )
        others = [other for other in self.tokens.by_scope if other != scope and _matches(token, self.tokens.of(other))]
        if others:
            message = f"This token is of scope {others[0]}, and this needs one of scope {scope}."
            raise Refused("token", message, where="header Authorization", status=403)
        message = f"The token is not one of those that are set for scope {scope}."
        raise Refused("token", message, where="header Authorization", status=401)


class Failures:
    """Failed attempts by address: each has a bucket that fills up again in :data:`FAILURE_SECONDS`."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._told_at = -LOG_SECONDS
        self._untold = 0

    def note(self, peer: str, scope: str) -> None:
        """One more; raises :class:`Refused` (429) where it is one too many."""
        now, address = self._monotonic(), _network(peer)
        level, at = self._buckets.pop(address, (0.0, now))
        level = max(0.0, level - (now - at) * FAILURES / FAILURE_SECONDS)
        self._untold += 1
        if now - self._told_at >= LOG_SECONDS:
            count, self._untold, self._told_at = self._untold, 0, now
            log.warning("Refused for want of a right token: %d, the newest from %s for scope %s", count, peer, scope)
        over = level + 1 > FAILURES
        self._buckets[address] = (level if over else level + 1, now)
        while len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        if over:
            raise Refused(
                "too_many_failures",
                f"More than {FAILURES} requests without a right token came from {address} in a minute. "
                "One with a right token is taken at any time.",
                where="header Authorization",
                status=429,
                retry_after=int(FAILURE_SECONDS / FAILURES) + 1,
            )


def _network(peer: str) -> str:
    """The address, or of an IPv6 address the /64: one machine has all of that."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return "an unknown address"
    if isinstance(address, ipaddress.IPv4Address):
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def _require_local_name(headers: Headers, scope: Scope) -> None:
    """What is open without a token is open to programs here, not to a web page whose name was made to point here."""
    host = headers.get("host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in ("", "localhost", "::1") and not name.startswith("127."):
        message = f"It was asked for as {name[:100]!r}: without a token of scope {scope} only localhost may ask."
        raise Refused("host", message, where="header Host", status=403)


def _matches(token: bytes, known: tuple[bytes, ...]) -> bool:
    """Compare with every known token, in a time that does not tell which one or how much of it was right."""
    found = False
    for one in known:
        found |= hmac.compare_digest(token, one)
    return found
