"""The lint of rules: what they ask for, what an alert says, who loads them. Called by :mod:`exporter.bundle.check`."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterable
from typing import Final

from exporter.bundle import promql, templates
from exporter.bundle.findings import Report, listed, nearest
from exporter.bundle.layout import Config, Parts, Rule
from exporter.bundle.metrics import Known, Labels
from exporter.bundle.reading import Tree

ANNOTATIONS: Final = ("summary", "description", "action", "dashboard_url", "runbook_url")
"""What every alert says: what it is, the numbers, what to do, where to look, and what it means."""

SEVERITIES: Final = ("critical", "warning", "none")
"""Those that ``alertmanager.yml`` has routes for."""

SECTIONS: Final = (
    "What it means",
    "How to confirm",
    "What to do",
    "When to roll back",
    "Known false positives",
)
"""Of a runbook, each a heading of the second level with text below."""

_SECTION: Final = re.compile(r"^##[ \t]+(.+?)[ \t]*$\n?(.*?)(?=^##?[ \t]|\Z)", re.MULTILINE | re.DOTALL)
_TITLE: Final = re.compile(r"#\s+(.+?)\s*#*\s*")


def recorded(parts: Parts) -> dict[str, Labels]:
    """What the rules record, with the labels that each may have.

    A rule may record from what another records, so this goes round until nothing new is learnt.
    """
    known: dict[str, Labels] = {rule.name: None for rule in parts.all_rules() if rule.kind == "record"}
    for _ in range(8):
        before = dict(known)
        found: dict[str, Labels] = {}
        for rule in parts.all_rules():
            if rule.kind != "record":
                continue
            labels = _labels_of(rule, Known(before))
            labels = None if labels is None else labels | frozenset(rule.labels)
            # One name may be recorded by several rules: it may have the labels of each.
            if rule.name in found:
                first = found[rule.name]
                labels = None if first is None or labels is None else first | labels
            found[rule.name] = labels
        known = found
        if known == before:
            break
    return known


def _labels_of(rule: Rule, known: Known) -> Labels:
    try:
        return promql.Asked(known, lambda _: None).labels(promql.parsed(rule.expression))
    except promql.Unusable:
        return None


def lint_rules(tree: Tree, parts: Parts, known: Known, report: Report) -> None:
    """All that is said of rules without their tests."""
    seen: dict[tuple[str, str, str], Rule] = {}
    for rule in parts.all_rules():
        report.saw("alerts" if rule.kind == "alert" else "recorded series")
        labels = _lint_expression(rule, known, report)
        if rule.kind == "alert":
            _lint_alert(rule, labels, known, report)
            _lint_runbook(tree, parts, rule, report)
        which = (rule.kind, rule.name, rule.severity if rule.kind == "alert" else str(sorted(rule.labels.items())))
        first = seen.setdefault(which, rule)
        if first is not rule:
            of = f" with severity {rule.severity}" if rule.severity else ""
            report.add(
                rule.file, rule.line, "duplicate", f"{rule.name}{of} is there twice: first {first.file}:{first.line}."
            )
    _lint_loading(parts, report)
    _lint_idle_runbooks(tree, parts, report)


def _lint_expression(rule: Rule, known: Known, report: Report) -> Labels:
    def say(sentence: str) -> None:
        report.add(rule.file, rule.expression_line, "query", f"{rule.name}: {sentence}")

    report.saw("queries")
    if not rule.expression:
        say("It has no expression.")
        return None
    try:
        return promql.Asked(known, say).labels(promql.parsed(rule.expression))
    except promql.Unusable as error:
        say(f"The expression {error}.")
        return None


def _lint_alert(rule: Rule, labels: Labels, known: Known, report: Report) -> None:
    missing = [name for name in ANNOTATIONS if not rule.annotations.get(name, ("", 0))[0].strip()]
    if missing:
        report.add(rule.file, rule.line, "annotation", f"{rule.name} has no {listed(missing)}.")
    if rule.severity not in SEVERITIES:
        says = f"severity {rule.severity}" if rule.severity else "no severity"
        report.add(
            rule.file, rule.line, "severity", f"{rule.name} has {says}: one of {', '.join(SEVERITIES)} is routed."
        )
    has = None if labels is None else labels | frozenset(rule.labels) | {"alertname"}
    texts = [*rule.annotations.items(), *((name, (value, rule.line)) for name, value in rule.labels.items())]
    for name, (text, line) in texts:
        if has is not None:
            for label in sorted(templates.labels(text) - has):
                sentence = f"{rule.name}: {name} shows label {label}, which the alert does not have."
                report.add(rule.file, line, "template", sentence)
        for query in templates.queries(text):
            _lint_query(rule, name, line, query, known, report)


def _lint_query(rule: Rule, name: str, line: int, query: str, known: Known, report: Report) -> None:
    def say(sentence: str) -> None:
        report.add(rule.file, line, "query", f"{rule.name}, in {name}: {sentence}")

    report.saw("queries")
    try:
        promql.Asked(known, say).labels(promql.parsed(query))
    except promql.Unusable as error:
        say(f"The query {query[:100]} {error}.")


def _lint_runbook(tree: Tree, parts: Parts, rule: Rule, report: Report) -> None:
    url, line = rule.annotations.get("runbook_url", ("", 0))
    name = f"{rule.name}.md"
    if url and posixpath.basename(url) != name:
        report.add(rule.file, line, "runbook", f"{rule.name}: runbook_url leads to {url}, not to {name}.")
    path = parts.below(f"runbooks/{name}")
    if not tree.has(path):
        report.add(rule.file, rule.line, "runbook", f"{rule.name} has no runbook: {path} is not there.")
        return
    text = tree.text(path)
    if text is None:
        return
    title = _TITLE.fullmatch(text.partition("\n")[0])
    if title is None or title.group(1) != rule.name:
        report.add(path, 1, "runbook", f"The title of a runbook is its alert's name: # {rule.name}")
    said = {name.strip(): body.strip() for name, body in _SECTION.findall(text)}
    missing = [name for name in SECTIONS if not said.get(name)]
    if missing:
        report.add(path, 1, "runbook", f"It says nothing under {listed(missing)}.")


def _lint_idle_runbooks(tree: Tree, parts: Parts, report: Report) -> None:
    alerts = {rule.name for rule in parts.all_rules() if rule.kind == "alert"}
    for path in tree.files(parts.below("runbooks"), lambda name: name.endswith(".md")):
        report.saw("runbooks")
        name = posixpath.basename(path).removesuffix(".md")
        if name not in alerts and name.lower() not in ("readme", "index"):
            report.add(path, 1, "runbook", f"No alert is named {name}, so nobody is led to this runbook.")


def _lint_loading(parts: Parts, report: Report) -> None:
    paths = {file.path for file in parts.rule_files}
    loaded: set[str] = set()
    for config in parts.configs:
        report.saw("configurations of Prometheus")
        for pattern, line in config.loads:
            hit = set(_matching(paths, pattern))
            loaded |= hit
            # A pattern may match nothing yet; a name that is written out is meant.
            if not hit and not set(pattern) & set("*?["):
                report.add(config.path, line, "loading", f"{pattern} is to be loaded and is not there.")
    if not parts.configs:
        report.notes.append("No configuration of Prometheus is here, so nothing says which rule files are loaded.")
        return
    for file in parts.rule_files:
        if file.path not in loaded and not file.optional:
            report.add(file.path, 1, "loading", "No configuration of Prometheus loads this file (rule_files).")
    for config in parts.configs:
        _lint_loads(config, parts, loaded, report)


def _lint_loads(config: Config, parts: Parts, loaded: set[str], report: Report) -> None:
    """A configuration with rules loads every file that another one loads, and scrapes what the rules look at."""
    hit = {path for pattern, _ in config.loads for path in _matching([file.path for file in parts.rule_files], pattern)}
    if not hit:
        return
    first = config.loads[0][1]
    for file in parts.rule_files:
        if file.path not in hit and file.path in loaded and not file.optional:
            sentence = f"{file.path} is loaded elsewhere and not here, beside the others (rule_files)."
            report.add(config.path, first, "loading", sentence)
    if config.jobs is None:
        return
    for rule in (rule for file in parts.rule_files if file.path in hit or file.optional for rule in file.rules):
        for matcher in promql.matchers(rule.expression, "job"):
            if not matcher.any_of(config.jobs):
                sentence = f"{rule.name} looks for job {matcher.value}, which {config.path} does not scrape: it has "
                sentence += f"{listed(sorted(config.jobs)) or 'no job'}{nearest(matcher.value, sorted(config.jobs))}."
                report.add(rule.file, rule.expression_line, "job", sentence)


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Prometheus takes ``*`` for the names of one folder only."""
    depth = pattern.count("/")
    return [path for path in paths if path.count("/") == depth and fnmatch.fnmatchcase(path, pattern)]
