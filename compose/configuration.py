"""Prometheus and Alertmanager as ``rules/`` configures them, with the addresses and files of one stack filled in.

``rules/prometheus/prometheus.yml`` and ``rules/alertmanager.yml`` say what is scraped, judged and routed; nothing of it
is repeated here. Used by :mod:`compose.containers`, :mod:`compose.local` and :mod:`demo.stack`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from exporter.links import DEFAULT_CONSOLE, DEFAULT_GRAFANA

RULES = Path(__file__).resolve().parents[1] / "rules"
ALERT_TOKEN_FILE = "/etc/verl-sentinel/alert-token"
"""Where ``rules/alertmanager.yml`` expects the token of scope ``alert``."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Host and port of each program, as the others reach it; empty where it is not in this stack."""

    exporter: str = "127.0.0.1:9464"
    prometheus: str = "127.0.0.1:9090"
    alertmanager: str = "127.0.0.1:9093"
    grafana: str = ""


DEFAULTS = Addresses()
"""What the files in ``rules/`` say."""


def prometheus(addresses: Addresses, rules: str, *, seconds: int | None = None) -> dict[str, Any]:
    """The configuration of Prometheus.

    Args:
        addresses: where the programs of this stack are.
        rules: folder with the rule files, as Prometheus sees it.
        seconds: scrape and evaluate as often as that, where it is not to be what the file says.
    """
    config: dict[str, Any] = yaml.safe_load((RULES / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    if seconds is not None:
        config["global"].update(scrape_interval=f"{seconds}s", evaluation_interval=f"{seconds}s")
        for job in config["scrape_configs"]:
            job.pop("scrape_interval", None)
    config["rule_files"] = [f"{rules}/{name}" for name in config["rule_files"]]
    targets = {
        DEFAULTS.exporter: addresses.exporter,
        DEFAULTS.prometheus: addresses.prometheus,
        DEFAULTS.alertmanager: addresses.alertmanager,
    }
    jobs = [_retargeted(job, targets) for job in config["scrape_configs"]]
    config["scrape_configs"] = [job for job in jobs if job["static_configs"]]
    if addresses.grafana:
        config["scrape_configs"].append({"job_name": "grafana", "static_configs": [{"targets": [addresses.grafana]}]})
    managers = [_retargeted(one, targets) for one in config.pop("alerting")["alertmanagers"]]
    if any(one["static_configs"] for one in managers):
        config["alerting"] = {"alertmanagers": managers}
    return config


def alertmanager(addresses: Addresses, *, templates: str, token_file: str = ALERT_TOKEN_FILE) -> dict[str, Any]:
    """The configuration of Alertmanager.

    Args:
        addresses: where the exporter is.
        templates: folder with the templates of messages, as Alertmanager sees it.
        token_file: file with the token for the exporter, as Alertmanager sees it.
    """
    config: dict[str, Any] = yaml.safe_load((RULES / "alertmanager.yml").read_text(encoding="utf-8"))
    config["templates"] = [f"{templates}/{Path(name).name}" for name in config.get("templates", [])]
    if not config["templates"]:
        del config["templates"]
    filled: dict[str, Any] = _filled(config, {ALERT_TOKEN_FILE: token_file}, f"http://{addresses.exporter}/")
    return filled


def write_rules(folder: Path, *, console: str, grafana: str = DEFAULT_GRAFANA) -> None:
    """Put the rule files of ``rules/prometheus`` into ``folder``, with links that begin with these two addresses."""
    source = RULES / "prometheus"
    for file in source.rglob("*.rules.yml"):
        there = folder / file.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        there.write_text(text.replace(DEFAULT_CONSOLE, console).replace(DEFAULT_GRAFANA, grafana), encoding="utf-8")


def _retargeted(section: Mapping[str, Any], targets: Mapping[str, str]) -> dict[str, Any]:
    """A section with ``static_configs`` whose targets are replaced; those that are not in the stack are left out."""
    groups = []
    for group in section["static_configs"]:
        there = [found for name in group["targets"] if (found := targets.get(name, name))]
        if there:
            groups.append({**group, "targets": there})
    return {**section, "static_configs": groups}


def _filled(value: Any, files: Mapping[str, str], exporter: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, files, exporter) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, files, exporter) for one in value]
    if isinstance(value, str):
        base = f"{DEFAULT_CONSOLE}/"
        return exporter + value.removeprefix(base) if value.startswith(base) else files.get(value, value)
    return value
