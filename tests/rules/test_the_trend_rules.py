"""The rules that compare with a week ago: accepted, explained, and made of metrics that are exported."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TRENDS = ROOT / "rules" / "prometheus" / "verl-trends.rules.yml"
GROUPS = yaml.safe_load(TRENDS.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]


@pytest.mark.programs
def test_prometheus_accepts_the_trend_rules() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        ["promtool", "check", "rules", str(TRENDS)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_trend_alert_is_a_ticket_against_a_week_ago_with_a_runbook() -> None:
    assert ALERTS
    for alert in ALERTS:
        assert alert["labels"] == {"severity": "warning"}
        assert "offset 1w" in alert["expr"]
        runbook = ROOT / alert["annotations"]["runbook"]
        assert runbook.read_text().startswith(f"# {alert['alert']}\n")


def test_every_metric_that_the_trend_rules_read_is_documented() -> None:
    known = set(re.findall(r"`(verl_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    read = set(re.findall(r"\bverl_\w+", " ".join(rule["expr"] for group in GROUPS for rule in group["rules"])))
    for name in read:
        assert name in known or re.sub(r"_(sum|count|bucket)$", "", name) in known, name
