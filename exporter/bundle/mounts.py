"""The lint of files for containers: what they mount is there. Called by :mod:`exporter.bundle.check`.

Docker makes an empty folder, belonging to root, of a source that is missing, and the container starts with that.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

import yaml

from exporter.bundle.findings import Report
from exporter.bundle.reading import Tree, entries, items, line_of, text_of, value_of

FILE: Final = "compose/compose.yml"
SECRETS: Final = "secrets"
"""The folder beside the file that is filled on the machine itself (make-secrets.sh)."""


def lint_mounts(tree: Tree, report: Report) -> None:
    """Say which relative path is mounted and is not there. Volumes by name and paths of the machine are left alone."""
    if not tree.has(FILE):
        return
    folder = posixpath.dirname(FILE)
    for service, (_, node) in entries(value_of(tree.yaml(FILE), "services")).items():
        for source, line in _sources(node):
            if not source.startswith(".") or "$" in source or posixpath.normpath(source).split("/")[0] == SECRETS:
                continue
            report.saw("mounts")
            path = posixpath.normpath(posixpath.join(folder, source))
            if not tree.has(path):
                report.add(FILE, line, "mount", f"Service {service} mounts {source}, and {path} is not there.")


def _sources(service: yaml.Node) -> Iterator[tuple[str, int]]:
    for volume in items(value_of(service, "volumes")):
        if isinstance(volume, yaml.ScalarNode):
            yield text_of(volume).partition(":")[0], line_of(volume)
        elif text_of(value_of(volume, "type")) in ("", "bind"):
            yield text_of(value_of(volume, "source")), line_of(volume)
