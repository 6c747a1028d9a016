"""Who is silent because of whom, over all pairs of alerts that the rules know: nothing is lost, no cause is silenced.

Alertmanager itself is asked in ``test_messages_of_a_real_alertmanager.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "rules"
CONFIG: dict[str, Any] = yaml.safe_load((RULES / "alertmanager.yml").read_text())
ALERTS: list[dict[str, Any]] = [
    rule
    for file in sorted((RULES / "prometheus").rglob("*.rules.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
PAGES_OF_RUNS = ("VerlTrainerExited", "VerlRunSilent", "VerlPhaseStalled", "VerlKLDrift", "VerlRecoveryFailed")
HEARD_BESIDE_A_PAGE = (
    "VerlGPUXidErrors", "VerlGPULost", "VerlGPUHot", "VerlGPUMemoryPressure", "VerlMemoryExhaustion",
    "VerlRecoveryBudgetSpent", "VerlRecoveryAwaitingApproval", "VerlSupervisorSilent", "VerlCheckpointMissing",
    "VerlTrainerExited", "VerlRunSilent", "VerlRolloutWorkerSlow", "VerlLearningRateOffSchedule",
)  # fmt: skip
WHY_AN_EXPORTER_IS_DOWN = (
    "VerlJournalFailing", "VerlJournalDamaged", "VerlHistoryFailing", "VerlReloadFailed", "VerlExporterFaults",
    "VerlExporterRestarting",
)  # fmt: skip


@dataclass(frozen=True)
class Alert:
    """One alert as it may come, with every label that its rule speaks of."""

    labels: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        return dict(self.labels).get(name, "")

    def __str__(self) -> str:
        return f"{self['severity']} {self['alertname']}"


def alert_of(rule: dict[str, Any]) -> Alert:
    """Of the one run, exporter and signal that all of these tests are about."""
    text = rule["expr"] + str(rule["annotations"])
    named = set(re.findall(r"\$labels\.(\w+)", text))
    named |= {name for group in re.findall(r"by \(([\w, ]+)\)", rule["expr"]) for name in re.split(r",\s*", group)}
    labels = {name: f"the {name}" for name in named - {"le", "spent", "severity"}}
    labels |= {} if "run" in labels else {"instance": "the exporter"}
    labels |= {"integration": "webhook"} if "integration" in labels else {}
    labels |= {name: value for name, value in rule["labels"].items() if name != "team"}
    return Alert(tuple(sorted({**labels, "alertname": rule["alert"]}.items())))


KNOWN = sorted({alert_of(rule) for rule in ALERTS}, key=str)


def matches(matchers: list[str], alert: Alert) -> bool:
    for matcher in matchers:
        found = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
        assert found is not None, matcher
        name, kind, value = found.groups()
        hit = bool(re.fullmatch(value, alert[name])) if "~" in kind else alert[name] == value
        if hit == kind.startswith("!"):
            return False
    return True


def silences(source: Alert, target: Alert, rules: list[dict[str, Any]]) -> bool:
    """As Alertmanager has it: what is source and target of one rule is not silenced by another such alert."""
    return any(
        matches(rule["source_matchers"], source)
        and matches(rule["target_matchers"], target)
        and all(source[name] == target[name] for name in rule["equal"])
        and not (matches(rule["target_matchers"], source) and matches(rule["source_matchers"], target))
        for rule in rules
    )


def pairs(rules: list[dict[str, Any]]) -> set[tuple[Alert, Alert]]:
    return {(a, b) for a, b in product(KNOWN, KNOWN) if a != b and silences(a, b, rules)}


def in_a_circle(found: set[tuple[Alert, Alert]]) -> set[Alert]:
    """Alerts of which none need be heard, for each is silenced by one of them."""
    left = set(KNOWN)
    while heard := {one for one in left if not any(b == one and a in left for a, b in found)}:
        left -= heard
    return left


SILENT = pairs(CONFIG["inhibit_rules"])


def test_there_are_alerts_of_both_kinds_and_some_are_silenced() -> None:
    assert {one["severity"] for one in KNOWN} == {"critical", "warning", "none"}
    assert {bool(one["run"]) for one in KNOWN} == {True, False}
    assert len(SILENT) > 100


def test_no_alerts_silence_each_other_by_any_way_round() -> None:
    assert in_a_circle(SILENT) == set()


def test_no_ticket_silences_a_page() -> None:
    found = [f"{b} by {a}" for a, b in SILENT if b["severity"] == "critical" and a["severity"] != "critical"]
    assert found == []


def test_these_tests_notice_two_rules_that_silence_each_other() -> None:
    tickets = {"source_matchers": ['severity="critical"'], "target_matchers": ['severity="warning"'], "equal": ["run"]}
    silent = {
        "source_matchers": ['alertname="VerlRunSilent"'],
        "target_matchers": ['alertname="VerlKLDrift"'],
        "equal": ["run"],
    }
    found = pairs([tickets, silent])
    assert {str(one) for one in in_a_circle(found)} >= {"warning VerlRunSilent", "critical VerlKLDrift"}


def test_what_may_trigger_a_recovery_is_silenced_by_nothing() -> None:
    assert [f"{b} by {a}" for a, b in SILENT if b["action"] == "rollback"] == []


@pytest.mark.parametrize("name", HEARD_BESIDE_A_PAGE)
def test_a_cause_and_what_a_recovery_asks_are_heard_beside_any_page_of_the_run(name: str) -> None:
    assert name in {one["alertname"] for one in KNOWN}
    assert {page["alertname"] for page in KNOWN if page["severity"] == "critical"} >= set(PAGES_OF_RUNS)
    assert [f"{b} by {a}" for a, b in SILENT if b["alertname"] == name] == []


@pytest.mark.parametrize("name", WHY_AN_EXPORTER_IS_DOWN)
def test_why_an_exporter_is_down_or_not_ready_is_heard_beside_that(name: str) -> None:
    assert name in {one["alertname"] for one in KNOWN}
    assert [f"{b} by {a}" for a, b in SILENT if b["alertname"] == name] == []


def test_what_follows_from_a_page_about_a_run_is_silent() -> None:
    for name in ("VerlCheckpointStale", "VerlGoodputLow", "VerlGPUIdle", "VerlSurge"):
        assert [a for a, b in SILENT if b["alertname"] == name and a["alertname"] == "VerlTrainerExited"]


def test_an_exporter_that_is_down_silences_nothing_about_runs() -> None:
    """Another one may watch other runs, and Alertmanager cannot tell which."""
    assert [str(b) for a, b in SILENT if a["alertname"] == "VerlExporterDown" and b["run"]] == []
