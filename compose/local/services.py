"""The programs of the local stack with their configurations. For :mod:`.stack`.

Prometheus and Alertmanager are configured as ``rules/`` says (:mod:`compose.configuration`), Grafana by ``grafana/``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from compose import configuration
from compose.configuration import RULES, Addresses
from compose.local.service import Service, StackError
from exporter.config import ConfigError, parse
from exporter.links import DEFAULT_CONSOLE

GRAFANA = RULES.parent / "grafana"
SCOPES = ("push", "alert", "operate")
OWN = "exporter.yml"
"""In the stack's folder, where there is one: sections of the exporter's configuration that go before ours."""

PORTS: Mapping[str, int] = {
    "exporter": 9464,
    "alertmanager": 9093,
    "prometheus": 9090,
    "victoriametrics": 8428,
    "grafana": 3000,
}
"""Every program there can be, in the order in which they are started, with its usual port."""

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "prometheus": ("prometheus",),
    "victoriametrics": ("victoria-metrics", "victoria-metrics-prod"),
    "grafana": ("grafana", "grafana-server"),
}
"""The names that packages and archives give them."""

WITHOUT: Mapping[str, str] = {
    "alertmanager": "Alertmanager is not there: nobody is told of alerts. "
    "To have it: apt install prometheus-alertmanager.",
    "prometheus": "Prometheus is not there: no alerts, no history. To have it: apt install prometheus.",
    "victoriametrics": "VictoriaMetrics is not there: of what is pushed, only what /metrics shows is kept for long. "
    "To have it: apt install victoria-metrics.",
    "grafana": "Grafana is not there: the console shows the runs. A program grafana in PATH is started, too.",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a stack was asked for.

    Args:
        folder: everything that it writes.
        ports: where each program listens on 127.0.0.1.
        recovery: ``recovery.mode`` of the exporter.
    """

    folder: Path
    ports: Mapping[str, int]
    recovery: str = "observe"

    def token_file(self, scope: str) -> Path:
        return self.folder / "tokens" / scope


def programs() -> dict[str, str]:
    """Path of each program that is on this machine, by key; the exporter is this package."""
    found = {key: next(filter(None, map(shutil.which, names)), None) for key, names in PROGRAMS.items()}
    return {"exporter": sys.executable} | {key: path for key, path in found.items() if path is not None}


def write_tokens(settings: Settings) -> None:
    """A random token for each scope, in a file that only this user can read; those that are there stay."""
    folder = settings.folder / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in (*SCOPES, "grafana"):
        path = folder / name
        if not (path.exists() and path.read_text(encoding="utf-8").strip()):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        path.chmod(0o600)


def services(settings: Settings, there: Mapping[str, str]) -> list[Service]:
    """The programs that are there, in the order in which they are started."""
    makers = {
        "exporter": _exporter,
        "alertmanager": _alertmanager,
        "prometheus": _prometheus,
        "victoriametrics": _victoriametrics,
        "grafana": _grafana,
    }
    return [make(settings, there) for key, make in makers.items() if key in there]


