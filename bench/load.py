"""HTTP requests over connections that stay open, in a closed loop or at set times. Used by benchmarks of services.

Raw sockets and one selector: a client that takes as long for a request as the service would be what is measured.
A connection stands for one sender: it has one request under way, and the next is made when the answer is there.
"""

from __future__ import annotations

import heapq
import math
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

GIVE_UP_SECONDS = 60.0
"""A service that answers nothing for so long is taken for dead."""


class LoadError(RuntimeError):
    """The service did not take the load; the message is a sentence."""


@dataclass
class Served:
    """What became of one loop."""

    answered: int = 0
    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from a request to its answer, in order of the answers."""


def request(host: str, method: str, path: str, content_type: str, body: bytes) -> bytes:
    """One HTTP/1.1 request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


Source = Callable[[], bytes | None]
"""Makes the next request of a connection; None when there is none any more."""


def drive(address: tuple[str, int], sources: Sequence[Source], seconds: float = math.inf) -> Served:
    """Send for ``seconds``, or until no source has more, each on a connection of its own; wait for what is under way.

    Raises :class:`LoadError` where an answer is not of the 200s, or none comes.
    """
    served = Served()
    selector = selectors.DefaultSelector()
    connections = [Connection(address, source, selector, served) for source in sources]
    try:
        began = last = time.perf_counter()
        until = began + seconds
        under_way = sum(connection.send_next() for connection in connections)
        while under_way:
            ready = selector.select(1.0)
            for key, events in ready:
                connection = key.data
                if events & selectors.EVENT_WRITE:
                    connection.send_rest()
                if events & selectors.EVENT_READ and connection.receive():
                    last = time.perf_counter()
                    if last >= until or not connection.send_next():
                        under_way -= 1
            if not ready and time.perf_counter() - last > GIVE_UP_SECONDS:
                raise LoadError(f"{address[0]}:{address[1]} has answered nothing for {GIVE_UP_SECONDS:.0f} s.")
        served.seconds = last - began
    finally:
        for connection in connections:
            connection.close()
        selector.close()
    return served


def pace(
    address: tuple[str, int],
    sources: Sequence[Source],
    schedules: Sequence[Iterator[float]],
    seconds: float,
    answered: Callable[[float, float], None],
) -> None:
    """Send each source's requests at the times of its schedule (seconds from now, rising), for ``seconds``.

    ``answered`` gets the time of an answer and how long it took, both in seconds. That is counted from when the request
    was due: where the service is late, the requests that wait for it are late, too. Raises as :func:`drive`.
    """
    selector = selectors.DefaultSelector()
    connections = [Connection(address, source, selector, Served()) for source in sources]
    try:
        began = heard = time.perf_counter()
        due = [(next(schedule), number) for number, schedule in enumerate(schedules)]
        heapq.heapify(due)
        waiting: dict[Connection, tuple[float, int]] = {}
        while due or waiting:
            now = time.perf_counter() - began
            while due and due[0][0] <= min(now, seconds):
                when, number = heapq.heappop(due)
                if connections[number].send_next():
                    waiting[connections[number]] = (when, number)
            if due and due[0][0] > seconds:
                due.clear()
            ready = selector.select(min(1.0, max(0.0, due[0][0] - now)) if due else 1.0)
            for key, events in ready:
                connection = key.data
                if events & selectors.EVENT_WRITE:
                    connection.send_rest()
                if events & selectors.EVENT_READ and connection.receive():
                    heard = time.perf_counter()
                    when, number = waiting.pop(connection)
                    answered(heard - began, heard - began - when)
                    heapq.heappush(due, (next(schedules[number]), number))
            if not waiting:
                heard = max(heard, time.perf_counter())
            elif time.perf_counter() - heard > GIVE_UP_SECONDS:
                raise LoadError(f"{address[0]}:{address[1]} has answered nothing for {GIVE_UP_SECONDS:.0f} s.")
    finally:
        for connection in connections:
            connection.close()
        selector.close()


class Connection:
    """One connection with at most one request under way."""

    def __init__(
        self,
        address: tuple[str, int],
        source: Source,
        selector: selectors.BaseSelector,
        served: Served,
    ) -> None:
        self._source = source
        self._selector = selector
        self._served = served
        self._unsent = memoryview(b"")
        self._received = b""
        self._sent_at = 0.0
        self._socket = socket.create_connection(address, timeout=GIVE_UP_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ, self)

    def send_next(self) -> bool:
        """Send the next request; whether there was one."""
        data = self._source()
        if data is None:
            return False
        self._sent_at = time.perf_counter()
        sent = self._try_send(memoryview(data))
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        return True

    def send_rest(self) -> None:
        self._unsent = self._unsent[self._try_send(self._unsent) :]
        if not self._unsent:
            self._selector.modify(self._socket, selectors.EVENT_READ, self)

    def _try_send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self) -> bool:
        """Read what is there; whether the answer is complete."""
        data = self._socket.recv(65536)
        if not data:
            raise LoadError("The service closed a connection with a request under way.")
        self._received = self._received + data if self._received else data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return False
        if len(body) < _announced(head):
            return False
        if head[9:10] != b"2":
            raise LoadError(f"A request was answered with {head[9:].splitlines()[0].decode()}: {body[:300].decode()}")
        self._served.answered += 1
        self._served.latencies.append(time.perf_counter() - self._sent_at)
        self._received = b""
        return True

    def close(self) -> None:
        self._socket.close()


def _announced(head: bytes) -> int:
    """Bytes of the body, as its head says; an answer without a body (204) need not say."""
    place = head.lower().find(b"\r\ncontent-length:")
    return int(head[place + 17 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
