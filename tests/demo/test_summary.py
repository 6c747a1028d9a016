"""What the demo concludes from what it has observed."""

from __future__ import annotations

from typing import Any

import pytest

from demo.scenarios import SCENARIOS
from demo.summary import Observation, conclude

FAULT = {"time": 1000.0, "step": 26, "fault": "nan"}


def page(**changes: Any) -> dict[str, Any]:
    return {
        "detector": "non_finite",
        "signal": "loss",
        "severity": "critical",
        "paged_at": 1002.0,
        "paged_step": 26,
        "attempt": 1,
        "summary": "loss is NaN",
        **changes,
    }


def recovery(**changes: Any) -> dict[str, Any]:
    times = {
        "alert_received": 1004.0,
        "planned": 1004.1,
        "stopping": 1005.0,
        "stopped": 1008.0,
        "started": 1009.0,
        "first_healthy_step": 1044.0,
        "succeeded": 1050.0,
    }
    return {
        "action": "rollback",
        "stage": "succeeded",
        "target_step": 25,
        "new_attempt": 2,
        "healthy_steps": 5,
        "reason": "loss is NaN",
        "outcome": "",
        "times": times,
        **changes,
    }


def observed(**changes: Any) -> Observation:
    fields: dict[str, Any] = {
        "started": 900.0,
        "verl_version": "0.9.1",
        "fault": FAULT,
        "incidents": [page()],
        "recoveries": [recovery()],
        "alert_active": 1003.0,
        "first_steps": {1: (1, 940.0), 2: (26, 1044.0)},
        "last_step": 35,
        **changes,
    }
    return Observation(**fields)


def test_a_recovered_run_gives_the_figures_of_the_summary() -> None:
    result = conclude(SCENARIOS["nan"], observed())

    assert result.ok
    assert result.summary == {
        "scenario": "nan",
        "verl_version": "0.9.1",
        "fault_step": 26,
        "detected_step": 26,
        "detected_by": ["non_finite/loss"],
        "alert_seconds": 2.0,
        "action": "rollback",
        "target_step": 25,
        "resumed_step": 26,
        "recovery_seconds": 40.0,
        "trainer_start_seconds": 35.0,
        "outcome": "recovered",
        "false_pages": 0,
        "steps": 35,
    }
    assert [moment.name for moment in result.timeline] == [
        "fault",
        "first verdict",
        "alert firing",
        "webhook received",
        "plan",
        "stop",
        "restart",
        "first healthy step",
        "recovered",
    ]
    assert [moment.seconds for moment in result.timeline[:4]] == [0.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fault": None}, "did not happen"),
        ({"incidents": []}, "not detected"),
        ({"incidents": [page(paged_at=None)]}, "not detected"),
        ({"incidents": [page(detector="silent_run")]}, "taken for something else"),
        ({"recoveries": []}, "no recovery was planned"),
        (
            {"recoveries": [recovery(stage="failed", outcome="no checkpoint")]},
            "did not succeed (failed): no checkpoint",
        ),
        ({"incidents": [page(), page(signal="kl", paged_at=990.0)]}, "1 false page"),
        ({"incidents": [page(), page(signal="kl", attempt=2)]}, "1 false page"),
        ({"problem": "Prometheus ended with code 1"}, "Prometheus ended with code 1"),
        ({"interrupted": True}, "interrupted"),
    ],
)
def test_a_recovery_that_did_not_happen_as_promised_is_no_success(changes: dict[str, Any], words: str) -> None:
    result = conclude(SCENARIOS["nan"], observed(**changes))

    assert not result.ok
    assert words in result.outcome


HEALTHY: dict[str, Any] = {
    "fault": None,
    "incidents": [],
    "recoveries": [],
    "trainer_exit_code": 0,
    "last_step": SCENARIOS["healthy"].steps,
}


def test_a_healthy_run_without_a_page_is_a_success() -> None:
    result = conclude(SCENARIOS["healthy"], observed(**HEALTHY))

    assert result.ok
    assert result.summary["outcome"] == "healthy"
    assert result.summary["false_pages"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"incidents": [page()]}, "1 page(s)"),
        ({"recoveries": [recovery()]}, "a recovery was planned"),
        ({"trainer_exit_code": 1}, "exit code 1"),
        ({"last_step": 40}, "ended at step 40"),
    ],
)
def test_a_healthy_run_with_a_page_or_an_early_end_is_no_success(changes: dict[str, Any], words: str) -> None:
    result = conclude(SCENARIOS["healthy"], observed(**{**HEALTHY, **changes}))

    assert not result.ok
    assert words in result.outcome


def warning(**changes: Any) -> dict[str, Any]:
    return {
        "detector": "step_time",
        "signal": "step_time",
        "severity": "warning",
        "opened_at": 1020.0,
        "first_step": 34,
        "paged_at": None,
        "paged_step": None,
        "attempt": 1,
        "summary": "steps take 2.3 s, and took 1.4 s",
        **changes,
    }


ONLY_FOUND: dict[str, Any] = {"incidents": [warning()], "recoveries": [], "alert_active": None}


def test_a_fault_that_is_only_to_be_found_is_a_success_once_it_is() -> None:
    result = conclude(SCENARIOS["slow_reward"], observed(**ONLY_FOUND))

    assert result.ok
    assert result.summary["outcome"] == "found"
    assert (result.summary["detected_step"], result.summary["detected_by"]) == (34, ["step_time/step_time"])
    moments = [(moment.name, moment.seconds) for moment in result.timeline[:2]]
    assert moments == [("fault", 0.0), ("first verdict", 20.0)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fault": None}, "did not happen"),
        ({"incidents": []}, "not found"),
        ({"incidents": [warning(detector="surge")]}, "not found"),
        ({"incidents": [warning(opened_at=990.0)]}, "not found"),
        ({"incidents": [warning(), warning(detector="surge", paged_at=990.0)]}, "1 false page"),
    ],
)
def test_a_fault_that_was_not_found_or_paged_for_before_it_came_is_no_success(
    changes: dict[str, Any], words: str
) -> None:
    result = conclude(SCENARIOS["slow_reward"], observed(**{**ONLY_FOUND, **changes}))

    assert not result.ok
    assert words in result.outcome
