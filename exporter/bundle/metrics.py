"""Which metric there is, with which labels: what an expression may ask for. Called by the lints of this package.

Those of the exporter are read from the table that ``/metrics`` is made from, so this cannot fall behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from exporter.bundle import foreign
from exporter.bundle.values import VALUES
from exporter.service.exposition.families import FAMILIES

Labels = frozenset[str] | None
"""Names of labels that a series may have; ``None`` where that is not known."""

TARGET: Final = frozenset({"job", "instance"})
"""Labels that Prometheus puts on whatever it scrapes."""


def exported() -> dict[str, frozenset[str]]:
    """Every sample of the exporter's page with all labels that it has in Prometheus."""
    found: dict[str, frozenset[str]] = {}
    for family in FAMILIES:
        labels = frozenset(family.labels) | TARGET
        if family.kind in ("histogram", "summary"):
            found[f"{family.name}_sum"] = found[f"{family.name}_count"] = labels
            if family.kind == "histogram":
                found[f"{family.name}_bucket"] = labels | {"le"}
        else:
            found[family.sample] = labels
    return found


def of_the_monitoring() -> dict[str, Labels]:
    """What Prometheus and Alertmanager say of themselves."""
    found: dict[str, Labels] = {}
    for name in foreign.GAUGES | foreign.COUNTERS | foreign.SUMMARIES | foreign.OF_ALERTS:
        found[name] = None
    for name in foreign.SUMMARIES | foreign.HISTOGRAMS:
        found[f"{name}_sum"] = found[f"{name}_count"] = None
    for name in foreign.HISTOGRAMS:
        found[f"{name}_bucket"] = None
    for name in foreign.OF_A_SCRAPE:
        found[name] = TARGET
    return found


def _kinds() -> dict[str, str]:
    """Sample to ``counter`` or ``gauge``, of all but summaries' quantiles."""
    found = {name: "gauge" for name in foreign.GAUGES | foreign.OF_A_SCRAPE | foreign.OF_ALERTS}
    found |= {name: "counter" for name in foreign.COUNTERS}
    for name in foreign.SUMMARIES | foreign.HISTOGRAMS:
        found |= {f"{name}_{part}": "counter" for part in ("sum", "count", "bucket")}
    for family in FAMILIES:
        if family.kind in ("histogram", "summary"):
            found |= {f"{family.name}_{part}": "counter" for part in ("sum", "count", "bucket")}
        else:
            found[family.sample] = "counter" if family.kind == "counter" else "gauge"
    return found


class Known:
    """Metrics that an expression may name.

    Args:
        recorded: those that rules of the directory record, with their labels.
        allowed: patterns of further names that the caller knows of.
    """

    def __init__(self, recorded: Mapping[str, Labels], allowed: Iterable[re.Pattern[str]] = ()) -> None:
        self._allowed = tuple(allowed)
        self._kinds = {name: kind for name, kind in _kinds().items() if name not in recorded}
        self._labels: dict[str, Labels] = {**of_the_monitoring(), **recorded}
        for name, labels in exported().items():
            # Of what several of them export under one name (process_…) either's labels may be meant.
            self._labels[name] = None if name in self._labels else labels

    @property
    def names(self) -> list[str]:
        return sorted(self._labels)

    def labels(self, name: str) -> Labels:
        return self._labels.get(name)

    def kind(self, name: str) -> str | None:
        """``counter`` or ``gauge``; ``None`` where that is not known, as of what a rule records."""
        return self._kinds.get(name)

    def values(self, name: str, label: str) -> frozenset[str] | None:
        """What a label may be; ``None`` where that is not fixed."""
        return VALUES.get((name, label)) if name in self._kinds else None

    def __contains__(self, name: str) -> bool:
        return name in self._labels or any(pattern.fullmatch(name) for pattern in self._allowed)

    def matching(self, pattern: str) -> bool:
        """Whether a pattern of ``__name__`` has any metric; one that Python cannot read is given the benefit."""
        try:
            compiled = re.compile(pattern)
        except re.error:
            return True
        return any(compiled.fullmatch(name) for name in self._labels)
