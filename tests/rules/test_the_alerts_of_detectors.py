"""Every situation is one page or one ticket, whatever detector began it."""

from __future__ import annotations

from typing import Any

import pytest
from rule_reading import LOADED_ALERTS, OF_SITUATIONS, takes

from exporter.detectors.registry import NAMES
from exporter.recovery.policy import RecoveryPolicy

SITUATIONS = [
    *((detector, "a_signal") for detector in (*NAMES, "one_that_is_new")),
    *(("stragglers", signal) for signal in ("gpu_lost", "gpu_temperature")),
]


def alerts_of(detector: str, signal: str, severity: str) -> list[dict[str, Any]]:
    """Alerts for a situation that begins with this finding of this detector."""
    situation = {"run": "r", "detector": detector, "signal": signal, "severity": severity}
    return [alert for alert in OF_SITUATIONS if takes(alert, situation)]


@pytest.mark.parametrize(("detector", "signal"), SITUATIONS)
def test_every_detector_has_one_page_that_may_trigger_a_recovery_without_delay(detector: str, signal: str) -> None:
    (page,) = alerts_of(detector, signal, "critical")
    assert (page["labels"]["severity"], page["labels"]["action"]) == ("critical", "rollback")
    assert "for" not in page


@pytest.mark.parametrize(("detector", "signal"), SITUATIONS)
def test_every_detector_has_one_ticket_without_action_and_delay_under_the_name_of_its_page(
    detector: str, signal: str
) -> None:
    (page,), (ticket,) = (alerts_of(detector, signal, severity) for severity in ("critical", "warning"))
    assert ticket["alert"] == page["alert"]
    assert ticket["labels"]["severity"] == "warning"
    assert "action" not in ticket["labels"]
    assert "for" not in ticket


def test_every_detector_that_there_is_has_an_alert_of_its_own_and_a_new_one_the_common_one() -> None:
    names = {detector: alerts_of(detector, "a_signal", "critical")[0]["alert"] for detector in NAMES}
    assert len(set(names.values())) == len(NAMES)
    assert "VerlSituation" not in names.values()
    assert alerts_of("one_that_is_new", "a_signal", "critical")[0]["alert"] == "VerlSituation"


def test_a_note_is_neither_a_page_nor_a_ticket() -> None:
    for detector in NAMES:
        assert alerts_of(detector, "a_signal", "info") == []


def test_every_alert_of_a_situation_says_what_else_belongs_to_it_and_none_is_made_of_single_incidents() -> None:
    assert len({alert["annotations"]["findings"] for alert in OF_SITUATIONS}) == 1
    assert not [alert for alert in LOADED_ALERTS if "verl_incident_open" in alert["expr"]]


def test_an_alert_of_a_situation_keeps_its_identity_whoever_exports_and_scrapes_it() -> None:
    for alert in OF_SITUATIONS:
        assert alert["expr"].startswith("max by (run, detector, signal) (verl_situation_open{")


def test_the_default_policy_lets_every_detector_trigger_for_which_a_checkpoint_may_be_an_answer() -> None:
    triggers = {name for trigger in RecoveryPolicy().triggers for name in trigger.detectors}
    assert triggers <= set(NAMES)
    slow = {"step_time", "communication", "stragglers", "slow_worker", "gpu_idle"}
    left_to_a_person = {"fixed_limits", "memory", "gpu_memory_pressure", *slow}
    assert set(NAMES) - triggers <= left_to_a_person
    assert not triggers & left_to_a_person
