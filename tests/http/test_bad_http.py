"""Peers that do not behave: too slow, too much, too many, not HTTP at all. They are got rid of, others are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from exporter_process import PUSH, ExporterProcess, push, running, wait_for
from exporter_scene import batch

from exporter.app.connections import HEAD_BYTES, Doorkeeper
from exporter.protocol import encode

DEADLINE = 30.0


@contextlib.contextmanager
def talking(exporter: ExporterProcess) -> Iterator[socket.socket]:
    host, port = exporter.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def sent(exporter: ExporterProcess, request: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of the answer to a request after which the exporter closes."""
    with talking(exporter) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body) if body.startswith(b"{") else {}) if head else (0, {})


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n c: folded\x00\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    ],
)
def test_what_is_not_http_is_told_so_and_the_connection_ends(exporter: ExporterProcess, request_bytes: bytes) -> None:
    status, error = sent(exporter, request_bytes)
    assert status == 400, error
    assert error["error"] == "http"
    assert exporter.get("/healthz").status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * HEAD_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (HEAD_BYTES // 6 + 10) + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 4_000_000,
        b"GET /" + b"a" * 4_000_000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500_000,
    ],
)
def test_a_head_without_end_is_refused_when_it_is_too_long(exporter: ExporterProcess, head: bytes) -> None:
    with talking(exporter) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head)
        answer = everything(connection)
    # A sender that goes on while it is refused may lose the answer to the reset of the connection.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large")
    assert exporter.get("/healthz").status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "GET", "HEAD", "MKCOL"])
