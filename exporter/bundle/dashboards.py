"""The lint of Grafana's dashboards: what each panel says and asks for. Called by :mod:`exporter.bundle.check`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from exporter.bundle import promql, units
from exporter.bundle.findings import Report, listed, nearest
from exporter.bundle.metrics import Known
from exporter.bundle.reading import Placed, Tree

WITHOUT_UNIT: Final = frozenset({"row", "text", "dashlist", "alertlist", "annolist", "news", "welcome", "logs"})
"""Types of panels that show no numbers of their own."""

_LINK: Final = re.compile(r"/d/([A-Za-z0-9_-]+)")
_LABEL_VALUES: Final = re.compile(r"\s*label_values\(\s*(?:(.*?)\s*,\s*)?([A-Za-z_]\w*)\s*\)\s*", re.DOTALL)
_QUERY_RESULT: Final = re.compile(r"\s*query_result\((.*)\)\s*", re.DOTALL)
_METRICS: Final = re.compile(r"\s*(metrics\(.*\)|label_names\(.*\))\s*", re.DOTALL)


@dataclass(slots=True)
class Dashboards:
    """What has been seen over all files."""

    uids: dict[str, str] = field(default_factory=dict)
    """To the file that has it."""
    tags: set[str] = field(default_factory=set)
    links: list[tuple[str, int, str]] = field(default_factory=list)
    """File, line and uid of every link to a dashboard."""
    tagged: list[tuple[str, int, list[str]]] = field(default_factory=list)


def lint_dashboards(tree: Tree, paths: tuple[str, ...], known: Known, report: Report) -> Dashboards:
    """All dashboards, and the links among them."""
    seen = Dashboards()
    for path in paths:
        data = tree.json(path)
        if data is None:
            continue
        if not isinstance(data, Placed) or not isinstance(data.get("panels"), list):
            report.add(path, 1, "dashboard", "It is no dashboard: a JSON object with a list of panels is expected.")
            continue
        report.saw("dashboards")
        One(path, data, known, report).lint(seen)
    for file, line, uid in seen.links:
        if uid not in seen.uids:
            report.add(file, line, "link", f"A link leads to dashboard {uid}, which is not here.")
    for file, line, tags in seen.tagged:
        if not set(tags) <= seen.tags:
            report.add(file, line, "link", f"Links are to the dashboards tagged {listed(tags)}, and there is none.")
    return seen


class One:
    """One dashboard."""

    def __init__(self, path: str, data: Placed, known: Known, report: Report) -> None:
        self._path = path
        self._data = data
        self._known = known
        self._report = report
        self._variables = {str(one.get("name")) for one in _objects(_at(data, "templating", "list"))}

    def lint(self, seen: Dashboards) -> None:
        data = self._data
        uid, title = str(data.get("uid") or ""), str(data.get("title") or "")
        if not uid:
            self._say(1, "dashboard", "It has no uid, so nothing can link to it.")
        elif uid in seen.uids:
            self._say(1, "duplicate", f"Its uid {uid} is that of {seen.uids[uid]}.")
        else:
            seen.uids[uid] = self._path
        if not title:
            self._say(1, "dashboard", "It has no title.")
        seen.tags |= set(_words(data.get("tags")))
        ids: set[Any] = set()
        for panel in _panels(data):
            self._panel(panel, ids)
        for variable in _objects(_at(data, "templating", "list")):
            self._variable(variable)
        for annotation in _objects(_at(data, "annotations", "list")):
            if isinstance(annotation.get("expr"), str):
                self._query(annotation["expr"], annotation.line, f"Annotation {annotation.get('name')}")
        for text, line in _texts(data, 1):
            seen.links += [(self._path, line, uid) for uid in _LINK.findall(text) if not uid.startswith("$")]
        for link in _objects(data.get("links")):
            if link.get("type") == "dashboards":
                seen.tagged.append((self._path, link.line, _words(link.get("tags"))))

    def _say(self, line: int, check: str, sentence: str) -> None:
        self._report.add(self._path, line, check, sentence)

    def _panel(self, panel: Placed, ids: set[Any]) -> None:
        self._report.saw("panels")
        kind, title = str(panel.get("type") or ""), str(panel.get("title") or "").strip()
        named = f"Panel {title}" if title else f"A panel ({kind or 'without type'})"
        key = str(panel.get("id"))
        if panel.get("id") is not None and key in ids:
            self._say(panel.line, "duplicate", f"{named} has id {key}, as another one has.")
        ids.add(key)
        missing = [] if title else ["title"]
        if kind != "row" and not str(panel.get("description") or "").strip():
            missing.append("description")
        if kind not in WITHOUT_UNIT and not _units(panel):
            missing.append("unit")
        if missing:
            self._say(panel.line, "panel", f"{named} has no {listed(missing)}.")
        for unit in _units(panel):
            if not units.is_known(unit):
                hint = nearest(unit, sorted(units.KNOWN))
                self._say(panel.line, "unit", f"{named} has unit {unit[:60]}, which Grafana does not know{hint}.")
        for target in _objects(panel.get("targets")):
            expression = target.get("expr")
            if isinstance(expression, str):
                self._query(expression, target.line, named)
        if isinstance(panel.get("repeat"), str) and panel["repeat"] not in self._variables:
            self._say(panel.line, "variable", f"{named} is repeated for {panel['repeat']}, which is no variable here.")

    def _variable(self, variable: Placed) -> None:
        named = f"Variable {variable.get('name')}"
        if variable.get("type") != "query":
            return
        query = variable.get("query")
        text = query.get("query") if isinstance(query, dict) else query
        if not isinstance(text, str) or not text.strip():
            self._say(variable.line, "variable", f"{named} has no query.")
            return
        self._defined(text, variable.line, named)
        if _METRICS.fullmatch(text):
            return
        result, values = _QUERY_RESULT.fullmatch(text), _LABEL_VALUES.fullmatch(text)
        if result:
            self._query(result.group(1), variable.line, named)
        elif values is None:
            self._say(variable.line, "variable", f"{named} asks {text[:100]}, which Grafana does not understand.")
        elif values.group(1):
            labels = self._query(values.group(1), variable.line, named)
            label = values.group(2)
            if labels is not None and label not in labels:
                what = f"{named} wants values of label {label}, which {values.group(1)[:100]} does not have."
                self._say(variable.line, "label", what)

    def _query(self, expression: str, line: int, named: str) -> Any:
        self._report.saw("queries")
        self._defined(expression, line, named)
        if not expression.strip():
            self._say(line, "query", f"{named} has an empty query.")
            return None
        try:
            node = promql.parsed_of_dashboard(expression)
        except promql.Unusable as error:
            self._say(line, "query", f"{named}: the query {expression[:100]!r} {error}.")
            return None
        return promql.Asked(self._known, lambda said: self._say(line, "query", f"{named}: {said}")).labels(node)

    def _defined(self, text: str, line: int, named: str) -> None:
        for name in sorted(promql.variables(text) - self._variables - promql.BUILT_IN):
            self._say(line, "variable", f"{named} uses ${name}, which is no variable here.")


def _objects(value: Any) -> list[Placed]:
    return [one for one in value if isinstance(one, Placed)] if isinstance(value, list) else []


def _words(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _panels(holder: Placed) -> Iterator[Placed]:
    """All panels, also those in rows that are folded up."""
    for panel in _objects(holder.get("panels")):
        yield panel
        yield from _panels(panel)


def _units(panel: Placed) -> list[str]:
    """Every unit that a panel sets: its own, of a column or series, or of a heat map's axis."""
    overrides = _objects(_at(panel, "fieldConfig", "overrides"))
    found = [
        one.get("value") for over in overrides for one in _objects(over.get("properties")) if one.get("id") == "unit"
    ]
    found += [_at(panel, "fieldConfig", "defaults", "unit"), _at(panel, "options", "yAxis", "unit")]
    return [unit for unit in found if isinstance(unit, str) and unit]


def _texts(value: Any, line: int) -> Iterator[tuple[str, int]]:
    """Every string, with the line of the object that it is in."""
    if isinstance(value, Placed):
        for item in value.values():
            yield from _texts(item, value.line)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, line)
    elif isinstance(value, str):
        yield value, line
