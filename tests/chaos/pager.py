"""Who is told: a webhook receiver in place of the people and the dead man's switch that a site fills in.

It keeps every message as Alertmanager sent it. The messages to people hold the same alerts as those to the exporter, so
they serve as recordings for webhooks that come twice, or late.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any


class Pager:
    """Listens on a free port of loopback until closed."""

    def __init__(self) -> None:
        self.messages: list[tuple[float, str, dict[str, Any]]] = []
        """Arrival by the monotonic clock, path, and body."""
        outer = self

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                outer.messages.append((time.monotonic(), self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Nothing: the messages are kept."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="pager", daemon=True).start()

    def pages(self, run_id: str, since: float = 0.0) -> set[str]:
        """Names of critical alerts that fired, about that run or about the monitoring itself, since then."""
        return {
            alert["labels"].get("alertname", "")
            for at, path, body in list(self.messages)
            if at >= since and path == "/people"
            for alert in body.get("alerts", [])
            if alert["status"] == "firing"
            and alert["labels"].get("severity") == "critical"
            and alert["labels"].get("run", run_id) == run_id
        }

    def recorded(self, run_id: str) -> list[dict[str, Any]]:
        """Bodies with an alert of the run that may trigger a recovery, as Alertmanager wrote them."""
        return [
            body
            for _, path, body in list(self.messages)
            if path == "/people"
            and any(
                alert["labels"].get("run") == run_id and alert["labels"].get("action") == "rollback"
                for alert in body.get("alerts", [])
            )
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
