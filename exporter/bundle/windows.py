"""Whether the windows of the rules and panels hold enough samples at a site's intervals. Called by the export.

A rate needs two samples, and says little of a counter that it sees two of; a scrape may fail besides. Four are asked
for, as Grafana does for its own ``$__rate_interval``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from exporter.bundle import promql, templates
from exporter.bundle.findings import listed
from exporter.bundle.layout import Rule, rules_in
from exporter.bundle.reading import composed
from exporter.bundle.site import Site, SiteError, seconds

SAMPLES: Final = 4
_WINDOW: Final = re.compile(r"\[\s*((?:\d+(?:ms|s|m|h))+)\s*\]")


def fit(rule_files: Mapping[str, str], dashboards: Mapping[str, str], site: Site) -> None:
    """Refuse intervals at which a window would hold too few samples.

    Raises:
        SiteError: with the windows, and the longest interval that fits.
    """
    rules = [rule for path, text in rule_files.items() for rule in rules_in(path, composed(text))]
    recorded = {rule.name for rule in rules if rule.kind == "record"}
    scraped: list[tuple[float, str]] = []
    evaluated: list[tuple[float, str]] = []
    for rule in rules:
        for name, window in _windows(rule):
            where = f"{rule.file} line {rule.expression_line} ({rule.name})"
            (evaluated if name in recorded else scraped).append((window, where))
    for path, text in dashboards.items():
        scraped += [(seconds(found), path) for found in _WINDOW.findall(text)]
    _refuse(scraped, site.scrape_interval, "--scrape-interval")
    _refuse(evaluated, site.evaluated_every, "--evaluation-interval")


def _windows(rule: Rule) -> Iterable[tuple[str, float]]:
    """Metrics that a rule asks for over a time, with that time, also in the queries of its annotations."""
    for expression in [rule.expression, *(q for text, _ in rule.annotations.values() for q in templates.queries(text))]:
        try:
            node = promql.parsed(expression)
        except promql.Unusable:
            continue  # the check says so
        for selector, window in promql.selectors(node):
            if window is not None:
                yield selector.name or "", window


def _refuse(windows: Iterable[tuple[float, str]], interval: str, option: str) -> None:
    length = seconds(interval)
    small = sorted({(window, where) for window, where in windows if window < SAMPLES * length})
    if small:
        most = small[0][0] / SAMPLES
        raise SiteError(
            f"{option} {interval} is too long for windows that have to hold {SAMPLES} samples: "
            f"{listed(f'{where} has one of {window:.0f}s' for window, where in small)}. "
            f"At most {most:g}s will do."
        )
