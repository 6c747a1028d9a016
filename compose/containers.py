"""``python -m compose.containers`` writes what ``rules/`` configures with the addresses that containers have.

Run it after a change of ``rules/prometheus/prometheus.yml`` or ``rules/alertmanager.yml``; a test tells who forgot. The
comments are in those files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from compose.configuration import Addresses, alertmanager, prometheus

FOLDER = Path(__file__).resolve().parent
SERVICES = Addresses(
    exporter="exporter:9464", prometheus="prometheus:9090", alertmanager="alertmanager:9093", grafana="grafana:3000"
)
"""Containers find each other by the names that compose.yml gives them."""


def files() -> dict[Path, str]:
    """Every file that is made, with its text."""
    return {
        FOLDER / "prometheus" / "prometheus.yml": _text(
            prometheus(SERVICES, "/etc/prometheus/rules"), "rules/prometheus/prometheus.yml"
        ),
        FOLDER / "alertmanager" / "alertmanager.yml": _text(
            alertmanager(SERVICES, templates="/etc/alertmanager/templates"), "rules/alertmanager.yml"
        ),
    }


def _text(config: dict[str, Any], source: str) -> str:
    return (
        f"# {source}, which has the comments, with the addresses of containers. Make changes there, and\n"
        "# this file anew: python -m compose.containers\n"
        + yaml.safe_dump(config, sort_keys=False, width=110, allow_unicode=True)
    )


def main() -> None:
    """Write them all."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(FOLDER.parent))


if __name__ == "__main__":
    main()