def test_a_method_that_a_path_does_not_take_is_refused_with_those_that_it_takes(
    exporter: ExporterProcess, method: str
) -> None:
    target = "127.0.0.1:80" if method == "CONNECT" else PUSH
    with talking(exporter) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = everything(connection)
    status = int(answer.split()[1]) if answer else 0
    assert status in ((400, 404, 405) if method == "CONNECT" else (405,)), answer
    if status == 405 and target == PUSH:
        assert b"\r\nallow: POST\r\n" in answer


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/schema/openapi.json", "/api/v1/runs"])
def test_what_can_be_had_can_be_asked_for_without_its_body(exporter: ExporterProcess, path: str) -> None:
    with talking(exporter) as connection:
        request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" + f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall((request + "Connection: close\r\n\r\n").encode())
        answer = everything(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert re.fullmatch(rb"(HTTP/1.1 200 OK\r\n([a-z-]+: [^\r]+\r\n)+\r\n){2}", answer), answer


def test_requests_that_do_not_wait_for_answers_are_answered_in_their_order(exporter: ExporterProcess) -> None:
    parts = []
    for seq in range(1, 51):
        body = encode(batch(run="pipelined", seq=seq))
        parts.append(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
                     b"Accept: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
    with talking(exporter) as connection:
        connection.sendall(b"".join(parts))
        got = b""
        while got.count(b"accepted_seq") < 50:
            part = connection.recv(65536)
            assert part, got[-500:]
            got += part
    assert [int(found) for found in re.findall(rb'"accepted_seq":(\d+)', got)] == list(range(1, 51))


def test_a_sender_that_goes_away_in_the_middle_changes_nothing(exporter: ExporterProcess) -> None:
    body = encode(batch(run="gone"))
    for cut in (0, 1, len(body) // 2, len(body) - 1):
        with talking(exporter) as connection:
            connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
                               b"Content-Length: %d\r\n\r\n" % len(body) + body[:cut])  # fmt: skip
    assert push(exporter, run="stayed").accepted_seq == 1
    assert "gone" not in [run["run_id"] for run in exporter.get("/api/v1/runs").json["runs"]]


def test_a_sender_that_asks_first_whether_it_may_go_on_is_told(exporter: ExporterProcess) -> None:
    body = encode(batch(run="asks"))
    with talking(exporter) as connection:
        connection.sendall(
            b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
            b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        assert everything(connection).startswith(b"HTTP/1.1 200 OK")


def test_an_upgrade_to_something_else_is_not_made(exporter: ExporterProcess) -> None:
    for protocol in ("websocket", "h2c"):
        answer = exporter.get("/healthz", Connection="Upgrade", Upgrade=protocol)
        assert answer.status == 200
    assert "Traceback" not in exporter.log


def test_more_connections_than_the_limit_are_told_to_come_again_and_senders_go_on(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("limits: {connections: 20}\n")
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter, contextlib.ExitStack() as held:
        sender = held.enter_context(talking(exporter))
        body = encode(batch(run="r"))
        request = (b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
        sender.sendall(request)
        assert sender.recv(65536).startswith(b"HTTP/1.1 200 OK")
        idle = [held.enter_context(talking(exporter)) for _ in range(60)]
        refused = [answer for connection in idle[25:] if (answer := everything(connection)).startswith(b"HTTP/1.1 503")]
        assert len(refused) == 35
        assert all(
            b"There are 20 connections already, and no more are taken (limits.connections" in it for it in refused
        )
        sender.sendall(request)
        assert sender.recv(65536).startswith(b"HTTP/1.1 200 OK")
        for connection in idle:
            connection.close()
        wait_for(exporter.ready, exporter)
        assert exporter.metrics()['verl_sentinel_rejected_total{reason="connections"}'] >= 35


class Served:
    """A small application behind the doorkeeper, with short times, in a thread."""

    def __init__(self, **keeper: Any) -> None:
        self.rejected: list[str] = []
        self.keeper = Doorkeeper(100, self.rejected.append, **{"sweep_seconds": 0.02, **keeper})
        settings: Any = {"http": self.keeper.protocol, "ws": "none", "lifespan": "off", "interface": "asgi3"}
        config = uvicorn.Config(self.app, log_config=None, **settings)
        self.server = uvicorn.Server(config)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main()), daemon=True)

    async def main(self) -> None:
        sweep = asyncio.create_task(self.keeper.sweep())
        await self.server.serve(sockets=[self.listener])
        sweep.cancel()

    async def app(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        while (await receive()).get("more_body"):
            pass
        body = b"x" * (50_000_000 if scope["path"] == "/large" else 2)
        head = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    def __enter__(self) -> Served:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(DEADLINE)

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, self.rejected
            time.sleep(0.01)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
    ],
)
def test_a_request_that_does_not_arrive_is_given_up(said: bytes) -> None:
    with Served(request_seconds=0.2) as served, socket.create_connection(served.address, DEADLINE) as slow:
        slow.sendall(said)
        answer = everything(slow)
        assert answer.count(b"HTTP/1.1 408 Request Timeout") == 1
        assert b"connection: close" in answer.lower()
        assert served.rejected == ["too_slow"]
        served.until(lambda: not served.keeper.open)


def test_a_byte_now_and_then_does_not_keep_a_connection_open() -> None:
    with Served(request_seconds=0.3) as served, socket.create_connection(served.address, DEADLINE) as slow:
        slow.settimeout(0.02)
        got, end = b"", time.monotonic() + DEADLINE
        for byte in b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000:
            with contextlib.suppress(OSError):
                slow.sendall(bytes([byte]))
            try:
                part = slow.recv(4096)
            except TimeoutError:
                assert time.monotonic() < end
                continue
            got += part
            break
        assert got.startswith(b"HTTP/1.1 408")


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    with Served(stuck_seconds=0.2) as served, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(served.address)
        deaf.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        served.until(lambda: served.rejected == ["unread"] and not served.keeper.open)


def test_a_connection_that_rests_between_requests_is_kept() -> None:
    with Served(request_seconds=0.1) as served, socket.create_connection(served.address, DEADLINE) as resting:
        for _ in range(3):
            resting.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert resting.recv(4096).startswith(b"HTTP/1.1 200 OK")
            looked = threading.Event()
            # Long enough that a sweep that took resting for asking would have closed it.
            looked.wait(0.4)
        assert served.rejected == []
