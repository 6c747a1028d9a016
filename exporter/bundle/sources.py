"""The files that come with this program: ``rules/``, ``grafana/`` and ``compose/``. Called by the export and the check.

They lie beside the package ``exporter``, in a checkout and in an installation alike. They are found from there, and not
by their own names, because a folder ``rules`` in which somebody starts Python would be taken for a part of them. Only
what is named here is read: a checkout may have passwords and data in the same folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "rules": ("rules/prometheus/**/*.yml", "rules/tests/**/*.yml", "rules/runbooks/**/*.md"),
    "alertmanager": ("rules/alertmanager.yml", "rules/templates/*.tmpl"),
    "dashboards": ("grafana/dashboards/*.json", "grafana/provisioning/**/*.yml"),
    "compose": (
        "compose/compose.yml",
        "compose/.env.example",
        "compose/make-secrets.sh",
        "compose/exporter/exporter.yml",
        "compose/prometheus/prometheus.yml",
        "compose/alertmanager/alertmanager.yml",
    ),
}
"""Part of an export to the patterns of its files."""


class NotInstalled(RuntimeError):
    """Files are missing that belong to the installation; the message is a sentence."""


def beside() -> Path:
    """The folder that holds the packages."""
    return Path(str(files("exporter"))).parent


def shipped(part: str) -> dict[str, str]:
    """The files of a part as they come with the program, by their path, sorted.

    Raises:
        NotInstalled: where a pattern has no file.
    """
    root = beside()
    found: dict[str, str] = {}
    for pattern in FILES[part]:
        paths = sorted(root.glob(pattern))
        if not paths:
            raise NotInstalled(f"{pattern} is missing from this installation of verl-sentinel: install it anew.")
        found.update({path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths})
    return dict(sorted(found.items()))
