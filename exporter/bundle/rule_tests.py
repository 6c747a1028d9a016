"""The lint of promtool's tests: each alert fires in one and is quiet in one. Called by :mod:`exporter.bundle.check`.

Whether the tests pass is promtool's to say. A name may be an alert of several severities: each has to be tested.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from exporter.bundle.findings import Report
from exporter.bundle.layout import Parts, Rule
from exporter.bundle.reading import Tree, items, line_of, text_of, value_of


@dataclass(slots=True)
class Checked:
    """What the tests say of one rule file."""

    looked_at: dict[str, list[set[str]]] = field(default_factory=dict)
    """Alert to the severities that fire, at each time that it is looked at."""
    recorded: set[str] = field(default_factory=set)


def lint_tests(tree: Tree, parts: Parts, report: Report) -> None:
    """Say which alert, or which recorded series, no test says anything of."""
    by_file: dict[str, Checked] = {file.path: Checked() for file in parts.rule_files}
    names = {rule.name for rule in parts.all_rules()}
    for path in parts.tests:
        report.saw("files of tests")
        _read(tree, path, by_file, names, report)
    for file in parts.rule_files:
        for rule in file.rules:
            _lint(rule, by_file[file.path], report)


def _read(tree: Tree, path: str, by_file: dict[str, Checked], names: set[str], report: Report) -> None:
    node = tree.yaml(path)
    if node is None:
        return
    loads: list[Checked] = []
    for item in items(value_of(node, "rule_files")):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), text_of(item)))
        if target in by_file:
            loads.append(by_file[target])
        elif not set(target) & set("*?["):
            report.add(path, line_of(item), "test", f"{target} is tested here and is not there, or has no rules.")
    for test in items(value_of(node, "tests")):
        for check in items(value_of(test, "alert_rule_test")):
            name = text_of(value_of(check, "alertname"))
            if name not in names:
                report.add(
                    path, line_of(check), "test", f"{name or 'An alert without name'} is tested and is not there."
                )
            fired = {
                text_of(value_of(value_of(alert, "exp_labels"), "severity"))
                for alert in items(value_of(check, "exp_alerts"))
            }
            for checked in loads:
                checked.looked_at.setdefault(name, []).append(fired)
        for check in items(value_of(test, "promql_expr_test")):
            words = set(re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", text_of(value_of(check, "expr"))))
            if items(value_of(check, "exp_samples")):
                for checked in loads:
                    checked.recorded |= words & names


def _lint(rule: Rule, checked: Checked, report: Report) -> None:
    if rule.kind == "record":
        if rule.name not in checked.recorded:
            report.add(rule.file, rule.line, "test", f"{rule.name} has no test in which it has a value.")
        return
    looks = checked.looked_at.get(rule.name, [])
    of = f"{rule.name} with severity {rule.severity}" if rule.severity else rule.name
    if not any(rule.severity in fired for fired in looks):
        report.add(rule.file, rule.line, "test", f"{of} has no test in which it fires.")
    if all(rule.severity in fired for fired in looks) and not always(rule):
        report.add(rule.file, rule.line, "test", f"{of} has no test in which it does not fire.")


def always(rule: Rule) -> bool:
    """Whether it is made to fire always, so that there is no input for which it would not."""
    return re.fullmatch(r"\s*vector\s*\(\s*1\s*\)\s*", rule.expression) is not None
