"""The exporter over HTTP: Litestar on uvicorn. Called by the CLI."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin

from exporter.app.access import Access
from exporter.app.answers import fault, http_error, refusal
from exporter.app.lifecycle import Exporter
from exporter.app.routes import routes
from exporter.config import Config, ConfigError, address, check_exposure, resolve_tokens
from exporter.service.admission import Refused

log = logging.getLogger("exporter")


def make_app(exporter: Exporter, tokens: Mapping[str, tuple[str, ...]]) -> Litestar:
    """The ASGI application; starting it starts the exporter, and shutting it down stops it."""

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        await exporter.start()
        try:
            yield
        finally:
            await exporter.stop()

    def refused(request: Request[Any, Any, Any], error: Refused) -> Response[bytes]:
        exporter.ingest.reject(error.reason)
        return refusal(request, error)

    return Litestar(
        route_handlers=routes(exporter, Access(tokens)),
        lifespan=[lifespan],
        exception_handlers={Refused: refused, HTTPException: http_error, Exception: fault},
        request_max_body_size=None,
        openapi_config=OpenAPIConfig(
            title="verl-sentinel exporter",
            version=exporter.version,
            path="/schema",
            # Plain documents only: the interactive pages load their scripts from the internet.
            render_plugins=[JsonRenderPlugin(), YamlRenderPlugin()],
        ),
        logging_config=None,
    )


def serve(config: Config) -> None:
    """Run until SIGTERM or SIGINT. Raises :class:`ConfigError` with a sentence where it cannot start."""
    tokens = resolve_tokens(config.tokens, os.environ)
    check_exposure(config.listen, tokens)
    listener = _bind(config.listen)
    try:
        exporter = Exporter(config)
    except ConfigError:
        listener.close()
        raise
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info(
        "Listening on http://%s:%d, data in %s, recovery mode %s", shown, port, config.data_dir, config.recovery.mode
    )
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(exporter, tokens),
            log_config=None,
            access_log=False,
            server_header=False,
            # Senders keep their connection between heartbeats, and some flush less often than uvicorn's 5 s.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
    )
    # uvicorn raises the signal again when it has shut down; without these the process would then die of it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    asyncio.run(server.serve(sockets=[listener]))
    log.info("Stopped")


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
