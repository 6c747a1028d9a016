"""The runbook that a page links to is that of the alert which the rules have for the finding."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from exporter.console import runbook_of
from exporter.detectors.registry import NAMES

RULES = Path(__file__).resolve().parents[2] / "rules"


def test_every_detector_has_the_runbook_of_its_alert() -> None:
    alerts: dict[str, set[str]] = {}
    for file in (RULES / "prometheus").glob("*.rules.yml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                for found in re.finditer(r'[{,]\s*detector="([a-z_]+)"', rule["expr"]):
                    if "alert" in rule:
                        alerts.setdefault(found[1], set()).add(rule["alert"])
    assert set(runbook_of.ALERTS) == set(NAMES)
    for detector, alert in runbook_of.ALERTS.items():
        assert alert in alerts.get(detector, {alert}), detector
        assert (RULES / "runbooks" / f"{alert}.md").is_file()
    for alert in (runbook_of.OTHERWISE, runbook_of.WAITS, runbook_of.FAILED):
        assert (RULES / "runbooks" / f"{alert}.md").is_file()
