"""A server on loopback that answers a write as a test says: for what a real one cannot be made to say at will."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Said:
    """One answer."""

    status: int = 204
    message: str = ""
    """Of InfluxDB's JSON; a text that begins with < is sent as HTML. Without one, and with 204, the body is empty."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """One request."""

    lines: tuple[str, ...]
    authorization: str
    query: str


class InfluxStandIn:
    """``answer`` decides for each write; what it takes, with 204, is in ``taken``. With ``tls`` it speaks HTTPS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answer: Callable[[Write], Said] = lambda write: Said()
        self.writes: list[Write] = []
        self.taken: list[str] = []
        stand_in = self

        class Receiver(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                write = Write(
                    tuple(body.decode().splitlines()),
                    self.headers.get("Authorization", ""),
                    self.path.partition("?")[2],
                )
                stand_in.writes.append(write)
                said = stand_in.answer(write)
                if said.status == 204:
                    stand_in.taken.extend(write.lines)
                self.send_response(said.status)
                html = said.message.startswith("<")
                text = said.message if html else f'{{"code": "invalid", "message": "{said.message}"}}'
                content = b"" if said.status == 204 or not said.message else text.encode(errors="surrogateescape")
                self.send_header("Content-Type", "text/html" if html else "application/json")
                self.send_header("Content-Length", str(len(content)))
                for name, value in said.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
