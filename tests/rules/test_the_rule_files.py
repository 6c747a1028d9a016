"""The rules are valid, complete, tested and explained."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.detectors.registry import NAMES
from exporter.recovery.policy import RecoveryPolicy

RULES = Path(__file__).resolve().parents[2] / "rules"
ALERT_FILE = RULES / "prometheus" / "verl-sentinel.rules.yml"
NAMES_FILE = RULES / "prometheus" / "verl-names.rules.yml"
RECORDED: list[str] = [
    rule["record"] for group in yaml.safe_load(NAMES_FILE.read_text())["groups"] for rule in group["rules"]
]
TEST_FILES = sorted((RULES / "tests").glob("*.yml"))
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERT_FILE.read_text())["groups"] for rule in group["rules"]
]
BY_NAME = {alert["alert"]: alert for alert in ALERTS}
DETECTOR = re.compile(r'verl_situation_open\{detector="(\w+)", severity="(\w+)"\}')
OTHERS = re.compile(r'verl_situation_open\{severity="(\w+)", detector!~"([\w|]+)"\}')


def program(*argv: str) -> str:
    """Output of one of the programs; its tests are skipped where it is not installed, and fail where it fails."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.programs
def test_prometheus_accepts_rules_and_configuration() -> None:
    assert f"{len(ALERTS)} rules found" in program("promtool", "check", "rules", str(ALERT_FILE))
    assert f"{len(RECORDED)} rules found" in program("promtool", "check", "rules", str(NAMES_FILE))
    program("promtool", "check", "config", str(RULES / "prometheus" / "prometheus.yml"))


@pytest.mark.programs
@pytest.mark.parametrize("file", TEST_FILES, ids=lambda path: path.stem)
def test_the_rule_tests_pass(file: Path) -> None:
    program("promtool", "test", "rules", str(file))


@pytest.mark.programs
def test_alertmanager_accepts_its_configuration() -> None:
    assert "SUCCESS" in program("amtool", "check-config", str(RULES / "alertmanager.yml"))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"severity": "critical", "action": "rollback", "run": "r"}, "recovery,people"),
        ({"severity": "critical", "run": "r"}, "people"),
        ({"severity": "warning", "run": "r"}, "people"),
        ({"severity": "none"}, "dead-mans-switch"),
    ],
)
def test_alerts_are_routed_to_the_webhook_and_to_people(labels: dict[str, str], receivers: str) -> None:
    pairs = [f"{name}={value}" for name, value in labels.items()]
    config = f"--config.file={RULES / 'alertmanager.yml'}"
    assert program("amtool", "config", "routes", "test", config, *pairs).strip() == receivers


def test_the_first_page_of_a_run_is_sent_at_once_and_a_webhook_is_soon_repeated() -> None:
    route = yaml.safe_load((RULES / "alertmanager.yml").read_text())["route"]
    pages = [r for r in route["routes"] if r.get("matchers") in (['action="rollback"'], ['severity="critical"'])]
    assert [(r["receiver"], r["group_wait"], r["group_interval"]) for r in pages] == [
        ("recovery", "0s", "1s"),
        ("people", "0s", "30s"),
    ]
    assert pages[0]["repeat_interval"] == "1m"


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_alert_has_a_summary_a_description_and_a_runbook(name: str) -> None:
    alert = BY_NAME[name]
    assert alert["labels"]["severity"] in ("critical", "warning", "none")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    runbook = RULES.parent / alert["annotations"]["runbook"]
    assert runbook.read_text().startswith(f"# {name.removesuffix('Warning')}\n")


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_alert_has_a_rule_test_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    checks = [
        check
        for file in TEST_FILES
        for test in yaml.safe_load(file.read_text())["tests"]
        for check in test.get("alert_rule_test", [])
        if check["alertname"] == name
    ]
    assert any(check["exp_alerts"] for check in checks), "no test in which it fires"
    # The Watchdog fires always: there is no input for which it would not.
    assert name == "Watchdog" or any(not check["exp_alerts"] for check in checks), "no test in which it is quiet"


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_name_has_a_test_with_a_value(name: str) -> None:
    samples = [
        sample["labels"]
        for file in TEST_FILES
        for test in yaml.safe_load(file.read_text())["tests"]
        for check in test.get("promql_expr_test", [])
        for sample in check["exp_samples"]
    ]
    assert any(labels.startswith(f"{name}{{") for labels in samples)


def alerts_of(detector: str, severity: str) -> list[dict[str, Any]]:
    """Alerts for a situation that begins with a finding of this detector."""
    own = [a for a in ALERTS if DETECTOR.findall(a["expr"]) == [(detector, severity)]]
    for alert in ALERTS:
        for of, named in OTHERS.findall(alert["expr"]):
            own += [alert] if of == severity and detector not in named.split("|") else []
    return own


@pytest.mark.parametrize("detector", [*NAMES, "one_that_is_new"])
def test_every_detector_has_one_page_that_may_trigger_a_recovery_without_delay(detector: str) -> None:
    (page,) = alerts_of(detector, "critical")
    assert page["labels"] == {"severity": "critical", "action": "rollback"}
    assert "for" not in page


@pytest.mark.parametrize("detector", [*NAMES, "one_that_is_new"])
def test_every_detector_has_one_ticket_without_action_and_delay(detector: str) -> None:
    (ticket,) = alerts_of(detector, "warning")
    assert ticket["labels"] == {"severity": "warning"}
    assert "for" not in ticket


def test_every_alert_of_a_situation_says_what_else_belongs_to_it_and_none_is_made_of_single_incidents() -> None:
    of_situations = [a for a in ALERTS if "verl_situation_open" in a["expr"]]
    assert len({a["annotations"]["findings"] for a in of_situations}) == 1
    assert not [a for a in ALERTS if "verl_incident_open" in a["expr"]]


def test_the_default_policy_lets_every_detector_trigger_for_which_a_checkpoint_may_be_an_answer() -> None:
    triggers = {name for trigger in RecoveryPolicy().triggers for name in trigger.detectors}
    assert triggers <= set(NAMES)
    slow = {"step_time", "communication", "stragglers", "slow_worker", "gpu_idle"}
    left_to_a_person = {"fixed_limits", "memory", "gpu_memory_pressure", *slow}
    assert set(NAMES) - triggers <= left_to_a_person
    assert not triggers & left_to_a_person


def test_no_runbook_is_left_over() -> None:
    named = {Path(alert["annotations"]["runbook"]).name for alert in ALERTS}
    assert {path.name for path in (RULES / "runbooks").glob("*.md")} == named
