"""The lint of Alertmanager's routes and inhibitions: they speak of alerts that there are.

Called by :mod:`exporter.bundle.check`. Whether the file is valid is amtool's to say.

A name that no alert has silences nothing, and nobody notices before the night in which it should have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Final

import yaml

from exporter.bundle.findings import Report, nearest
from exporter.bundle.promql import alternatives
from exporter.bundle.reading import Tree, items, line_of, text_of

_MATCHER: Final = re.compile(r"""\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|([^"'{},]*?))\s*""")
_SECTIONS: Final = frozenset({"matchers", "source_matchers", "target_matchers"})


def lint_routes(tree: Tree, path: str, alerts: Set[str], severities: Set[str], report: Report) -> None:
    """Look at every matcher.

    Args:
        tree: the directory.
        path: of Alertmanager's configuration.
        alerts: names of all alerts that may come.
        severities: those that they have.
        report: takes the findings.
    """
    for node in _matchers(tree.yaml(path), set()):
        report.saw("matchers of routes")
        found = _MATCHER.fullmatch(text_of(node))
        if found is None:
            continue  # amtool says so where it is none
        label, op, in_quotes, bare = found.groups()
        value = in_quotes if in_quotes is not None else bare
        known = {"alertname": alerts, "severity": severities}.get(label)
        if known is None or not value:
            continue
        for one in alternatives(value) if "~" in op else [value]:
            if not _any(one, "~" in op, known):
                what = "No alert is named" if label == "alertname" else "No alert has the severity"
                like = " like" if "~" in op and not one.isidentifier() else ""
                hint = nearest(re.sub(r"\W+$", "", one), sorted(known))
                report.add(path, line_of(node), "route", f"{what}{like} {one}{hint}.")


def _matchers(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.Node]:
    """All matchers, wherever they are."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _matchers(item, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if text_of(key) in _SECTIONS:
                yield from items(value)
            else:
                yield from _matchers(value, seen)


def _any(wanted: str, as_pattern: bool, known: Set[str]) -> bool:
    if not as_pattern:
        return wanted in known
    try:
        return any(re.fullmatch(wanted, one) for one in known)
    except re.error:
        return True  # Go's patterns differ from Python's in places; amtool knows them