def configurations(settings: Settings, there: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The configuration of each program that reads one, by key."""
    addresses = Addresses(
        exporter=_host(settings, "exporter"),
        prometheus=_host(settings, "prometheus"),
        alertmanager=_host(settings, "alertmanager") if "alertmanager" in there else "",
        grafana=_host(settings, "grafana") if "grafana" in there else "",
    )
    made = {"exporter": _exporter_configuration(settings, there)}
    if "prometheus" in there:
        made["prometheus"] = configuration.prometheus(addresses, str(_file(settings, "rules")))
    if "alertmanager" in there:
        made["alertmanager"] = configuration.alertmanager(
            addresses, templates=str(RULES / "templates"), token_file=str(settings.token_file("alert"))
        )
    return made


def write_rules_and_dashboards(settings: Settings, there: Mapping[str, str]) -> None:
    """Both as they are now, with links that lead into this stack."""
    console = _url(settings, "exporter")
    grafana = {"grafana": _url(settings, "grafana")} if "grafana" in there else {}
    configuration.write_rules(_file(settings, "rules"), console=console, **grafana)
    if not grafana:
        return
    there_now = _file(settings, "grafana") / "dashboards"
    for file in GRAFANA.rglob("*"):
        if file.suffix in (".json", ".yml"):
            copy = _file(settings, "grafana") / file.relative_to(GRAFANA)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8").replace(DEFAULT_CONSOLE, console)
            copy.write_text(text.replace("/var/lib/grafana/dashboards", str(there_now)), encoding="utf-8")


def text(config: Mapping[str, Any]) -> str:
    """A configuration as the file that a program reads."""
    return "# Made by `make up`, anew each time.\n" + yaml.safe_dump(dict(config), sort_keys=False)


def configuration_file(settings: Settings, key: str) -> Path:
    """Where the configuration of a program is."""
    return _file(settings, f"{key}.yml")


def _exporter_configuration(settings: Settings, there: Mapping[str, str]) -> dict[str, Any]:
    links = {"console": _url(settings, "exporter")}
    if "grafana" in there:
        links["grafana"] = _url(settings, "grafana")
    config: dict[str, Any] = {
        "listen": _host(settings, "exporter"),
        "data_dir": str(settings.folder / "exporter"),
        "tokens": {scope: [{"file": str(settings.token_file(scope))}] for scope in SCOPES},
        "links": links,
        "recovery": {
            "mode": settings.recovery,
            # Without one of the two no alert would ever arrive, so the exporter goes by its own incidents.
            "trigger": "alertmanager" if {"prometheus", "alertmanager"} <= there.keys() else "direct",
        },
    }
    if "victoriametrics" in there:
        config["influxdb"] = {"url": _url(settings, "victoriametrics"), "org": "verl-sentinel", "bucket": "verl"}
    return {**config, **_own_sections(settings)}


def _own_sections(settings: Settings) -> dict[str, Any]:
    """Sections of the exporter's configuration that the user wrote. Raises :class:`StackError` for unusable ones."""
    file = settings.folder / OWN
    if not file.exists():
        return {}
    try:
        parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise StackError(f"The exporter's configuration of your own cannot be used. {error}") from error
    sections: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    if ours := sections.keys() & {"listen", "data_dir", "tokens"}:
        raise StackError(f"{file} says {' and '.join(sorted(ours))}, which `make up` sets itself; take that out.")
    return sections


def _exporter(settings: Settings, there: Mapping[str, str]) -> Service:
    return Service(
        key="exporter",
        name="the exporter",
        argv=[there["exporter"], "-m", "exporter", "--config", str(configuration_file(settings, "exporter"))],
        # A checkout need not be installed to be run from.
        env={"PYTHONPATH": os.pathsep.join(filter(None, [str(RULES.parent), os.environ.get("PYTHONPATH", "")]))},
        port=settings.ports["exporter"],
        health="/readyz",
        page="/console/",
        folder=settings.folder,
        stop_seconds=60.0,
    )


def _alertmanager(settings: Settings, there: Mapping[str, str]) -> Service:
    return Service(
        key="alertmanager",
        name="Alertmanager",
        argv=[
            there["alertmanager"],
            f"--config.file={configuration_file(settings, 'alertmanager')}",
            f"--storage.path={settings.folder / 'alertmanager'}",
            f"--web.listen-address={_host(settings, 'alertmanager')}",
            f"--web.external-url={_url(settings, 'alertmanager')}/",
            # One Alertmanager, so no cluster, whose port would be one more to be free.
            "--cluster.listen-address=",
        ],
        port=settings.ports["alertmanager"],
        health="/-/ready",
        page="/",
        folder=settings.folder,
    )


def _prometheus(settings: Settings, there: Mapping[str, str]) -> Service:
    return Service(
        key="prometheus",
        name="Prometheus",
        argv=[
            there["prometheus"],
            f"--config.file={configuration_file(settings, 'prometheus')}",
            f"--storage.tsdb.path={settings.folder / 'prometheus'}",
            "--storage.tsdb.retention.time=30d",
            f"--web.listen-address={_host(settings, 'prometheus')}",
            f"--web.external-url={_url(settings, 'prometheus')}/",
        ],
        port=settings.ports["prometheus"],
        health="/-/ready",
        page="/",
        folder=settings.folder,
        stop_seconds=60.0,
    )


def _victoriametrics(settings: Settings, there: Mapping[str, str]) -> Service:
    return Service(
        key="victoriametrics",
        name="VictoriaMetrics",
        argv=[
            there["victoriametrics"],
            f"-storageDataPath={settings.folder / 'victoriametrics'}",
            f"-httpListenAddr={_host(settings, 'victoriametrics')}",
            "-retentionPeriod=90d",
            # What the exporter sends again after a kill has the same time and counts once.
            "-dedup.minScrapeInterval=1ms",
        ],
        port=settings.ports["victoriametrics"],
        health="/health",
        page="/vmui/",
        folder=settings.folder,
        stop_seconds=60.0,
    )


def _grafana(settings: Settings, there: Mapping[str, str]) -> Service:
    program = there["grafana"]
    home = Path("/usr/share/grafana")
    data = settings.folder / "grafana"
    provisioned = _file(settings, "grafana")
    return Service(
        key="grafana",
        name="Grafana",
        argv=[
            program,
            *(["server"] if Path(program).name == "grafana" else []),
            *([f"--homepath={home}"] if home.is_dir() else []),
        ],
        env={
            "GF_PATHS_DATA": str(data),
            "GF_PATHS_LOGS": str(data / "log"),
            "GF_PATHS_PLUGINS": str(data / "plugins"),
            "GF_PATHS_PROVISIONING": str(provisioned / "provisioning"),
            "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(provisioned / "dashboards" / "verl-fleet.json"),
            "GF_LOG_MODE": "console",
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": str(settings.ports["grafana"]),
            "GF_SERVER_ROOT_URL": f"{_url(settings, 'grafana')}/",
            "GF_SECURITY_ADMIN_PASSWORD": f"$__file{{{settings.token_file('grafana')}}}",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
            "GF_PLUGINS_PREINSTALL_DISABLED": "true",
            "PROMETHEUS_URL": _url(settings, "prometheus"),
        },
        port=settings.ports["grafana"],
        health="/api/health",
        page="/",
        folder=settings.folder,
    )


def _file(settings: Settings, name: str) -> Path:
    return settings.folder / "config" / name


def _host(settings: Settings, key: str) -> str:
    return f"127.0.0.1:{settings.ports[key]}"


def _url(settings: Settings, key: str) -> str:
    return f"http://{_host(settings, key)}"
