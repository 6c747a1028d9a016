"""``rules/alertmanager.yml`` by itself: valid, routed as it says, and no secret in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alertmanager_stage import routes_of

from exporter.notify.delivery import AT_ONCE, KNOWN_SECONDS, KNOWN_WHEN_DONE_SECONDS, MOST_WAITING

RULES = Path(__file__).resolve().parents[2] / "rules"
CONFIG_FILE = RULES / "alertmanager.yml"
CONFIG: dict[str, Any] = yaml.safe_load(CONFIG_FILE.read_text())
TEMPLATES = "".join(path.read_text() for path in (RULES / "templates").glob("*.tmpl"))
ALERTS: list[dict[str, Any]] = [
    rule
    for file in sorted((RULES / "prometheus").rglob("*.rules.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
NAMES = sorted({rule["alert"] for rule in ALERTS})
TEAMS = {"": "people", "example-team-a": "pagerduty", "example-team-b": "chat-and-email"}
TICKETS = {"": "people", "example-team-a": "slack", "example-team-b": "wecom"}


def amtool(*arguments: str) -> str:
    if shutil.which("amtool") is None:
        pytest.skip("amtool is not installed: it comes with the package prometheus-alertmanager")
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.programs
def test_amtool_takes_it_as_it_is_without_any_of_the_files_with_secrets() -> None:
    files = re.findall(r"^ *\w+_file: (\S+)", CONFIG_FILE.read_text(), re.M)
    assert files
    assert not [file for file in files if Path(file).exists()]
    told = amtool("check-config", str(CONFIG_FILE))
    assert "SUCCESS" in told
    assert "1 templates" in told


@pytest.mark.programs
@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_every_alert_of_the_rules_reaches_whom_it_should(alert: dict[str, Any]) -> None:
    severity, action = alert["labels"]["severity"], alert["labels"].get("action", "")
    for team in TEAMS if severity != "none" else ("",):
        labels = {"alertname": alert["alert"], "severity": severity, "run": "a run", "team": team, "action": action}
        given = [f"{name}={value}" for name, value in labels.items() if value]
        found = amtool("config", "routes", "test", f"--config.file={CONFIG_FILE}", *given).strip().split(",")
        people = {"critical": TEAMS, "warning": TICKETS}.get(severity, {"": "dead-mans-switch"})[team]
        assert found == [*(["recovery"] if action == "rollback" else []), people]


def test_pages_are_never_muted_and_tickets_are_whoever_gets_them() -> None:
    for route in routes_of(CONFIG["route"]):
        matchers = route.get("matchers", [])
        if 'severity="warning"' in matchers:
            for it in routes_of(route):
                assert it["mute_time_intervals"] == ["nights", "weekends"], "mute times are not inherited"
        elif not any("team=" in matcher for matcher in matchers):
            assert "mute_time_intervals" not in route


def test_alerts_are_grouped_by_run_and_what_may_roll_back_goes_to_the_webhook_at_once() -> None:
    assert CONFIG["route"]["group_by"] == ["cluster", "run"]
    recovery = CONFIG["route"]["routes"][0]
    assert recovery["matchers"] == ['action="rollback"']
    assert (recovery["group_wait"], recovery["group_interval"], recovery["repeat_interval"]) == ("0s", "1s", "1m")
    assert recovery["continue"] is True
    assert "group_by" not in recovery


def matches(matchers: list[str], labels: dict[str, str]) -> bool:
    """As Alertmanager judges it."""
    for matcher in matchers:
        name, kind, value = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
        given = labels.get(name, "")
        hit = bool(re.fullmatch(value, given)) if "~" in kind else given == value
        if hit == kind.startswith("!"):
            return False
    return True


def test_no_alert_that_may_roll_back_is_ever_silenced_by_another() -> None:
    may_roll_back = [rule for rule in ALERTS if rule["labels"].get("action") == "rollback"]
    assert may_roll_back
    for rule in CONFIG["inhibit_rules"]:
        for alert in may_roll_back:
            labels = {"alertname": alert["alert"], **alert["labels"], "run": "r", "detector": "d", "signal": "s"}
            assert not matches(rule["target_matchers"], labels), f"{alert['alert']} by {rule['source_matchers']}"


def test_every_name_in_an_inhibition_is_one_of_an_alert() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            name, kind, value = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
            if name == "alertname":
                parts = alternatives(value) if "~" in kind else [value]
                for part in parts:
                    assert any(re.fullmatch(part, known) for known in NAMES), f"{part} of {matcher}"


def alternatives(pattern: str) -> list[str]:
    """Each alternative of a pattern with at most one level of groups, by itself.

    >>> alternatives("A(b|c)|D.+")
    ['Ab', 'Ac', 'D.+']
    """
    found: list[str] = []
    for part in re.split(r"\|(?![^(]*\))", pattern):
        group = re.search(r"\(([^)]*)\)", part)
        found += [part.replace(group[0], one) for one in group[1].split("|")] if group else [part]
    return found


@pytest.mark.parametrize(
    "setting", ["api_url", "routing_key", "service_key", "auth_password", "auth_secret", "credentials", "password"]
)
def test_no_secret_stands_in_the_file(setting: str) -> None:
    assert not re.search(rf"^\s*(- )?{setting}:", CONFIG_FILE.read_text(), re.M)


def test_services_have_a_receiver_and_it_uses_our_templates() -> None:
    receivers = {receiver["name"]: receiver for receiver in CONFIG["receivers"]}
    for name, kind in {
        "slack": "slack_configs",
        "email": "email_configs",
        "pagerduty": "pagerduty_configs",
        "wecom-app": "wechat_configs",
    }.items():
        used = set(re.findall(r'template "([\w.]+)"', yaml.safe_dump(receivers[name][kind])))
        assert used
        assert used <= set(re.findall(r'define "([\w.]+)"', TEMPLATES))
    for name, path in {"recovery": "alerts", "wecom": "notify?target=wecom", "chat": "notify"}.items():
        (hook,) = receivers[name]["webhook_configs"]
        assert hook["url"] == f"http://127.0.0.1:9464/api/v1/{path}"
        assert hook["http_config"]["authorization"]["credentials_file"] == "/etc/verl-sentinel/alert-token"
        assert hook["send_resolved"] is True


def test_every_template_is_used() -> None:
    defined = re.findall(r'define "([\w.]+)"', TEMPLATES)
    assert len(defined) == len(set(defined))
    used = re.findall(r'template "([\w.]+)"', TEMPLATES + CONFIG_FILE.read_text())
    assert set(defined) == set(used)


def test_receivers_that_a_route_names_are_there() -> None:
    names = {receiver["name"] for receiver in CONFIG["receivers"]}
    assert {route["receiver"] for route in routes_of(CONFIG["route"])} <= names


def test_the_document_says_what_the_file_does() -> None:
    document = (RULES.parent / "docs" / "notifications.md").read_text()
    for receiver in CONFIG["receivers"]:
        assert f"`{receiver['name']}`" in document or receiver["name"] == "chat-and-email", receiver["name"]
    for file in set(re.findall(r"(/etc/verl-sentinel/\S+)", CONFIG_FILE.read_text())):
        assert file in document
    times = {"1s": "1 s", "1m": "minute", "30s": "30 s", "1h": "hour", "5m": "5 minutes", "24h": "day", "0s": "at once"}
    rows = dict(re.findall(r"^\| `(?:action|severity)=\"(\w+)\"`[^|]*\|(.*)$", document, re.M))
    for route in CONFIG["route"]["routes"]:
        row = rows[re.findall(r'"(\w+)"', route["matchers"][0])[0]]
        assert all(times[route[name]] in row for name in ("group_wait", "repeat_interval"))
        assert route["receiver"] == "dead-mans-switch" or times[route["group_interval"]] in row
    assert KNOWN_SECONDS == 3600
    assert "for an hour while another target fails" in document
    assert "for five minutes\n" in document
    assert KNOWN_WHEN_DONE_SECONDS == 5 * 60
    assert f"{MOST_WAITING} may wait" in document
    assert AT_ONCE == 4
    assert "Four deliveries" in document
