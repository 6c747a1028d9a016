"""A wire between two programs that can be cut: a TCP proxy on loopback. Made by :mod:`tests.chaos.world`.

Four conditions. ``open`` passes everything on. ``cut`` closes what is connected with a reset, and refuses what is new.
``silent`` is a half-open line, the worst kind: connections stay, new ones are accepted, and nothing gets through.
``slow`` passes everything on, each piece late.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from typing import Literal

Condition = Literal["open", "cut", "silent", "slow"]
SLOW_SECONDS = 0.7
"""How late each piece is, there and back."""
SLOW_SCRAPE_SECONDS = 0.3
"""Of the wire of the scrapes: a request and the pieces of its answer have the second that this suite's scrapes have."""
_POLL_SECONDS = 0.1
_RESET = struct.pack("ii", 1, 0)


class Link:
    """One wire. ``name`` is such as ``prometheus-exporter``; the first of the two connects, the second listens."""

    def __init__(self, name: str, target: tuple[str, int]) -> None:
        self.name = name
        self._target = target
        self._condition: Condition = "open"
        self._closed = threading.Event()
        self._port = 0
        self._listener: socket.socket | None = None
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listen()
        self._thread = threading.Thread(target=self._accept, name=f"link {name}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port to connect to."""
        return f"127.0.0.1:{self._port}"

    @property
    def condition(self) -> Condition:
        return self._condition

    def become(self, condition: Condition) -> None:
        """Change how the wire is, now."""
        with self._lock:
            self._condition = condition
            if condition == "cut":
                self._unlisten()
                for pair in list(self._pairs):
                    _reset(pair)
            elif self._listener is None and not self._closed.is_set():
                self._listen()

    def close(self) -> None:
        """The end of the wire, with all that is on it."""
        self._closed.set()
        with self._lock:
            self._unlisten()
            for pair in list(self._pairs):
                _reset(pair)
        self._thread.join(5)

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(64)
        listener.settimeout(_POLL_SECONDS)
        self._port = listener.getsockname()[1]
        self._listener = listener

    def _unlisten(self) -> None:
        if self._listener is not None:
            # A thread that waits in accept() keeps a closed socket alive, and listening, until its wait is over.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        while not self._closed.is_set():
            listener = self._listener
            if listener is None:
                self._closed.wait(_POLL_SECONDS)
                continue
            try:
                near, _ = listener.accept()
            except (TimeoutError, OSError):
                continue
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._wait_while_silent()
        try:
            far = socket.create_connection(self._target, timeout=5)
        except OSError:
            _reset((near, near))
            return
        pair = (near, far)
        near.settimeout(10)
        far.settimeout(10)
        with self._lock:
            self._pairs.add(pair)
        try:
            self._pass_on(near, far)
        except (OSError, ValueError):  # ValueError: closed under our hands
            pass
        finally:
            with self._lock:
                self._pairs.discard(pair)
            _reset(pair)

    def _wait_while_silent(self) -> None:
        while self._condition == "silent" and not self._closed.is_set():
            time.sleep(_POLL_SECONDS)

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        while not self._closed.is_set():
            if self._condition == "cut":
                return
            if self._condition == "silent":
                time.sleep(_POLL_SECONDS)
                continue
            ready, _, _ = select.select([near, far], [], [], _POLL_SECONDS)
            for one in ready:
                piece = one.recv(65536)
                if not piece:
                    return
                if self._condition == "slow":
                    time.sleep(SLOW_SCRAPE_SECONDS if self.name == "prometheus-exporter" else SLOW_SECONDS)
                self._wait_while_silent()
                other[one].sendall(piece)


def _reset(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with contextlib.suppress(OSError):
            one.close()
