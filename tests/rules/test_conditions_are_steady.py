"""What makes an alert fire neither hangs on the first sample of a series nor on what was counted before it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rule_reading import ALERTS

GO_ON = {
    "VerlPushesRejected",
    "VerlRuleEvaluationFailing",
    "VerlRuleEvaluationMissed",
    "VerlAlertsDropped",
    "VerlAlertmanagerNotifyFailing",
}
"""What these are about goes on, and so increases; once before the first scrape is no matter."""

_INCREASE = re.compile(r"(?:sum|max) by \([^)]*\) \(increase\((\w+(?:\{[^}]*\})?)\[\w+\]\)\) > 0")
_EXTREME = re.compile(r"\b(?:min|max|avg)_over_time\([^\[]*\[\w+\]\)\)? *(?:==|!=|<=?|>=?) *[\d.]+")


def called(alert: dict[str, Any]) -> str:
    return f"{alert['alert']}-{alert['labels']['severity']}"


@pytest.mark.parametrize("alert", [one for one in ALERTS if _INCREASE.search(one["expr"])], ids=called)
def test_what_was_counted_before_the_first_scrape_is_said(alert: dict[str, Any]) -> None:
    if alert["alert"] in GO_ON:
        return
    for counter in _INCREASE.findall(alert["expr"]):
        assert f"unless {_by(alert)} (max_over_time({counter}[1h] offset " in alert["expr"], counter


def _by(alert: dict[str, Any]) -> str:
    found = re.match(r"\(?\s*((?:sum|max) by \([^)]*\))", alert["expr"])
    assert found
    return found.group(1)


@pytest.mark.parametrize("alert", ALERTS, ids=called)
def test_no_alert_fires_on_the_first_sample_of_what_has_to_last(alert: dict[str, Any]) -> None:
    """A window that has just one sample yet is as good as none: "for" waits, a window does not."""
    extremes = [found for found in _EXTREME.findall(alert["expr"]) if "verl_run_running" not in found]
    assert extremes == []


def test_a_count_of_steps_is_asked_of_windows_that_hold_it_wherever_the_scrapes_fall() -> None:
    """Of the longest steps that the manual allows, 120 s, one more than is asked for has to fit."""
    asked = [
        (int(minutes), int(count), alert)
        for alert in ALERTS
        for minutes, count in re.findall(r"increase\([^\[]*\[(\d+)m\]\)\) >=? ([1-9]\d*)", alert["expr"])
    ]
    assert [alert["alert"] for _, _, alert in asked] == ["VerlTrainingStepSlowdown"]
    for minutes, count, alert in asked:
        assert minutes * 60 >= (count + 1) * 120
        assert "keep_firing_for" in alert
