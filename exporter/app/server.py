"""Runs the application: uvicorn with our limits, the tokens and certificates that are read again, the listening socket.

Called by the CLI's ``serve``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, cast

import uvicorn

from exporter.app.access import Access
from exporter.app.application import Room, make_app
from exporter.app.connections import Doorkeeper
from exporter.app.lifecycle import Exporter
from exporter.app.reloading import Certificates, watch_files
from exporter.app.systemd import Systemd
from exporter.app.tokens import LiveTokens
from exporter.config import Config, ConfigError, address, check_exposure
from exporter.exposure import is_loopback

log = logging.getLogger("exporter")

SPARE_FILES = 128
"""Open files that are no connections: databases, the log, sinks."""


SWITCH_SECONDS = 0.0005
"""Threads hand the interpreter over after as long, and not after Python's five milliseconds: a push takes it several
times, and would wait each time for whichever thread exports, compresses or sends to a sink."""


def serve(config: Config, rooms: Sequence[Room] = ()) -> None:
    """Run until SIGTERM or SIGINT, with the handlers of these ``rooms`` beside the API.

    Raises :class:`ConfigError` with a sentence where it cannot start.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    tokens = LiveTokens(config.tokens, os.environ)
    check_exposure(config.listen, tokens.by_scope)
    certificates = Certificates(config.tls) if config.tls is not None else None
    listener = _bind(config.listen)
    try:
        exporter = Exporter(config)
    except ConfigError:
        listener.close()
        raise
    tokens.failed = partial(exporter.ingest.reload_failed, "tokens")
    if certificates is not None:
        certificates.failed = partial(exporter.ingest.reload_failed, "certificate")
    _announce(config, listener)
    keeper = Doorkeeper(_connections(config.limits.connections), exporter.ingest.reject)
    settings = uvicorn.Config(
        cast(Any, make_app(exporter, Access(tokens), rooms)),
        http=cast(Any, keeper.protocol),
        ws="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        # A header that anybody may set must not say where a request comes from.
        proxy_headers=False,
        # Senders keep their connection between heartbeats, and some flush less often than uvicorn's 5 s.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    settings.load()
    settings.ssl = certificates.context if certificates is not None else None
    logging.getLogger("uvicorn.error").addFilter(AtMostOnceAMinute())
    # uvicorn raises the signal again when it has shut down; without these the process would then die of it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    _run(_serve(uvicorn.Server(settings), listener, keeper, tokens, certificates))
    log.info("Stopped")


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    keeper: Doorkeeper,
    tokens: LiveTokens,
    certificates: Certificates | None,
) -> None:
    systemd = Systemd(os.environ)
    beside = [
        asyncio.create_task(keeper.sweep(), name="connections"),
        asyncio.create_task(watch_files(tokens, certificates), name="files"),
        asyncio.create_task(systemd.tell(lambda: server.started), name="systemd"),
    ]
    try:
        await server.serve(sockets=[listener])
    finally:
        systemd.stopping()
        for task in beside:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one for this platform: its writes and timers cost less than asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
        return
    if hasattr(asyncio, "Runner"):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    else:  # Python 3.10
        uvloop.install()
        asyncio.run(main)


def _announce(config: Config, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if config.tls is not None else "http"
    log.info(
        "Listening on %s://%s:%d, data in %s, recovery mode %s",
        scheme, shown, port, config.data_dir, config.recovery.mode,
    )  # fmt: skip
    if config.tls is None and not is_loopback(address(config.listen)[0]):
        log.warning("Tokens cross the network in the clear: set tls, or put a proxy that speaks TLS in front of it")


def _connections(wanted: int) -> int:
    """As many as are wanted and the system has files for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft < needed:
            log.warning("At most %d connections: the system allows this process %d files", soft - SPARE_FILES, soft)
            return max(1, soft - SPARE_FILES)
    return wanted


class AtMostOnceAMinute(logging.Filter):
    """Lets each message through once a minute: what a stranger sends must not fill the disk with log lines."""

    SECONDS = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if record.levelno >= logging.ERROR:
            return True
        if now - self._told.get(str(record.msg), -self.SECONDS) < self.SECONDS:
            return False
        self._told = {**self._told, str(record.msg): now} if len(self._told) < 100 else {str(record.msg): now}
        return True


def _bind(listen: str) -> socket.socket:
    host, port = address(listen)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"The exporter cannot listen on {listen}: {reason}. "
            "Stop what uses that port, or name another with --listen."
        ) from None
    return listener
