"""Services that people hear of alerts by, as real servers on this machine: they keep what they are sent."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
import time
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeVar

DEADLINE_SECONDS = 60.0
_T = TypeVar("_T")


def wait_for(what: str, found: Callable[[], _T]) -> _T:
    """What ``found`` gives as soon as it is true."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_SECONDS:g} s: {what}")


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FakeService:
    """Any service with an HTTP API.

    ``status`` is what it answers; ``answer`` the body, by path. While ``held`` is clear it does not answer at all.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.status = 200
        self.answers: dict[str, Any] = {}
        self.held = threading.Event()
        self.held.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                service.held.wait(DEADLINE_SECONDS)
                path = self.path.partition("?")[0]
                answer = json.dumps(service.answers.get(path, {"errcode": 0, "errmsg": "ok"})).encode()
                try:
                    self.send_response(service.status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    """Whoever asked has gone."""

            do_GET = do_POST

            def log_message(self, *args: object) -> None:
                """The test's output is no place for an access log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def got(self, *words: str, path: str = "/") -> list[Request]:
        """Requests below a path that have all these words, oldest first."""
        return [
            it
            for it in list(self.requests)
            if it.path.startswith(path) and all(word in unescaped(it.body) for word in words)
        ]


def unescaped(body: bytes) -> str:
    """JSON as the text that it stands for, anything else as it is."""
    try:
        return json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return body.decode("utf-8", "replace")


class FakeMail:
    """An SMTP server that takes everything, and asks for a password where it is told so."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.passwords: list[str] = []
        self.refuses = False
        mail = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.say("220 mail.test ready")
                while line := self.rfile.readline():
                    verb, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
                    if verb.upper() == "EHLO":
                        self.say("250-mail.test\r\n250-AUTH PLAIN\r\n250 8BITMIME")
                    elif verb.upper() == "AUTH":
                        mail.passwords.append(base64.b64decode(rest.partition(" ")[2]).decode().split("\0")[-1])
                        self.say("235 welcome")
                    elif verb.upper() == "RCPT" and mail.refuses:
                        self.say("550 no such mailbox")
                    elif verb.upper() == "DATA":
                        self.say("354 go on")
                        mail.messages.append(_parsed(self.data()))
                        self.say("250 taken")
                    elif verb.upper() == "QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 ok")

            def data(self) -> bytes:
                lines = []
                while (line := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
                return b"".join(lines)

            def say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Session)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeMail:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def got(self, *words: str) -> list[EmailMessage]:
        """Messages whose subject or text has all these words."""
        return [
            it for it in list(self.messages) if all(word in f"{it['subject']}\n{part(it, 'plain')}" for word in words)
        ]


def _parsed(data: bytes) -> EmailMessage:
    found = message_from_bytes(data, policy=policy.default)
    assert isinstance(found, EmailMessage)
    return found


def part(message: EmailMessage, kind: str) -> str:
    """The text or the HTML of an e-mail; empty where it has none."""
    found = message.get_body((kind,))
    return str(found.get_content()) if found is not None else ""
