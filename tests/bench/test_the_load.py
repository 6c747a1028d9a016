"""The load that benchmarks make: it counts answers, not requests, and stops at what is no answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import ClassVar

import pytest

from bench.load import LoadError, drive, pace, request
from bench.stages import Profile


class Receiver(BaseHTTPRequestHandler):
    """Answers with the status that the path names, after the seconds that the body names."""

    protocol_version = "HTTP/1.1"
    received: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.received.append(body)
        time.sleep(float(body))
        status = int(self.path.strip("/"))
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", "5")
        self.end_headers()
        if status != 204:
            self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[tuple[str, int]]:
    Receiver.received = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield ("127.0.0.1", server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


def post(status: int, seconds: float = 0.0) -> bytes:
    return request("here", "POST", f"/{status}", "text/plain", str(seconds).encode())


@pytest.mark.parametrize("status", [200, 204])
def test_every_request_of_every_source_is_answered_once(service: tuple[str, int], status: int) -> None:
    sources = [iter([post(status)] * 7), iter([post(status)] * 3)]
    served = drive(service, [lambda source=source: next(source, None) for source in sources])  # type: ignore[misc]
    assert served.answered == len(served.latencies) == len(Receiver.received) == 10
    assert served.seconds > 0


def test_a_refusal_ends_the_benchmark_with_what_the_service_said(service: tuple[str, int]) -> None:
    with pytest.raises(LoadError, match=r"answered with 503 .*: hello"):
        drive(service, [lambda: post(503)], 1.0)


def test_a_request_larger_than_the_sockets_buffers_arrives_whole(service: tuple[str, int]) -> None:
    requests = iter([request("here", "POST", "/200", "text/plain", b"0." + b"0" * 8_000_000)])
    assert drive(service, [lambda: next(requests, None)]).answered == 1
    assert len(Receiver.received[0]) == 8_000_002


def test_a_paced_request_that_had_to_wait_is_late_from_when_it_was_due(service: tuple[str, int]) -> None:
    took: list[float] = []
    requests = iter([post(200, 0.3), post(200), post(200)])
    pace(service, [lambda: next(requests, None)], [(0.01 * n for n in count())], 5.0, lambda _, s: took.append(s))
    assert len(took) == 3
    # The second was due at 0.01 s, and could not be sent before the first was answered.
    assert min(took[:2]) > 0.25


def test_a_profile_gives_each_sample_to_the_innermost_stage() -> None:
    profile = Profile("here")
    profile.add(
        "run (asyncio/runners.py:9);push (exporter/app/push.py:3);decode_batch (exporter/protocol/messages.py:2) 3"
    )
    profile.add("run (asyncio/runners.py:9);push (exporter/app/push.py:3);observe (exporter/detectors/surge.py:7) 5")
    profile.add("run (asyncio/runners.py:9) 1")
    profile.add("somebody (else.py:1) 1")
    profile.add("run (threading.py:9);_worker (concurrent/futures/thread.py:81) 9")  # waits for work
    assert profile.stages == {"decode": 3, "detectors": 5, "event loop": 1, "other": 1}
    assert "50.0 %  detectors" in profile.table()
