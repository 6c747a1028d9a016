"""The bearer tokens that are right now, re-read when their files change. Made by :mod:`exporter.app`, asked by
:mod:`exporter.app.access`.

A token is rotated by writing a new file: the new one is taken within a second, and what is no longer in the file stops
at once with it. Two tokens in one file overlap for as long as both stand there. A file that cannot be read any more, or
holds no token, changes nothing: a slip in an editor must not lock every trainer out.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from exporter.config import ConfigError
from exporter.exposure import SCOPES, Tokens, TokenSource, tokens_of, weaknesses

log = logging.getLogger("exporter.tokens")

LOOK_SECONDS = 1.0
"""How often the files are looked at, at most."""

_Mark = tuple[int, int, int, int] | None
_Found = tuple[tuple[TokenSource, tuple[str, ...]], ...]
"""The sources of a scope, with what each holds."""


class LiveTokens:
    """Tokens by scope.

    Args:
        sources: as configured.
        environment: for the sources that are variables.
        monotonic: seconds.

    Raises :class:`ConfigError` where a source cannot be read at the start.
    """

    def __init__(
        self,
        sources: Tokens,
        environment: Mapping[str, str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = {scope: tuple(getattr(sources, scope)) for scope in SCOPES}
        self._environment = environment
        self._monotonic = monotonic
        self.failed: Callable[[], None] = lambda: None
        """Called each time that changed files cannot be taken over: the tokens read before stay in force."""
        self._files = {
            scope: tuple(source.file for source in found if source.file is not None)
            for scope, found in self._sources.items()
        }
        self._marks: dict[str, _Mark] = {file: _mark(file) for files in self._files.values() for file in files}
        self._found = {scope: self._read(scope) for scope in SCOPES}
        self.by_scope: dict[str, tuple[str, ...]] = {scope: _all(found) for scope, found in self._found.items()}
        self._told: set[str] = set()
        self._tell_weaknesses()
        self._bytes = {scope: tuple(token.encode() for token in found) for scope, found in self.by_scope.items()}
        self._looked = monotonic()
        self.reloads = 0
        """Times that changed files were taken over."""
        self._errors: dict[str, str] = {}

    @property
    def reload_error(self) -> str:
        """Why changed files are not in force, while that is so; names files, never a token."""
        return " ".join(self._errors.values())

    def _read(self, scope: str) -> _Found:
        return tuple(
            (source, tuple(tokens_of(source, f"tokens.{scope}", self._environment))) for source in self._sources[scope]
        )

    def _tell_weaknesses(self) -> None:
        """Each once, until it was mended and is there again."""
        weak = tuple(weaknesses(self._found))
        for sentence in weak:
            if sentence not in self._told:
                log.warning("%s", sentence)
        self._told = set(weak)

    def of(self, scope: str) -> tuple[bytes, ...]:
        """The tokens of a scope; empty for one that is open."""
        if self._monotonic() - self._looked >= LOOK_SECONDS:
            self.look()
        return self._bytes.get(scope, ())

    def look(self) -> None:
        """Read again what has changed."""
        self._looked = self._monotonic()
        marks = {file: _mark(file) for file in self._marks}
        if marks == self._marks:
            return
        changed = {file for file, mark in marks.items() if mark != self._marks[file]}
        self._marks = marks
        for scope, files in self._files.items():
            if changed.intersection(files):
                self._reload(scope)
        self._tell_weaknesses()

    def _reload(self, scope: str) -> None:
        try:
            found = self._read(scope)
        except ConfigError as error:
            self.failed()
            self._errors[scope] = f"{error} The tokens that were read before stay in force."
            log.error("%s", self._errors[scope])
            return
        self._errors.pop(scope, None)
        self._found[scope] = found
        tokens = _all(found)
        if tokens != self.by_scope[scope]:
            self.by_scope[scope] = tokens
            self._bytes[scope] = tuple(token.encode() for token in tokens)
            self.reloads += 1
            log.info("The tokens of scope %s were read again; in force now: %d", scope, len(tokens))


def _all(found: _Found) -> tuple[str, ...]:
    return tuple(token for _, tokens in found for token in tokens)


def _mark(file: str) -> _Mark:
    """What changes when a file is written, replaced, or a link to it is turned."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
