"""Tokens and certificates that are read again while the exporter runs. Started by :mod:`exporter.app.server`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from exporter.app.tokens import LOOK_SECONDS, LiveTokens
from exporter.exposure import ConfigError, Tls, load_certificate, tls_context

log = logging.getLogger("exporter.tls")


class Certificates:
    """The server's TLS context.

    Raises :class:`ConfigError` where the files cannot be used at the start.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self.failed: Callable[[], None] = lambda: None
        """Called each time that changed files cannot be taken over: the certificate read before stays in use."""
        self._mark = self._look()
        self.context = tls_context(tls)

    def look(self) -> None:
        """Take changed files over, for connections that are made from now on."""
        mark = self._look()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            # On a context of its own first: half a change must not be left in the one that is in use.
            tls_context(self._tls)
            load_certificate(self.context, self._tls)
        except ConfigError as error:
            self.failed()
            log.error("%s The certificate that was read before stays in use.", error)
        else:
            log.info("The certificate in %s was read again", self._tls.cert_file)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        marks: list[tuple[int, int, int] | None] = []
        for file in (self._tls.cert_file, self._tls.key_file):
            try:
                found = os.stat(file)
                marks.append((found.st_ino, found.st_size, found.st_mtime_ns))
            except OSError:
                marks.append(None)
        return tuple(marks)


async def watch_files(tokens: LiveTokens, certificates: Certificates | None) -> None:
    """Look at the files once a second, and at SIGHUP, until cancelled."""

    def look() -> None:
        tokens.look()
        if certificates is not None:
            certificates.look()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, look)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        look()
