"""How answers of the console leave: their security headers, caching, compression. Used by every page."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from litestar import Request, Response
from litestar.datastructures import Cookie

from exporter.service.exposition.negotiation import takes_gzip

AnyRequest = Request[Any, Any, Any]

HTML: Final = "text/html; charset=utf-8"
GZIP_LEVEL: Final = 1
GZIP_FROM_BYTES: Final = 1400
"""What fits into one packet is not compressed."""

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""On every answer, also those that are no page."""


@dataclass
class Sent:
    """An answer in the making."""

    body: bytes
    media_type: str = HTML
    status: int = 200
    cache: str = "no-store"
    headers: dict[str, str] = field(default_factory=dict)
    cookies: Sequence[Cookie] = ()

    async def response(self, request: AnyRequest) -> Response[bytes]:
        """For Litestar; compressed where the browser takes it, on a thread."""
        body = self.body
        headers = {**HEADERS, "Cache-Control": self.cache, "Vary": "Accept-Encoding, Cookie, Accept-Language"}
        if len(body) >= GZIP_FROM_BYTES and takes_gzip(request.headers.get("accept-encoding", "")):
            body = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        # The type goes as a header: as a media type Litestar would add a second charset to it.
        headers |= {"Content-Type": self.media_type, **self.headers}
        return Response(body, status_code=self.status, headers=headers, cookies=list(self.cookies))


def see_other(location: str, cookies: Sequence[Cookie] = ()) -> Response[bytes]:
    """To another page, by GET. ``location``: a path, percent-encoded."""
    headers = {**HEADERS, "Cache-Control": "no-store", "Location": location}
    return Response(b"", status_code=303, headers=headers, cookies=list(cookies))
