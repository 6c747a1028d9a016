"""Every rule has tests, and they pass."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rule_reading import ALERTS, PROMETHEUS, RECORDED, TEST_FILES, named, rule_tests


def alerts_expected(name: str) -> list[list[dict[str, Any]]]:
    """The expected alerts of each check of this alert."""
    checks = [check for test in rule_tests() for check in test.get("alert_rule_test", [])]
    return [check["exp_alerts"] for check in checks if check["alertname"] == name]


@pytest.mark.programs
@pytest.mark.parametrize("file", TEST_FILES, ids=lambda path: path.stem)
def test_the_rule_tests_pass(file: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: it comes with the package prometheus")
    argv = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "severity"), [named(alert) for alert in ALERTS])
def test_every_alert_has_a_test_in_which_it_fires_with_that_severity(name: str, severity: str) -> None:
    fired = [alert for alerts in alerts_expected(name) for alert in alerts]
    assert any(alert["exp_labels"]["severity"] == severity for alert in fired)
    assert all(alert["exp_annotations"]["runbook_url"].endswith(f"/{name}.md") for alert in fired)


@pytest.mark.parametrize("name", sorted({alert["alert"] for alert in ALERTS} - {"Watchdog"}))
def test_every_alert_has_a_test_in_which_it_does_not_fire(name: str) -> None:
    """The Watchdog fires always: there is no input for which it would not."""
    assert [] in alerts_expected(name)


@pytest.mark.parametrize("name", sorted({alert["alert"] for alert in ALERTS} - {"Watchdog", "VerlExporterDown"}))
def test_every_alert_is_quiet_where_there_are_no_series_at_all(name: str) -> None:
    """VerlExporterDown is for that: nobody watches."""
    quiet = {
        check["alertname"]
        for test in rule_tests()
        if not test["input_series"]
        for check in test["alert_rule_test"]
        if not check["exp_alerts"]
    }
    assert name in quiet


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_name_has_a_test_with_a_value(name: str) -> None:
    valued = [
        check["expr"] + sample["labels"]
        for test in rule_tests()
        for check in test.get("promql_expr_test", [])
        for sample in check["exp_samples"]
    ]
    assert any(name + end in text for text in valued for end in ("{", ",", ")"))


def test_tests_are_of_alerts_and_files_that_there_are() -> None:
    checks = [check for test in rule_tests() for check in test.get("alert_rule_test", [])]
    assert {check["alertname"] for check in checks} <= {alert["alert"] for alert in ALERTS}
    for file in TEST_FILES:
        for loaded in yaml.safe_load(file.read_text())["rule_files"]:
            assert (file.parent / loaded).resolve().is_relative_to(PROMETHEUS)
            assert (file.parent / loaded).is_file()
