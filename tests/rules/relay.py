"""Stands between Alertmanager and the exporter: keeps what passes, and can pretend that the answer was lost."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Relay:
    """Forwards every POST to ``target``. For a run in ``lose`` that many answers are replaced by a 503."""

    def __init__(self, target: str) -> None:
        self.bodies: list[bytes] = []
        self.lose: dict[str, int] = {}
        self._lock = threading.Lock()
        relay = self

        class Post(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = _forward(target, body, self.headers["Authorization"])
                self.send_response(503 if relay._is_lost(body) else status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """The test's output is no place for an access log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Post)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def of_run(self, run_id: str) -> list[bytes]:
        """Bodies that mention the run, oldest first."""
        return [body for body in list(self.bodies) if run_id.encode() in body]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _is_lost(self, body: bytes) -> bool:
        with self._lock:
            self.bodies.append(body)
            for run_id, left in self.lose.items():
                if left > 0 and run_id.encode() in body:
                    self.lose[run_id] = left - 1
                    return True
        return False


def _forward(target: str, body: bytes, authorization: str) -> int:
    headers = {"Content-Type": "application/json", "Authorization": authorization}
    try:
        with urllib.request.urlopen(urllib.request.Request(target, data=body, headers=headers), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 502
