"""What Grafana makes of a query before it asks Prometheus: variables, time range and intervals filled in.

Called by :mod:`grafana.against` and by tests. Only what the dashboards here use is known; anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SCRAPE_SECONDS: Final = 15
"""The data source's scrape interval, as grafana/provisioning sets it."""
MOST_POINTS: Final = 1000
"""Points of a panel of usual width."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)")
_SPECIAL_IN_REGEX: Final = re.compile(r"[\\^$*+?.()|\[\]{}/]")


@dataclass(frozen=True)
class Chosen:
    """The value of a variable: one or several, or what its author gave for all."""

    values: Sequence[str]
    custom_all: str | None = None

    def formatted(self, how: str) -> str:
        """As Grafana puts it into a query."""
        if self.custom_all is not None:
            return self.custom_all
        if how == "regex":
            escaped = [_SPECIAL_IN_REGEX.sub(lambda found: "\\" + found.group(), value) for value in self.values]
            return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
        if how in ("raw", ""):
            return ",".join(self.values)
        raise ValueError(f"The format {how!r} of a variable is not used in queries.")


@dataclass(frozen=True)
class Times:
    """Time range and least interval of a query, in seconds."""

    end: float
    seconds: float
    least: float = SCRAPE_SECONDS

    @property
    def interval(self) -> int:
        """``$__interval``: the step of the query."""
        return max(int(self.seconds / MOST_POINTS), int(self.least), 1)

    @property
    def rate_interval(self) -> int:
        """``$__rate_interval``: four scrapes at least, and one more than the step."""
        return max(self.interval + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)


def seconds_of(text: str) -> int:
    """Seconds of ``15m`` or ``now-6h``.

    >>> seconds_of("now-6h"), seconds_of("15s")
    (21600, 15)
    """
    number, unit = re.fullmatch(r"(?:now-)?(\d+)([smhdw])", text).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def expanded(query: str, chosen: Mapping[str, Chosen], times: Times) -> str:
    """The query as Prometheus gets it; raises ``KeyError`` for a variable that nobody has defined.

    >>> expanded("rate(x{run=~`${run:regex}`}[$__rate_interval])", {"run": Chosen(["a.b"])}, Times(0, 60))
    'rate(x{run=~`a\\\\.b`}[60s])'
    """
    own = {
        "__interval": f"{times.interval}s",
        "__rate_interval": f"{times.rate_interval}s",
        "__range": f"{int(times.seconds)}s",
    }

    def value(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(3)
        return own[name] if name in own else chosen[name].formatted(found.group(2) or "")

    def again(found: re.Match[str]) -> str:
        """A newer Grafana looks a second time, and so into the values; what it does not know it leaves there."""
        known = {*own, *chosen}
        return value(found) if (found.group(1) or found.group(3)) in known else found.group()

    return _VARIABLE.sub(again, _VARIABLE.sub(value, query))
