"""One push to the exporter, and what its answer means. Called by the follower."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from exporter.protocol import MSGPACK, PUSH_PATH, Batch, ErrorAnswer, PushAnswer, encode

TIMEOUT_SECONDS = 10.0
MOST_ANSWER_BYTES = 1024 * 1024
LONGEST_WAIT_SECONDS = 60.0
"""No answer silences the follower for longer."""

Outcome = Literal["accepted", "refused", "unauthorized", "later"]

_Answer = TypeVar("_Answer", PushAnswer, ErrorAnswer)


@dataclass(frozen=True, slots=True)
class Reply:
    """``refused``: never to be taken; ``unauthorized``: the token is wrong; ``later``: to be sent again."""

    outcome: Outcome
    detail: str = ""
    """A sentence without its full stop."""
    accepted_seq: int = 0
    """The highest sequence number that the exporter has of this sender."""
    duplicate: bool = False
    retry_after: float = 0.0
    too_large: bool = False


class Delivery:
    """Pushes to ``url``. ``token`` is asked at each push, so that a token file can be rotated; it may raise
    ``ValueError`` with a sentence."""

    def __init__(self, url: str, opener: urllib.request.OpenerDirector, token: Callable[[], str]) -> None:
        self._url = url.rstrip("/") + PUSH_PATH
        self._opener = opener
        self._token = token

    def post(self, batch: Batch) -> Reply:
        """Send one batch. Never raises for anything that the network or the other side does."""
        headers = {"Content-Type": MSGPACK, "Accept": MSGPACK, "User-Agent": "verl-sentinel-follow"}
        try:
            token = self._token()
        except ValueError as error:
            return Reply("unauthorized", str(error).removesuffix("."))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self._url, data=encode(batch), headers=headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                answer = _decoded(response.read(MOST_ANSWER_BYTES), PushAnswer)
        except urllib.error.HTTPError as error:
            return _refusal(error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or str(error).strip() or type(error).__name__
            return Reply("later", f"it cannot be reached: {reason}")
        if answer is None:
            return Reply("later", "what answers there is not a verl-sentinel exporter")
        return Reply("accepted", accepted_seq=answer.accepted_seq, duplicate=answer.duplicate)


def _refusal(error: urllib.error.HTTPError) -> Reply:
    try:
        told = _decoded(error.read(MOST_ANSWER_BYTES), ErrorAnswer)
    except (OSError, http.client.HTTPException):
        told = None
    status = error.code
    detail = f"it answered {status} {error.reason}"
    if told is not None:
        detail = told.reason.removesuffix(".") + (f" ({told.where})" if told.where else "")
    if status in (401, 403):
        return Reply("unauthorized", detail)
    if told is not None and 400 <= status < 500 and status not in (408, 429):
        return Reply("refused", detail, too_large=status == 413)
    return Reply("later", detail, retry_after=_seconds(error.headers.get("Retry-After")))


def _decoded(body: bytes, kind: type[_Answer]) -> _Answer | None:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _seconds(text: str | None) -> float:
    return min(float(text), LONGEST_WAIT_SECONDS) if text and text.isdecimal() and len(text) < 10 else 0.0
