"""Whatever a log holds, replay ends with an answer, and it pages of nothing that has no cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import past_files as files
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from in_this_process import answered

FORMS: dict[str, Callable[[files.Steps], bytes]] = {
    "jsonl": files.jsonl,
    "console": files.console,
    "chart": lambda steps: files.wandb_chart({"a run": steps}),
    "history": files.wandb_history,
    "events": files.event_file,
    "state": files.trainer_state,
}
KEYS = (
    "actor/pg_loss",
    "actor/loss",
    "actor/grad_norm",
    "actor/entropy",
    "actor/kl_loss",
    "actor/kl_coef",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/lr",
    "critic/score/mean",
    "critic/advantages/max",
    "critic/advantages/min",
    "response_length/mean",
    "response_length/clip_ratio",
    "val-core/math/reward/mean@1",
    "rollout_corr/kl",
    "training/rollout_probs_diff_mean",
    "timing_s/step",
    "timing_s/gen",
    "timing_s/update_weights",
    "timing_s/save_checkpoint",
    "perf/max_memory_reserved_gb",
    "perf/cpu_memory_used_gb",
    "perf/throughput",
    "train/loss",
    "val/loss",
    "my/own",
)
ODD = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, 1e-38, 0.5, 1e9, math.nan, math.inf, -math.inf])
VALUES = st.one_of(ODD, st.floats(-1e6, 1e6, width=32))
NO_TIME = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@st.composite
def step_numbers(draw: st.DrawFn) -> list[int]:
    """Steps that mostly go on by one, and sometimes stay, jump ahead or go back."""
    step = draw(st.integers(0, 50))
    numbers = []
    for _ in range(draw(st.integers(1, 60))):
        numbers.append(step)
        step = max(0, step + draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2, 7, 1000, -1, -5, -40])))
    return numbers


@st.composite
def logs(draw: st.DrawFn) -> files.Steps:
    """Of a few metrics, each of which may be odd, and there only for a part of the run."""
    numbers = draw(step_numbers())
    courses: dict[str, tuple[int, int, Callable[[int], float]]] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=8, unique=True)):
        begins = draw(st.sampled_from([0, 0, 0, 20, len(numbers) - 1]))
        ends = draw(st.sampled_from([len(numbers), len(numbers), 25]))
        courses[key] = (begins, ends, draw(course(numbers)))
    return [
        (step, {key: value(place) for key, (begins, ends, value) in courses.items() if begins <= place < ends})
        for place, step in enumerate(numbers)
    ]


def course(numbers: list[int]) -> st.SearchStrategy[Callable[[int], float]]:
    """The values of one metric by place."""

    def listed(values: list[float]) -> Callable[[int], float]:
        return lambda place: values[place % len(values)]

    def waving(scale: float) -> Callable[[int], float]:
        return lambda place: files.single(scale * (1.0 + files.wave(numbers[place], 0.2)))

    return st.one_of(
        st.lists(VALUES, min_size=1, max_size=5).map(listed), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]).map(waving)
    )


def well_formed(verdicts: list[dict[str, Any]], steps: files.Steps) -> None:
    logged = {step for step, _ in steps}
    for verdict in verdicts:
        assert verdict["step"] in logged
        assert verdict["onset"] <= verdict["step"]
        assert verdict["severity"] in ("info", "warning", "critical")
        assert verdict["detector"]
        assert isinstance(verdict["signal"], str)
        assert 0.0 <= verdict["confidence"] <= 1.0
        assert verdict["summary"].isprintable()


@pytest.mark.parametrize("form", FORMS)
@NO_TIME
@given(steps=logs())
def test_any_log_is_answered(form: str, steps: files.Steps, tmp_path: Path) -> None:
    path = files.written(tmp_path / "log", FORMS[form](steps))
    answer = answered(path, "--gpu-memory-gb", "80", "--host-memory-gb", "900", "--max-steps", "100", "--lr", "1e-6")
    # A trainer's state has an epoch with each step, the others nothing where there is no metric.
    assert answer.code == (0 if form == "state" or any(metrics for _, metrics in steps) else 2)
    assert "failed on" not in answer.err
    well_formed(answer.verdicts, steps)


@NO_TIME
@given(steps=logs().filter(lambda steps: any(metrics for _, metrics in steps)))
def test_of_any_log_recovery_can_be_asked(steps: files.Steps, tmp_path: Path) -> None:
    path = files.written(tmp_path / "log", files.jsonl(steps))
    policy = files.written(tmp_path / "policy.yml", b"budget_per_day: 2\nmargin_steps: 0\n")
    answer = answered(path, "--policy", policy, "--save-freq", "5")
    assert answer.code == 0
    assert [line for line in answer.verdicts if "plan" not in line] == answered(path).verdicts
    for line in answer.verdicts:
        if "plan" in line:
            assert (line["plan"]["action"] == "rollback") == (line["plan"]["target_step"] is not None)
            assert line["plan"]["reason"]
    well_formed(answer.verdicts, steps)


@settings(NO_TIME, max_examples=8)
@given(steps=logs().filter(lambda steps: any(metrics for _, metrics in steps)))
def test_any_log_can_be_drawn(steps: files.Steps, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = files.written(tmp_path / "log", files.jsonl(steps))
    answer = answered(path, "--plot", tmp_path / "out.png")
    assert answer.code == 0
    assert answer.out == answered(path).out


@pytest.mark.parametrize("form", FORMS)
@NO_TIME
@given(data=st.data())
def test_a_run_of_three_steps_pages_of_nothing_but_nan(form: str, data: st.DataObject, tmp_path: Path) -> None:
    finite = VALUES.filter(math.isfinite)
    keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
    steps = [(step, {key: data.draw(finite) for key in keys}) for step in (1, 2, 3)]
    answer = answered(files.written(tmp_path / "log", FORMS[form](steps)))
    assert (answer.code, answer.pages) == (0, [])


@NO_TIME
@given(key=st.sampled_from(KEYS), value=VALUES.filter(math.isfinite), length=st.integers(1, 120))
def test_a_single_signal_that_never_changes_is_not_paged(key: str, value: float, length: int, tmp_path: Path) -> None:
    # But for a gradient of exactly 0, which is what a dead run is: the next test.
    assume(not (key == "actor/grad_norm" and value == 0))
    steps = [(step, {key: value}) for step in range(1, length + 1)]
    answer = answered(files.written(tmp_path / "log", files.jsonl(steps)))
    assert (answer.code, answer.pages) == (0, [])


def test_a_gradient_that_is_exactly_0_for_long_enough_is_paged(tmp_path: Path) -> None:
    steps = [(step, {"actor/grad_norm": 0.0}) for step in range(1, 21)]
    answer = answered(files.written(tmp_path / "log", files.jsonl(steps)))
    assert {page["detector"] for page in answer.pages} == {"dead_run"}


def grpo(step: int) -> files.Metrics:
    """A made step of a healthy run of GRPO."""

    def around(middle: float, share: float, phase: int) -> float:
        return middle * (1.0 + files.wave(step + phase, share))

    return {
        "actor/pg_loss": files.wave(step, 0.02),
        "actor/grad_norm": around(0.3, 0.2, 1),
        "actor/entropy": around(0.8, 0.1, 2),
        "actor/kl_loss": around(0.01, 0.2, 3),
        "actor/pg_clipfrac": around(0.01, 0.3, 4),
        "actor/lr": 1e-6,
        "critic/score/mean": around(0.5, 0.1, 5),
        "critic/advantages/max": around(2.0, 0.1, 6),
        "critic/advantages/min": -around(2.0, 0.1, 7),
        "response_length/mean": around(400.0, 0.1, 8),
        "response_length/clip_ratio": around(0.02, 0.5, 9),
        "rollout_corr/kl": around(0.001, 0.3, 10),
        "timing_s/step": around(30.0, 0.05, 11),
        "timing_s/gen": around(15.0, 0.05, 12),
        "timing_s/update_weights": around(1.0, 0.05, 13),
        "perf/max_memory_reserved_gb": 60.0,
        "perf/cpu_memory_used_gb": around(200.0, 0.01, 14),
        "perf/throughput": around(900.0, 0.05, 15),
    }


@pytest.mark.parametrize("key", grpo(1))
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_unit_that_changes_at_a_resume_is_not_paged(key: str, factor: float, tmp_path: Path) -> None:
    before = [(step, grpo(step)) for step in range(1, 81)]
    after = [(step, grpo(step) | {key: grpo(step)[key] * factor}) for step in range(61, 161)]
    answer = answered(files.written(tmp_path / "log", files.jsonl([*before, *after])))
    assert "1 restart" in answer.err
    assert (answer.code, answer.pages) == (0, [])


@pytest.mark.parametrize("key", grpo(1))
def test_a_metric_that_comes_late_and_goes_again_is_not_paged(key: str, tmp_path: Path) -> None:
    steps = [(step, grpo(step)) for step in range(1, 151)]
    for step, metrics in steps:
        if not 50 <= step < 110:
            del metrics[key]
    answer = answered(files.written(tmp_path / "log", files.jsonl(steps)))
    assert (answer.code, answer.pages) == (0, [])


@pytest.mark.parametrize("every", [2, 7, 100])
def test_a_log_with_gaps_is_not_paged(every: int, tmp_path: Path) -> None:
    steps = [(step * every, grpo(step)) for step in range(1, 151)]
    answer = answered(files.written(tmp_path / "log", files.jsonl(steps)))
    assert (answer.code, answer.pages) == (0, [])


def test_steps_that_are_repeated_or_come_late_are_not_paged(tmp_path: Path) -> None:
    steps = [(step, grpo(step)) for step in range(1, 151)]
    mixed = [one for first in range(0, 150, 5) for one in (*steps[first : first + 5][::-1], steps[first])]
    answer = answered(files.written(tmp_path / "log", files.jsonl(mixed)))
    assert (answer.code, answer.pages) == (0, [])
