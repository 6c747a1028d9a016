"""Where things are in a directory: an export, this repository, or one of its folders. Called by the lints."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

import yaml

from exporter.bundle.reading import Tree, entries, items, line_of, text_of, value_of


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a rule file."""

    file: str
    line: int
    kind: str
    """``alert`` or ``record``."""
    name: str
    expression: str
    expression_line: int
    labels: dict[str, str]
    annotations: dict[str, tuple[str, int]]
    """With the line of each."""

    @property
    def severity(self) -> str:
        return self.labels.get("severity", "")


@dataclass(frozen=True, slots=True)
class RuleFile:
    path: str
    rules: tuple[Rule, ...]

    @property
    def optional(self) -> bool:
        """Whether it is one that is switched on by whoever wants it."""
        return "presets" in self.path.split("/")[:-1]


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration of Prometheus, with the rule files that it loads."""

    path: str
    loads: tuple[tuple[str, int], ...]
    """Paths or patterns below the directory, with the line of each."""
    jobs: frozenset[str] | None
    """Names of its scrape jobs; ``None`` where it reads some from further files."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a directory holds."""

    rules: str | None
    """The folder with ``prometheus/`` and ``tests/``; ``None`` where there is none."""
    grafana: str | None
    rule_files: tuple[RuleFile, ...]
    configs: tuple[Config, ...]
    tests: tuple[str, ...]
    dashboards: tuple[str, ...]
    alertmanager: str | None

    def all_rules(self) -> list[Rule]:
        return [rule for file in self.rule_files for rule in file.rules]

    def below(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.rules or ".", path))


def parts_of(tree: Tree) -> Parts:
    """Look for the folders and sort their files by what is in them."""
    rules = next((one for one, sign in (("rules", "rules"), (".", "prometheus")) if tree.has(sign)), None)
    grafana = next((one for one, sign in (("grafana", "grafana"), (".", "dashboards")) if tree.has(sign)), None)
    rule_files: list[RuleFile] = []
    configs: list[Config] = []
    tests: tuple[str, ...] = ()
    alertmanager = None
    if rules is not None:
        for path in tree.files(posixpath.normpath(f"{rules}/prometheus"), _is_yaml):
            _sort(tree, path, rule_files, configs)
        tests = tuple(tree.files(posixpath.normpath(f"{rules}/tests"), _is_yaml))
        found = posixpath.normpath(f"{rules}/alertmanager.yml")
        alertmanager = found if tree.has(found) else None
    dashboards: tuple[str, ...] = ()
    if grafana is not None:
        dashboards = tuple(tree.files(posixpath.normpath(f"{grafana}/dashboards"), lambda name: name.endswith(".json")))
    return Parts(rules, grafana, tuple(rule_files), tuple(configs), tests, dashboards, alertmanager)


def _is_yaml(name: str) -> bool:
    return name.endswith((".yml", ".yaml"))


def _sort(tree: Tree, path: str, rule_files: list[RuleFile], configs: list[Config]) -> None:
    """A file of Prometheus by what it holds: rules have ``groups``, all others are configuration."""
    node = tree.yaml(path)
    if node is None:
        return
    known = entries(node)
    if "groups" in known:
        rule_files.append(RuleFile(path, tuple(rules_in(path, node))))
    elif {"global", "scrape_configs", "rule_files", "remote_write"} & set(known):
        loads = [
            (posixpath.normpath(posixpath.join(posixpath.dirname(path), text_of(item))), line_of(item))
            for item in items(value_of(node, "rule_files"))
        ]
        jobs = frozenset(text_of(value_of(job, "job_name")) for job in items(value_of(node, "scrape_configs")))
        configs.append(Config(path, tuple(loads), None if "scrape_config_files" in known else jobs))
    else:
        tree.report.add(path, 1, "file", "It is neither rules (groups) nor a configuration of Prometheus.")


def rules_in(path: str, node: yaml.Node | None) -> list[Rule]:
    """The rules of a file, in their order."""
    found: list[Rule] = []
    for group in items(value_of(node, "groups")):
        for rule in items(value_of(group, "rules")):
            known = entries(rule)
            kind = "alert" if "alert" in known else "record"
            if kind not in known:
                continue  # promtool says so
            expression = value_of(rule, "expr")
            found.append(
                Rule(
                    path,
                    line_of(known[kind][0]),
                    kind,
                    text_of(known[kind][1]),
                    text_of(expression),
                    line_of(expression) if expression is not None else line_of(rule),
                    {name: text_of(value) for name, (_, value) in entries(value_of(rule, "labels")).items()},
                    {
                        name: (text_of(value), line_of(key))
                        for name, (key, value) in entries(value_of(rule, "annotations")).items()
                    },
                )
            )
    return found
