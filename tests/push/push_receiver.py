"""A small real HTTP server that takes pushes as the exporter does: for the tests of what sends them."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from exporter.protocol import MSGPACK, Batch, ErrorAnswer, PushAnswer, Step, decode_batch, encode

Answer = tuple[int, object, dict[str, str]]
"""Status, body (a wire type), further headers."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a sender that is gone is part of many tests
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Receiver:
    """Listens on a free port of the loopback. ``answer`` decides what becomes of each batch; by default it is accepted.

    What was accepted is kept once for each (run, sender, seq), in order of arrival, as the exporter keeps it.
    """

    def __init__(self, port: int = 0, answer: Callable[[Batch], Answer | None] | None = None) -> None:
        self.answer = answer
        self.batches: list[Batch] = []
        self.requests: list[Batch] = []
        self.authorizations: list[str] = []
        self._seen: set[tuple[str, str, int]] = set()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._connections.add(self.connection)

            def finish(self) -> None:
                receiver._connections.discard(self.connection)
                super().finish()

            def do_POST(self) -> None:
                batch = decode_batch(self.rfile.read(int(self.headers["Content-Length"])))
                status, body, headers = receiver.take(batch, self.headers.get("Authorization", ""))
                encoded = encode(body)
                with contextlib.suppress(OSError):  # a sender may be gone before it has its answer
                    self.reply(status, encoded, headers)

            def reply(self, status: int, encoded: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                self.send_header("Content-Type", MSGPACK)
                self.send_header("Content-Length", str(len(encoded)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def take(self, batch: Batch, authorization: str) -> Answer:
        with self._lock:
            self.requests.append(batch)
            self.authorizations.append(authorization)
            told = self.answer(batch) if self.answer is not None else None
            if told is not None and told[0] >= 300:
                return told
            key = (batch.run.run_id, batch.sender.id, batch.seq)
            duplicate = key in self._seen
            if not duplicate:
                self._seen.add(key)
                self.batches.append(batch)
            return told or (200, PushAnswer(accepted_seq=batch.seq, duplicate=duplicate), {})

    def steps(self) -> list[Step]:
        """All steps accepted, in order of arrival."""
        with self._lock:
            return [step for batch in self.batches for step in batch.steps]

    def events(self, kind: type) -> list[object]:
        """All events of a kind accepted, in order of arrival."""
        with self._lock:
            return [event for batch in self.batches for event in batch.events if isinstance(event, kind)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in list(self._connections):  # kept-alive ones, as a process that ends would close them
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def refusal(status: int, reason: str = "no", **headers: str) -> Answer:
    """An answer that refuses."""
    return (
        status,
        ErrorAnswer(error="refused", reason=reason),
        {name.replace("_", "-"): v for name, v in headers.items()},
    )


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition, and fail with its name when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.01)
