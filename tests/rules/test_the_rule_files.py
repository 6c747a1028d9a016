"""The rules are valid, loaded, complete and explained."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rule_reading import ALERTS, ALL, OF_SITUATIONS, PRESET_FILES, PROMETHEUS, RECORDED, RULE_FILES, RULES, of_a_run

from exporter.links import DEFAULT_CONSOLE, DEFAULT_GRAFANA

DASHBOARDS = ("fleet", "run", "performance", "gpus", "incidents", "gray-release", "exporter")
RUNBOOK = re.compile(re.escape(DEFAULT_CONSOLE) + r"/runbooks/(\w+)\.md")
DASHBOARD = re.compile(
    re.escape(DEFAULT_GRAFANA) + r"/d/verl-([\w-]+)(\?var-(run|project)=\{\{ \$labels\.\3 \| urlquery \}\})?"
)
CONSOLE = re.compile(
    re.escape(DEFAULT_CONSOLE) + r"/console/(run\?id|recovery\?run)=\{\{ \$labels\.run \| urlquery \}\}"
)
MANUALS_NAMES = (
    *("verl_hybrid_engine_comm_cost_ms", "verl_step_duration_ms", "gpu_utilization", "tokens_per_second"),
    *("memory_usage_mb", "training_step_time_s", "loss_trajectory"),
)
LEVELS = (
    *("verl:step_seconds:p50_1h", "verl:step_seconds:p90_1h", "verl:step_seconds:p99_1h"),
    *("verl:rollout_success:ratio15m", "verl:weight_sync_share:ratio1h", "verl:weight_sync_share:ratio1h_1w"),
    *("verl:effective_training_time:ratio1d", "verl:effective_training_time:ratio1h"),
    *("verl:gpu_utilization:avg", "verl:gpu_memory_used:max_ratio", "verl:gpu_power_watts:sum"),
    *("verl:gpu_temperature_celsius:max", "verl:tokens_per_second:sum"),
)


def each(alert: dict[str, Any]) -> str:
    return f"{alert['alert']}-{alert['labels']['severity']}"


def promtool(*argv: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: it comes with the package prometheus")
    done = subprocess.run(["promtool", *argv], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.programs
def test_prometheus_accepts_every_rule() -> None:
    said = promtool("check", "rules", *map(str, (*RULE_FILES, *PRESET_FILES)))
    assert sum(int(count) for count in re.findall(r"(\d+) rules found", said)) == len(ALL)


@pytest.mark.programs
@pytest.mark.parametrize("name", ["prometheus.yml", "remote_write.yml", "federation.yml"])
def test_prometheus_accepts_its_configurations(name: str) -> None:
    promtool("check", "config", str(PROMETHEUS / name))


@pytest.mark.parametrize("name", ["prometheus.yml", "remote_write.yml"])
def test_every_rule_file_is_loaded_and_a_preset_only_once_its_hint_is_switched_on(name: str) -> None:
    text = (PROMETHEUS / name).read_text()
    loaded = yaml.safe_load(text)["rule_files"]
    assert sorted(loaded) == [file.name for file in RULE_FILES]
    hints = re.findall(r"^  # - (presets/.+)$", text, re.MULTILINE)
    assert hints == [f"presets/{file.name}" for file in PRESET_FILES]
    with_preset = re.sub(r"^  # - (presets/)", r"  - \1", text, flags=re.MULTILINE)
    assert yaml.safe_load(with_preset)["rule_files"] == loaded + hints


@pytest.mark.parametrize("name", ["prometheus.yml", "remote_write.yml"])
def test_what_the_alerts_on_the_monitoring_read_is_scraped(name: str) -> None:
    jobs = {job["job_name"] for job in yaml.safe_load((PROMETHEUS / name).read_text())["scrape_configs"]}
    asked = {
        job for rule in ALERTS for found in re.findall(r'job=~?"([^"]+)"', rule["expr"]) for job in found.split("|")
    }
    assert asked == jobs


def test_every_name_of_the_manual_that_the_exporter_does_not_export_is_recorded() -> None:
    assert set(MANUALS_NAMES) <= set(RECORDED)
    assert "verl_rollout_success_rate" not in RECORDED, "the exporter exports it under this name"


def test_every_series_that_dashboards_are_promised_is_recorded_once() -> None:
    assert set(LEVELS) <= set(RECORDED)
    assert len(RECORDED) == len(set(RECORDED))


@pytest.mark.parametrize("alert", ALERTS, ids=each)
def test_every_alert_says_what_it_is_with_numbers_and_what_to_do_in_one_line(alert: dict[str, Any]) -> None:
    said = alert["annotations"]
    for name in ("summary", "description", "action"):
        assert said[name].strip() == said[name] != ""
    assert "\n" not in said["summary"] + said["action"]
    assert len(said["action"]) <= 130, "to be read on a phone"


@pytest.mark.parametrize("alert", ALERTS, ids=each)
def test_every_alert_leads_to_its_runbook(alert: dict[str, Any]) -> None:
    found = RUNBOOK.fullmatch(alert["annotations"]["runbook_url"])
    assert found
    assert found[1] == alert["alert"]
    assert (RULES / "runbooks" / f"{found[1]}.md").read_text().startswith(f"# {alert['alert']}\n")


@pytest.mark.parametrize("alert", ALERTS, ids=each)
def test_every_alert_leads_to_a_dashboard_and_one_of_a_run_to_that_run(alert: dict[str, Any]) -> None:
    said = alert["annotations"]
    found = DASHBOARD.fullmatch(said["dashboard_url"])
    assert found
    assert found[1] in DASHBOARDS
    assert (found[3] == "run") is of_a_run(alert)
    assert ("console_url" in said) is of_a_run(alert)
    assert not of_a_run(alert) or CONSOLE.fullmatch(said["console_url"])


@pytest.mark.parametrize("file", [*RULE_FILES, *PRESET_FILES], ids=lambda path: path.name)
def test_there_is_no_address_but_those_that_an_export_replaces(file: Path) -> None:
    addresses = re.findall(r"https?://[^/\s'\"]+", file.read_text())
    assert set(addresses) <= {DEFAULT_CONSOLE, DEFAULT_GRAFANA}


@pytest.mark.parametrize("alert", ALERTS, ids=each)
def test_labels_are_severity_team_and_for_pages_of_situations_the_action(alert: dict[str, Any]) -> None:
    labels = dict(alert["labels"])
    assert labels.pop("severity") in ("critical", "warning", "none")
    labels.pop("team", "")
    if alert in OF_SITUATIONS and alert["labels"]["severity"] == "critical":
        assert labels == {"action": "rollback"}
    else:
        assert labels == {}


def test_a_team_is_looked_up_and_never_part_of_what_makes_an_alert_fire() -> None:
    teams = {alert["labels"]["team"] for alert in ALERTS if of_a_run(alert)}
    assert len(teams) == 1, "the same for every alert of a run"
    for alert in ALERTS:
        if "critical" in alert["labels"]["severity"]:
            assert "verl_run_info" not in alert["expr"]


def test_no_page_is_made_of_a_series_that_is_missing_but_the_one_of_the_exporter() -> None:
    absent = [alert["alert"] for alert in ALERTS if re.search(r"\babsent(_over_time)?\(", alert["expr"])]
    assert absent == ["VerlExporterDown"]


def test_windows_hold_enough_scrapes_of_15_seconds() -> None:
    short = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    for rule in ALL:
        for count, unit in re.findall(r"\[(\d+)([smhd])(?::\d+[smhd])?\]", rule["expr"]):
            assert int(count) * short[unit] >= 300, rule["expr"]


def test_pages_are_evaluated_at_every_evaluation() -> None:
    for file in RULE_FILES:
        for group in yaml.safe_load(file.read_text())["groups"]:
            pages = [rule["alert"] for rule in group["rules"] if rule.get("labels", {}).get("severity") == "critical"]
            assert not pages or "interval" not in group, pages


def test_no_runbook_is_left_over() -> None:
    assert {path.stem for path in (RULES / "runbooks").glob("Verl*.md")} <= {alert["alert"] for alert in ALERTS}


def test_the_action_for_xid_errors_names_the_codes_that_its_runbook_calls_hardware() -> None:
    (alert,) = [one for one in ALERTS if one["alert"] == "VerlGPUXidErrors"]
    said = re.search(r"hardware \(([\d, ]+)\)", alert["annotations"]["action"])
    runbook = (RULES / "runbooks/VerlGPUXidErrors.md").read_text()
    listed = re.search(r"; ([\d,\s]+) are hardware", runbook)
    assert said
    assert listed
    assert re.findall(r"\d+", said.group(1)) == re.findall(r"\d+", listed.group(1))
