"""Every query parses, and asks for metrics that the exporter or the rules give. No program needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from dashboard_parts import Json, every_panel, every_query

from exporter.bundle.metrics import exported, of_the_monitoring
from grafana.expanding import Chosen, Times, expanded

RULES = Path(__file__).parents[2] / "rules" / "prometheus"
TIMES = Times(end=0.0, seconds=3600.0)
AWKWARD = 'a/b "c" [d] \\ % {} <script> $1 | 试验'
"""A run id may hold any printable character."""


def recorded() -> set[str]:
    files = (yaml.safe_load(path.read_text()) for path in RULES.glob("*.rules.yml"))
    return {rule["record"] for file in files for group in file["groups"] for rule in group["rules"] if "record" in rule}


def filled_in(dashboard: Json, value: str = "x") -> list[tuple[str, str]]:
    chosen = {one["name"]: Chosen([value]) for one in dashboard["templating"]["list"]} | {"window": Chosen(["15m"])}
    queries = []
    for where, query in every_query(dashboard):
        wrapped = re.fullmatch(r"(?:label_values\((.+), \w+\)|query_result\((.+)\))", query)
        inner = next(part for part in wrapped.groups() if part) if wrapped else query
        queries.append((where, expanded(inner, chosen, TIMES)))
    return queries


def selectors(node: Any) -> set[str]:
    """Names of the metrics in a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        return {str(node.name)}
    if isinstance(node, promql_parser.MatrixSelector):
        return selectors(node.vector_selector)
    children = [getattr(node, name) for name in ("expr", "lhs", "rhs", "param", "args") if hasattr(node, name)]
    nodes = [one for child in children for one in (child if isinstance(child, list) else [child]) if one is not None]
    return {name for one in nodes for name in selectors(one)}


def test_every_query_parses(dashboard: Json) -> None:
    for where, query in filled_in(dashboard):
        try:
            promql_parser.parse(query)
        except ValueError as error:
            pytest.fail(f"{where}: {error}\n{query}")


def test_a_run_id_with_odd_characters_is_matched_as_it_is(dashboard: Json) -> None:
    """In a raw string it needs no escapes but those of the expression; what Prometheus says of it is another test."""
    written = expanded("${run:regex}", {"run": Chosen([AWKWARD])}, TIMES)
    assert re.fullmatch(written, AWKWARD)
    assert not re.fullmatch(written, AWKWARD.replace("/", "x"))
    assert not any('"${run' in query or '"${project' in query for _, query in every_query(dashboard))


def test_every_metric_is_one_that_there_is(dashboard: Json) -> None:
    there = exported().keys() | of_the_monitoring().keys() | recorded()
    for where, query in filled_in(dashboard):
        found = selectors(promql_parser.parse(query))
        assert found or query == "vector(0)", where
        assert found <= there, f"{where}: {found - there}"


def test_every_question_about_alerts_is_about_ours_alone(dashboard: Json) -> None:
    """A Prometheus of several teams has alerts of others; a number and the table beside it have to agree."""
    for where, query in every_query(dashboard):
        for matchers in re.findall(r"ALERTS\{([^}]*)\}", query):
            ours = re.search(r'alertname(=~?)"([^"]+)"', matchers)
            assert ours, where
            assert ours.groups() in {("=~", "Verl.*|Watchdog"), ("=", "Watchdog")}, where


def test_no_query_keeps_instance(dashboard: Json) -> None:
    """A run that moves to another exporter stays one line."""
    for where, query in filled_in(dashboard):
        if not where.startswith("variable"):
            assert "instance" not in query, where
            parsed = promql_parser.parse(query)
            assert not isinstance(parsed, promql_parser.VectorSelector), where


def test_rates_of_the_exporter_fit_scrapes_of_1_and_15_seconds(dashboard: Json) -> None:
    """At least a minute wherever a rate is taken; of steps, which may take minutes, what the reader chose or more."""
    for panel in every_panel(dashboard):
        for target in panel.get("targets", []):
            for counter, window in re.findall(r"(?:rate|increase)\((\w+)(?:\{[^}]*\})?\[([^\]]+)\]", target["expr"]):
                if re.search(r"verl_(phase|training_step|run_time)", counter):
                    allowed = {"$window", "15m", "1h", "1d", "$__range"}
                    allowed |= {"$__interval"} if panel["type"] == "heatmap" else set()
                else:
                    allowed = {"$__rate_interval"}
                assert window in allowed, f"{panel['title']}: {counter}[{window}]"
