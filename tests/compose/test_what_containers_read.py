"""What each container mounts, laid out as it finds it, is read without complaint by the program that reads it there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers_view import COMPOSE, compose_file, laid_out, secrets_in

from compose import containers
from compose.configuration import Addresses, alertmanager, prometheus
from exporter.config import ConfigError, check_exposure, load

SERVICES = compose_file()["services"]


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SERVICES[name]
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return secrets_in(tmp_path / "secrets-of-the-test")


def checked(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.programs
def test_prometheus_takes_its_configuration_with_every_rule_file(root: Path, secrets: Path) -> None:
    laid_out(service("prometheus"), secrets, root)
    told = checked("promtool", "check", "config", str(root / "etc/prometheus/prometheus.yml"))
    config = yaml.safe_load((root / "etc/prometheus/prometheus.yml").read_text())
    assert f"{len(config['rule_files'])} rule files found" in told
    assert all(Path(file).is_file() for file in config["rule_files"])


@pytest.mark.programs
def test_alertmanager_takes_its_configuration_with_the_templates(root: Path, secrets: Path) -> None:
    laid_out(service("alertmanager"), secrets, root)
    told = checked("amtool", "check-config", str(root / "etc/alertmanager/alertmanager.yml"))
    config = yaml.safe_load((root / "etc/alertmanager/alertmanager.yml").read_text())
    assert config["templates"]
    assert f"{len(config['templates'])} templates" in told


def test_the_exporter_takes_its_configuration_with_the_secrets(root: Path, secrets: Path) -> None:
    laid_out(service("exporter"), secrets, root)
    config = load(root / "etc/verl-sentinel/exporter.yml")
    scopes = ("push", "alert", "operate")
    assert {scope: Path(getattr(config.tokens, scope)[0].file or "").name for scope in scopes} == {
        scope: scope for scope in scopes
    }
    assert config.recovery.mode == "observe"
    # Listening for other containers it has to have a token for everything.
    check_exposure(config.listen, {scope: ("a",) for scope in scopes})
    with pytest.raises(ConfigError, match="no token is set"):
        check_exposure(config.listen, {"push": ("a",), "alert": ("a",), "operate": ()})


def test_a_secret_that_is_missing_is_named(root: Path, secrets: Path) -> None:
    laid_out(service("exporter"), secrets, root)
    (root / "run/secrets/influxdb_token").unlink()
    with pytest.raises(ConfigError, match="influxdb_token"):
        load(root / "etc/verl-sentinel/exporter.yml")


def test_the_exporter_writes_to_the_influxdb_that_is_set_up_beside_it() -> None:
    influx = yaml.safe_load((COMPOSE / "exporter" / "exporter.yml").read_text())["influxdb"]
    environment = service("influxdb")["environment"]
    assert influx["url"] == "http://influxdb:8086"
    assert influx["org"] == environment["DOCKER_INFLUXDB_INIT_ORG"]
    assert influx["bucket"] == environment["DOCKER_INFLUXDB_INIT_BUCKET"]
    assert influx["token"]["file"] == environment["DOCKER_INFLUXDB_INIT_ADMIN_TOKEN_FILE"]
    assert {"influxdb_token"} <= set(service("exporter")["secrets"]) & set(service("influxdb")["secrets"])


def test_alertmanager_shows_the_exporter_the_token_that_it_expects() -> None:
    (secret,) = service("alertmanager")["secrets"]
    assert secret["source"] == "alert"
    config = yaml.safe_load((COMPOSE / "alertmanager" / "alertmanager.yml").read_text())
    hooks = [
        hook
        for receiver in config["receivers"]
        for hook in receiver.get("webhook_configs", [])
        if hook["url"].startswith("http://exporter:9464/")
    ]
    assert "http://exporter:9464/api/v1/alerts" in {hook["url"] for hook in hooks}
    for hook in hooks:
        assert hook["http_config"]["authorization"]["credentials_file"] == secret["target"]


def test_prometheus_scrapes_all_that_has_metrics_by_the_names_of_the_containers() -> None:
    config = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets == {
        "verl-sentinel": ["exporter:9464"],
        "prometheus": ["prometheus:9090"],
        "alertmanager": ["alertmanager:9093"],
        "grafana": ["grafana:3000"],
    }
    for (target,) in targets.values():
        assert target.split(":")[0] in SERVICES
    assert config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == ["alertmanager:9093"]


def test_nothing_in_a_container_looks_for_another_one_on_its_own_loopback() -> None:
    for path in (COMPOSE / "prometheus" / "prometheus.yml", COMPOSE / "alertmanager" / "alertmanager.yml"):
        assert "127.0.0.1" not in path.read_text(), path


def test_they_differ_from_the_rules_by_addresses_alone() -> None:
    """Who changes one of the two in ``rules/`` makes these anew: python -m compose.containers."""
    for path, text in containers.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: python -m compose.containers"
    rules = COMPOSE.parent / "rules"
    own = prometheus(Addresses(), "rules")
    shipped = yaml.safe_load((rules / "prometheus" / "prometheus.yml").read_text())
    assert own == {**shipped, "rule_files": [f"rules/{name}" for name in shipped["rule_files"]]}
    routes = yaml.safe_load((rules / "alertmanager.yml").read_text())
    assert alertmanager(Addresses(), templates="templates") == routes


def test_every_rule_file_that_ships_is_loaded() -> None:
    config = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())
    shipped = {path.name for path in (COMPOSE.parent / "rules" / "prometheus").glob("*.rules.yml")}
    assert {Path(file).name for file in config["rule_files"]} >= shipped


def test_grafana_finds_its_data_source_and_every_dashboard(root: Path, secrets: Path) -> None:
    laid_out(service("grafana"), secrets, root)
    provisioning = root / "etc/grafana/provisioning"
    sources = [
        source
        for file in (provisioning / "datasources").glob("*.y*ml")
        for source in yaml.safe_load(file.read_text())["datasources"]
    ]
    environment = service("grafana")["environment"]
    urls = {re.sub(r"\$\{?(\w+)\}?", lambda found: environment.get(found[1], ""), one["url"]) for one in sources}
    assert urls == {"http://prometheus:9090"}
    providers = [
        provider
        for file in (provisioning / "dashboards").glob("*.y*ml")
        for provider in yaml.safe_load(file.read_text())["providers"]
    ]
    found = [
        json.loads(file.read_text())
        for provider in providers
        for file in Path(
            re.sub(r"\$\{?(\w+)\}?", lambda name: environment.get(name[1], ""), provider["options"]["path"])
        ).rglob("*.json")
    ]
    assert {"verl-fleet", "verl-run", "verl-exporter"} <= {dashboard["uid"] for dashboard in found}
