"""The ``influxdb`` section of the configuration, and its token. Read by the configuration and the sink.

Imports nothing of the client, because every start of the exporter imports this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

OWN_TAGS = frozenset(
    ("run", "attempt", "project", "experiment", "cohort", "sender", "node", "gpu", "uuid", "event", "metric", "kind")
)
"""Tags that the sink sets itself."""

RESERVED_TAGS = frozenset(("time", "_field", "_measurement", "_value", "_time"))
"""Names that InfluxDB keeps for itself."""


class TokenUnavailable(Exception):
    """The token cannot be read; the text is a sentence that never holds the token."""


class SinkToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the token comes from: exactly one of the two. It is read anew when the server refuses it."""

    file: str | None = None
    """A file that holds the token and nothing else."""
    env: str | None = None
    """Name of an environment variable that holds it."""

    def __post_init__(self) -> None:
        if (self.file is None) == (self.env is None):
            raise ValueError("token has to have exactly one of file and env")
        if not (self.file or self.env):
            raise ValueError("token names an empty file or variable")


class InfluxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An InfluxDB 2 server, or anything that takes its writes on ``/api/v2/write``."""

    url: str
    """``http://`` or ``https://``, host and port, without a path of its own unless a proxy adds one."""
    org: str
    bucket: str
    token: SinkToken | None = None
    """None for a server that asks for none."""
    tags: dict[str, str] = {}
    """Set on every point, such as ``cluster``, where several exporters write to one bucket."""
    ca_file: str | None = None
    """Certificates (PEM) to trust instead of the system's."""
    timeout_seconds: float = 10.0
    """Of one request."""
    gzip: bool = False
    """Compress requests: for a slow line. It takes several times the processor time of all the rest."""
    max_lag_hours: float = 24.0
    """What is older and still not sent is dropped, and counted."""
    max_lag_entries: int = 2_000_000
    """Of the journal's positions; what is further behind is dropped, and counted."""

    def __post_init__(self) -> None:
        _check_url(self.url)
        for name in ("org", "bucket"):
            value = getattr(self, name)
            if not value or not value.isprintable():
                raise ValueError(f"{name} is {value!r}: it has to be the name or id that the server knows")
        if self.ca_file is not None and not self.ca_file:
            raise ValueError("ca_file is empty: name a file with certificates, or leave it out")
        if not 0.1 <= self.timeout_seconds <= 300:
            raise ValueError(f"timeout_seconds is {self.timeout_seconds}: it has to be from 0.1 to 300")
        if not 0 < self.max_lag_hours <= 24 * 366:
            raise ValueError(f"max_lag_hours is {self.max_lag_hours}: it has to be above 0, and at most a year")
        if not 1 <= self.max_lag_entries < 2**53:
            raise ValueError(f"max_lag_entries is {self.max_lag_entries}: it has to be at least 1")
        for tag, value in self.tags.items():
            _check_tag(tag, value)

    @property
    def target(self) -> str:
        """The place written to; another one begins with a place in the journal of its own."""
        return f"{self.url.rstrip('/')} org={self.org} bucket={self.bucket}"


def read_token(token: SinkToken | None, environment: Mapping[str, str]) -> str:
    """The token, or an empty text where none is set. Raises :class:`TokenUnavailable`."""
    if token is None:
        return ""
    if token.env is not None:
        origin = f"the environment variable {token.env}"
        if token.env not in environment:
            raise TokenUnavailable(f"influxdb.token: {origin} is not set.")
        text = environment[token.env].strip()
    else:
        origin = f"the file {token.file}"
        try:
            text = Path(token.file or "").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise TokenUnavailable(
                f"influxdb.token: {origin} cannot be read: {error.strerror or type(error).__name__}."
            ) from None
        except ValueError:
            raise TokenUnavailable(f"influxdb.token: {origin} cannot be read: it is not UTF-8 text.") from None
    if not text:
        raise TokenUnavailable(f"influxdb.token: {origin} holds no token.")
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise TokenUnavailable(
            f"influxdb.token: {origin} holds spaces, several lines or characters outside ASCII: one token is expected."
        )
    return text


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("url cannot be read: an address such as http://influxdb:8086 is expected") from None
    if "@" in parts.netloc:
        # Not repeated in the message: what stands there is a password.
        raise ValueError("url holds a user or password: give the token in token, and the address alone in url")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise ValueError(f"url is {url!r}: an address such as http://influxdb:8086 is expected")
    if parts.query or parts.fragment:
        raise ValueError(
            "url has a query or a fragment: org and bucket are settings of their own, the address ends before"
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"url is {url!r}: it has characters that an address cannot have")


def _check_tag(tag: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", tag):
        raise ValueError(f"tags has {tag!r}: a tag is named with letters, digits and _, and begins with a letter")
    if tag in OWN_TAGS or tag in RESERVED_TAGS:
        raise ValueError(f"tags has {tag!r}, which is taken: choose another name, such as cluster or site")
    if not value or not value.isprintable() or len(value) > 256:
        raise ValueError(f"tags has {value!r} for {tag!r}: a value has 1 to 256 characters that can be printed")
