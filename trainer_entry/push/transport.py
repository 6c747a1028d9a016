"""One POST to the exporter and what its answer means. Used by :mod:`trainer_entry.push.client`, from its one thread.

Standard library only, one kept-alive connection, and a time limit on every wait, because the exporter may be slow,
hung or gone. Nothing here decides what happens to the batch; that is the client's part.
"""

from __future__ import annotations

import http.client
import math
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from exporter.protocol import JSON, MSGPACK, PUSH_PATH, Abort, Command, ErrorAnswer, HistogramRequest, PushAnswer
from trainer_entry.settings import CA_FILE, TOKEN, TOKEN_FILE

Verdict = Literal["accepted", "refused", "unauthorized", "later", "unreachable"]

_Answer = TypeVar("_Answer", PushAnswer, ErrorAnswer)

_TOKEN = re.compile(r"[!-~]+")

MAX_ANSWER_BYTES = 1024 * 1024
MAX_RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one POST.

    ``accepted``: forget the batch. ``refused``: the exporter will never take it. ``unauthorized``: the token is
    wrong, the batch is fine. ``later``: the exporter asks for patience (``retry_after`` seconds, where it said so) or
    failed inside. ``unreachable``: no answer in time.
    """

    verdict: Verdict
    status: int = 0
    detail: str = ""
    retry_after: float | None = None
    command: Command | None = None
    abort: Abort | None = None
    histogram: HistogramRequest | None = None


class Transport:
    """A kept-alive connection to ``<url>/api/v1/push``.

    ``bearer`` is asked for the token at each POST. ``ca_file`` holds the authorities that an exporter which speaks TLS
    is believed by, in place of the system's; it is read for each connection.
    """

    def __init__(self, url: str, bearer: Callable[[], str], *, timeout: float, ca_file: Path | None = None) -> None:
        parts = urlsplit(url)
        self.url = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._path = parts.path.rstrip("/") + PUSH_PATH
        self._bearer = bearer
        self._timeout = timeout
        self._ca_file = ca_file
        self._connection: http.client.HTTPConnection | None = None

    def post(self, payload: bytes, *, timeout: float | None = None) -> Reply:
        """Send one encoded batch. Never raises for anything that the network or the other side does."""
        token = self._bearer()
        if token and not _TOKEN.fullmatch(token):
            # http.client would say so too, with the token in the sentence.
            return Reply("unauthorized", detail="it is not one word of visible ASCII characters, so it cannot be sent")
        limit = self._timeout if timeout is None else max(0.05, min(timeout, self._timeout))
        for attempt in (1, 2):
            reused = self._connection is not None
            try:
                return self._exchange(payload, token, limit)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
                self.close()
                # A server may close an idle connection at any time; only a fresh one that breaks says something.
                if attempt == 2 or not reused:
                    return Reply("unreachable", detail=f"{type(error).__name__}: {error}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                return Reply("unreachable", detail=f"{type(error).__name__}: {error}")
        raise AssertionError("the second attempt returns")

    def close(self) -> None:
        """Drop the connection; the next POST opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, limit: float) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=limit)
        try:
            trusted = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or str(error)
            raise ValueError(f"{self._ca_file} ({CA_FILE}) holds no certificates that can be read: {reason}") from None
        return http.client.HTTPSConnection(self._host, self._port, timeout=limit, context=trusted)

    def _exchange(self, payload: bytes, token: str, limit: float) -> Reply:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect(limit)
        elif connection.sock is not None:
            connection.sock.settimeout(limit)
        headers = {"Content-Type": MSGPACK, "Accept": MSGPACK, "User-Agent": "verl-sentinel"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request("POST", self._path, body=payload, headers=headers)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
        if not response.isclosed():
            self.close()
        reply = _judge(
            response.status, response.headers.get("Content-Type", ""), response.headers.get("Retry-After"), body
        )
        if reply.verdict == "unauthorized" and not token:  # not given, or in a file that cannot be read
            why = f"{TOKEN} is not set, and {TOKEN_FILE} is not set, empty or cannot be read"
            return replace(reply, detail=f"{reply.detail}; there was none to send: {why}")
        return reply


def _judge(status: int, content_type: str, retry_after: str | None, body: bytes) -> Reply:
    if 200 <= status < 300:
        answer = _decode(body, content_type, PushAnswer)
        if answer is None:
            return Reply(
                "later", status, f"answered {status} with a body that is no push answer; is this the exporter?"
            )
        return Reply("accepted", status, command=answer.command, abort=answer.abort, histogram=answer.histogram)
    told = _decode(body, content_type, ErrorAnswer)
    detail = f"{status}: {told.reason}" + (f" ({told.where})" if told.where else "") if told else f"status {status}"
    if status in (401, 403):
        return Reply("unauthorized", status, detail)
    if status in (408, 429) or status >= 500:
        return Reply("later", status, detail, retry_after=_seconds(retry_after))
    if 400 <= status < 500:
        return Reply("refused", status, detail)
    return Reply("later", status, f"{detail}, which is no answer to a push; is this the exporter?")


def _decode(body: bytes, content_type: str, kind: type[_Answer]) -> _Answer | None:
    media = content_type.split(";", 1)[0].strip().lower()
    try:
        return msgspec.json.decode(body, type=kind) if media == JSON else msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header (a number or a date), bounded so that no answer silences a run."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS) if not math.isnan(seconds) else None
