"""The lint of what Alertmanager's configuration and templates call by name. Called by :mod:`exporter.bundle.check`.

amtool reads a template that calls another which is not defined without a word; the message then fails when it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from exporter.bundle.findings import Report, nearest
from exporter.bundle.layout import Parts
from exporter.bundle.reading import Tree, line_of

_CALL: Final = re.compile(r'\{\{-?\s*template\s+(?:"([^"\n]+)"|`([^`\n]+)`)')
_DEFINE: Final = re.compile(r'\{\{-?\s*(?:define|block)\s+(?:"([^"\n]+)"|`([^`\n]+)`)')
_OWN: Final = re.compile(r"__\w+|\w+\.default(\.\w+)*")
"""Names of those that are part of Alertmanager itself."""


def lint_templates(tree: Tree, parts: Parts, report: Report) -> None:
    """Say which template is called and not defined."""
    texts = {
        path: tree.text(path) or ""
        for path in tree.files(parts.below("templates"), lambda name: name.endswith((".tmpl", ".html")))
    }
    defined = {first or second for text in texts.values() for first, second in _DEFINE.findall(text)}
    calls: list[tuple[str, int, str]] = []
    for path, text in texts.items():
        report.saw("files of templates")
        for found in _CALL.finditer(text):
            calls.append((path, text.count("\n", 0, found.start()) + 1, found.group(1) or found.group(2)))
    if parts.alertmanager is not None:
        for node in _scalars(tree.yaml(parts.alertmanager), set()):
            for first, second in _CALL.findall(str(node.value)):
                calls.append((parts.alertmanager, line_of(node), first or second))
    for path, line, name in calls:
        if name not in defined and not _OWN.fullmatch(name):
            report.add(
                path, line, "template", f"Template {name} is called and not defined{nearest(name, sorted(defined))}."
            )


def _scalars(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.ScalarNode]:
    """All scalars, each once."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, seen)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _scalars(value, seen)
