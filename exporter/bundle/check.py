"""A directory of rules and dashboards as a whole: what ``verl-sentinel check`` does.

Called by :mod:`exporter.cli.check` and, over what was just written, by the tests of the export.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from exporter.bundle.dashboards import Dashboards, lint_dashboards
from exporter.bundle.findings import Report
from exporter.bundle.layout import Parts, parts_of
from exporter.bundle.message_templates import lint_templates
from exporter.bundle.metrics import Known
from exporter.bundle.mounts import lint_mounts
from exporter.bundle.programs import run_programs
from exporter.bundle.reading import Tree
from exporter.bundle.routes import lint_routes
from exporter.bundle.rule_tests import lint_tests
from exporter.bundle.rules import lint_rules, recorded
from exporter.bundle.sources import beside
from exporter.links import DEFAULT_CONSOLE, DEFAULT_GRAFANA

_DASHBOARD: Final = re.compile(r"/d/([A-Za-z0-9_-]+)")
_DEFAULTS: Final = (DEFAULT_CONSOLE, DEFAULT_GRAFANA)


def check(
    root: Path,
    *,
    without: Collection[str] = (),
    allowed: Sequence[re.Pattern[str]] = (),
    strict: bool = False,
) -> Report:
    """Look at everything in a directory.

    Args:
        root: an export, a checkout of this repository, or one of their folders ``rules`` and ``grafana``.
        without: programs that are not to be called.
        allowed: patterns of metrics that others export and that are known to be there.
        strict: whether an address that was never filled in is a fault too.
    """
    report = Report()
    tree = Tree(root, report)
    parts = parts_of(tree)
    if parts.rules is None and parts.grafana is None:
        report.add(
            ".", 0, "directory", "There is neither a folder rules nor a folder grafana here: nothing to look at."
        )
        return report
    # Where there are no rules, dashboards and routes are for those that come with this program.
    own = parts_of(Tree(beside(), Report()))
    known = Known(recorded(parts if parts.rule_files else own), allowed)
    if parts.rules is None or not tree.has(parts.below("prometheus")):
        report.notes.append(
            "There are no rules here, so what they record is taken from those that come with verl-sentinel."
        )
    else:
        lint_rules(tree, parts, known, report)
        lint_tests(tree, parts, report)
        if not parts.rule_files:
            report.add(parts.rules, 0, "directory", "There is no rule file in its folder prometheus.")
    if parts.alertmanager is not None:
        alerts = [rule for rule in (*parts.all_rules(), *own.all_rules()) if rule.kind == "alert"]
        names, severities = {rule.name for rule in alerts}, {rule.severity for rule in alerts}
        lint_routes(tree, parts.alertmanager, names, severities, report)
    elif parts.rules is not None:
        report.notes.append("There is no alertmanager.yml here.")
    if parts.rules is not None:
        lint_templates(tree, parts, report)
    lint_mounts(tree, report)
    if parts.grafana is None:
        report.notes.append("There is no folder grafana here, so no dashboard was looked at.")
    else:
        dashboards = lint_dashboards(tree, parts.dashboards, known, report)
        if not parts.dashboards:
            report.add(parts.grafana, 0, "directory", "There is no dashboard in its folder dashboards.")
        elif parts.rules is not None:
            _lint_links(parts, dashboards, report)
    if strict:
        _lint_addresses(tree, parts, report)
    run_programs(root, parts, without, report)
    return report


def _lint_links(parts: Parts, dashboards: Dashboards, report: Report) -> None:
    """Alerts lead to dashboards that there are."""
    for rule in parts.all_rules():
        for name, (text, line) in rule.annotations.items():
            for uid in _DASHBOARD.findall(text):
                if uid not in dashboards.uids:
                    sentence = f"{rule.name}: {name} leads to dashboard {uid}, which is not here."
                    report.add(rule.file, line, "link", sentence)


def _lint_addresses(tree: Tree, parts: Parts, report: Report) -> None:
    """Addresses for people that were never filled in."""
    paths = [file.path for file in parts.rule_files] + list(parts.dashboards)
    paths += [parts.alertmanager] if parts.alertmanager else []
    for path in paths:
        text = tree.text(path) or ""
        for address in _DEFAULTS:
            at = re.search(re.escape(address) + r"(?!\d)", text)
            if at:
                line = text.count("\n", 0, at.start()) + 1
                sentence = f"The address is still {address}: verl-sentinel export fills in your own."
                report.add(path, line, "address", sentence)
