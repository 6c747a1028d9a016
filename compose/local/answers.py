"""Whether a program of this machine answers. For :mod:`compose.local` and :mod:`demo.client`."""

from __future__ import annotations

import http.client
import socket
import urllib.request

# Everything is on loopback, which a proxy of the user's must not see.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def text_of(url: str, seconds: float = 5.0) -> str | None:
    """What a GET of ``url`` gives with status 200; None where nothing, or nothing sound, answers."""
    try:
        with _direct.open(url, timeout=seconds) as answer:
            return answer.read().decode("utf-8", "replace") if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None


def answers(url: str) -> bool:
    """Whether a GET of ``url`` gives status 200 now."""
    return text_of(url) is not None


def is_free(port: int) -> bool:
    """Whether a program could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As servers do, so that connections that are winding down are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
