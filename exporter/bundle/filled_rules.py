"""Rules, their tests and dashboards with a site's addresses, job and labels. Called by :mod:`exporter.bundle.bundle`.

The tests say what the annotations and labels of each alert are, so whatever is filled into the rules is filled into
them too: they pass before and after, and would tell of a mistake made here.
"""

from __future__ import annotations

import json
import re
from typing import Final

import yaml

from exporter.bundle.edits import Edits, quoted
from exporter.bundle.reading import entries, items, value_of
from exporter.bundle.site import DEFAULT_JOB, Site
from exporter.links import DEFAULT_CONSOLE, DEFAULT_GRAFANA

_RUNBOOKS: Final = f"{DEFAULT_CONSOLE}/runbooks"
_ADDRESSES: Final = re.compile(
    "|".join(f"{re.escape(one)}(?![0-9A-Za-z_-])" for one in (_RUNBOOKS, DEFAULT_CONSOLE, DEFAULT_GRAFANA))
)
_MATCHER: Final = re.compile(rf'(\bjob\s*=~?\s*\\?")({re.escape(DEFAULT_JOB)})(\\?")')
_ENTRY: Final = re.compile(rf"(\bjob(?:_name)?: )[\"']?{re.escape(DEFAULT_JOB)}[\"']?(?=\s*(?:[,}}#]|$))", re.MULTILINE)
_OWN_INTERVAL: Final = re.compile(
    r"(sets? no interval of (?:their|its) own|No interval of its own):"
    r"\s+(?:# )?global\.evaluation_interval\s+(?:# )?holds\."
)


def addressed(text: str, site: Site) -> str:
    """A text in which the addresses for people are the site's."""
    of = {_RUNBOOKS: site.runbooks, DEFAULT_CONSOLE: site.console, DEFAULT_GRAFANA: site.grafana}
    return _ADDRESSES.sub(lambda found: of[found.group()], text)


def with_job(text: str, site: Site) -> str:
    """A text in which the exporter's job is called what the site calls it, in expressions and as an entry of YAML."""
    if site.job == DEFAULT_JOB:
        return text
    text = _MATCHER.sub(lambda found: f"{found.group(1)}{site.job}{found.group(3)}", text)
    return _ENTRY.sub(lambda found: f"{found.group(1)}{quoted(site.job)}", text)


def filled_rules(text: str, site: Site) -> str:
    """A rule file."""
    text = with_job(addressed(text, site), site)
    if not site.labels and not site.evaluation_interval:
        return text
    edits = Edits(text)
    for group in items(value_of(edits.root, "groups")):
        if site.evaluation_interval and "interval" not in entries(group) and isinstance(group, yaml.MappingNode):
            # Behind the name, where people look for it.
            key = group.value[min(1, len(group.value) - 1)][0]
            edits.before(key, " " * key.start_mark.column + f"interval: {site.evaluation_interval}\n")
        for rule in items(value_of(group, "rules")):
            if "alert" in entries(rule):
                _label(edits, rule, "labels", site)
    text = edits.done()
    if not site.evaluation_interval:
        return text
    said = f"every {site.evaluation_interval}, whatever the global interval is."
    begins = {"set ": "are evaluated ", "sets": "is evaluated ", "No i": "Evaluated "}
    return _OWN_INTERVAL.sub(lambda found: begins[found[1][:4]] + said, text)


def filled_tests(text: str, site: Site) -> str:
    """A file of promtool's tests."""
    text = with_job(addressed(text, site), site)
    if not site.labels:
        return text
    edits = Edits(text)
    for test in items(value_of(edits.root, "tests")):
        for check in items(value_of(test, "alert_rule_test")):
            for alert in items(value_of(check, "exp_alerts")):
                _label(edits, alert, "exp_labels", site)
        for check in items(value_of(test, "promql_expr_test")):
            for sample in items(value_of(check, "exp_samples")):
                _label_sample(edits, value_of(sample, "labels"), site)
    return edits.done()


def _label(edits: Edits, holder: yaml.Node, key: str, site: Site) -> None:
    mapping = value_of(holder, key)
    for name, value in site.labels.items():
        edits.set(mapping, name, quoted(value))


def _label_sample(edits: Edits, node: yaml.Node | None, site: Site) -> None:
    """``ALERTS{…}`` has the alert's labels."""
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
    found = re.fullmatch(r"\s*(ALERTS(?:_FOR_STATE)?)\{(.*)\}\s*", text, re.DOTALL)
    if node is None or found is None:
        return
    more = "".join(f",{name}={quoted(value)}" for name, value in site.labels.items())
    edits.replace(node, quoted(f"{found.group(1)}{{{found.group(2).rstrip(', ')}{more}}}"))


def filled_dashboard(text: str, site: Site) -> str:
    """A dashboard's JSON."""
    text = with_job(addressed(text, site), site)
    if not site.datasource:
        return text
    data = json.loads(text)
    for variable in data.get("templating", {}).get("list", []):
        if variable.get("type") == "datasource" and variable.get("query") == "prometheus":
            variable["current"] = {"selected": True, "text": site.datasource, "value": site.datasource}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
