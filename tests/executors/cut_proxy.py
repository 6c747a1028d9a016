"""A TCP proxy whose connections can be cut, in place of a network that fails."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit


class Proxy:
    """Forwards to an address until :attr:`cut` is set; then it closes what is open, and takes nothing new."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._target = (parts.hostname or "", parts.port or 0)
        self._open: set[socket.socket] = set()
        self._cut = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def cut(self) -> bool:
        return self._cut

    @cut.setter
    def cut(self, value: bool) -> None:
        self._cut = value
        if value:
            for each in list(self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut = True
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._cut:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._open |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
