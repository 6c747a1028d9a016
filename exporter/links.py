"""Where people find this exporter's console and their Grafana: the section ``links`` of the configuration.

Read by :mod:`exporter.config`; used by what writes links for people: the console, messages, exported rules.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

DEFAULT_CONSOLE = "http://127.0.0.1:9464"
"""What the rules, routes and dashboards in this repository say."""
DEFAULT_GRAFANA = "http://127.0.0.1:3000"

_NOT_IN_ADDRESSES = frozenset(" '\"<>{}\\`|^?#@")
"""Nor whatever would end the address early where it is put into YAML, HTML or a message."""


class Links(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses as a person's browser reaches them, which may be those of a proxy."""

    console: str = DEFAULT_CONSOLE
    """This exporter."""
    grafana: str = ""
    """Grafana, with the dashboards of ``grafana/``; empty where there is none, and then nothing links to it."""

    def __post_init__(self) -> None:
        base_url(self.console, "console")
        if self.grafana:
            base_url(self.grafana, "grafana")


def base_url(given: str, name: str) -> str:
    """The address without a slash at its end. Raises ``ValueError`` with a sentence for what is none.

    >>> base_url("https://grafana.example.org/monitoring/", "grafana")
    'https://grafana.example.org/monitoring'
    """
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or not given.isascii() or not given.isprintable() or set(given) & _NOT_IN_ADDRESSES:
        raise ValueError(
            f"{name} is {given!r}: an address that starts with http:// or https:// is expected, "
            "without a user, a query or a fragment"
        )
    return given.rstrip("/")
