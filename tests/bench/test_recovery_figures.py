"""What the bench of recoveries makes of the times that the exporter kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.recovery import PARTS, Measured, measure, result_of

REPOSITORY = Path(__file__).resolve().parents[2]
TIMES = {
    "alert_received": 100.0,
    "planned": 100.5,
    "accepted": 101.5,
    "stopping": 103.0,
    "stopped": 107.0,
    "started": 109.0,
    "first_healthy_step": 140.5,
    "succeeded": 144.0,
    "finished": 144.0,
}


def recovery(**times: float | None) -> dict[str, Any]:
    return {"stage": "succeeded", "attempt": 1, "new_attempt": 2, "times": {**TIMES, **times}}


def test_everything_but_the_trainers_own_start_is_counted() -> None:
    found = measure(recovery(), {1: 50.0, 2: 140.0})

    assert found is not None
    assert found.kind == "nan"
    assert found.parts == {"plan": 0.5, "command": 1.0, "choose": 1.5, "stop": 4.0, "start": 2.0, "see": 0.5}
    assert found.trainer_start == 31.0
    assert found.seconds == 9.5
    # Nothing falls in between.
    assert found.seconds + found.trainer_start == TIMES["first_healthy_step"] - TIMES["alert_received"]


def test_a_trainer_that_is_dead_already_is_not_stopped() -> None:
    found = measure(recovery(stopping=None, stopped=None), {2: 140.0})

    assert found is not None
    assert (found.parts["choose"], found.parts["stop"], found.parts["start"]) == (0.0, 0.0, 7.5)
    assert found.seconds == 9.5


@pytest.mark.parametrize(
    ("changes", "first_steps"),
    [({"stage": "failed"}, {2: 140.0}), ({"new_attempt": None}, {2: 140.0}), ({}, {1: 50.0})],
)
def test_what_came_to_no_healthy_step_is_not_measured(changes: dict[str, Any], first_steps: dict[int, float]) -> None:
    assert measure({**recovery(), **changes}, first_steps) is None


def of(seconds: float) -> Measured:
    return Measured("nan", {part: seconds if part == "stop" else 0.0 for part in PARTS}, 30.0)


@pytest.mark.parametrize(
    ("seconds", "wanted", "problem", "within"),
    [
        ([10.0, 11.0, 59.0], 3, "", True),
        ([10.0, 11.0, 60.0], 3, "", False),
        ([15.0, 15.0, 15.0], 3, "", False),
        ([10.0, 11.0], 3, "", False),
        ([10.0, 11.0, 12.0], 3, "Recovery r1 did not succeed", False),
        ([], 3, "", False),
    ],
)
def test_targets_are_met_by_all_recoveries_or_not_at_all(
    seconds: list[float], wanted: int, problem: str, within: bool
) -> None:
    result = result_of([of(one) for one in seconds], wanted, 31.0, problem)

    assert result["within_targets"] is within
    assert result["recoveries"] == len(seconds)
    assert result["worst_seconds"] == max(seconds, default=None)


def test_without_the_programs_nothing_is_measured_and_that_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.recovery", "--recoveries", "1"],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "prometheus and prometheus-alertmanager cannot be found on the PATH" in done.stderr
