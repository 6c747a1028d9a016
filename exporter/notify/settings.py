"""The ``notify`` section of the configuration: who gets the messages of ``POST /api/v1/notify``. Read by
:mod:`exporter.config` and by the rest of this package.

Imports nothing of apprise, because every start of the exporter imports this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

MOST_URLS = 20
"""Of one target."""
MOST_URL_CHARACTERS = 4096


class UrlUnavailable(Exception):
    """The address cannot be had; the text is a sentence that never holds it."""


class UrlSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where apprise's addresses, which are secrets, come from: exactly one of the three. Files and variables are read
    at the start, and again for each message."""

    file: str | None = None
    """A file with one address a line; empty lines and lines that start with # do not count."""
    env: str | None = None
    """Name of an environment variable that holds one address."""
    value: str | None = None
    """The address itself."""

    def __post_init__(self) -> None:
        if sum(bool(part) for part in (self.file, self.env, self.value)) != 1:
            raise ValueError("a target's address has exactly one of file, env and value")

    @property
    def origin(self) -> str:
        """Named in sentences; never the address."""
        if self.file is not None:
            return f"the file {self.file}"
        return f"the environment variable {self.env}" if self.env is not None else "its value"


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets by name."""

    targets: dict[str, tuple[UrlSource, ...]] = {}
    """Each has one or more addresses, and has taken a message when all of them have."""
    timeout_seconds: float = 15.0
    """What is not delivered by then is answered as failed, and Alertmanager tries again."""

    def __post_init__(self) -> None:
        if not 1 <= self.timeout_seconds <= 120:
            raise ValueError(f"timeout_seconds is {self.timeout_seconds}: it has to be from 1 to 120")
        for name, sources in self.targets.items():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
                raise ValueError(
                    f"targets has {name!r}: a target is named with up to 64 letters, digits, _ and -, for it stands in "
                    "addresses and in a metric's label"
                )
            if not sources:
                raise ValueError(f"targets has {name} without an address: give it file, env or value")


def urls_of(source: UrlSource, environment: Mapping[str, str]) -> list[str]:
    """The addresses that a source holds now. Raises :class:`UrlUnavailable`."""
    if source.value is not None:
        found = [source.value.strip()]
    elif source.env is not None:
        if source.env not in environment:
            raise UrlUnavailable(f"{source.origin} is not set")
        found = [environment[source.env].strip()]
    else:
        try:
            text = Path(source.file or "").read_text(encoding="utf-8")
        except OSError as error:
            raise UrlUnavailable(f"{source.origin} cannot be read: {error.strerror or type(error).__name__}") from None
        except ValueError:
            raise UrlUnavailable(f"{source.origin} cannot be read: it is not UTF-8 text") from None
        lines = [line.strip() for line in text.splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
    if not found or not all(found):
        raise UrlUnavailable(f"{source.origin} holds no address")
    if len(found) > MOST_URLS:
        raise UrlUnavailable(f"{source.origin} holds {len(found)} addresses: {MOST_URLS} are the most")
    if any(len(url) > MOST_URL_CHARACTERS or not url.isprintable() for url in found):
        raise UrlUnavailable(
            f"{source.origin} holds an address of more than {MOST_URL_CHARACTERS} characters, or with some that "
            "cannot be printed"
        )
    return found
