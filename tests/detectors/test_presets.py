"""Presets: options by kind of training, below a user's own, and the manual's thresholds where they are wanted."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from streams import healthy, watch

from exporter.detectors.base import Severity, StepSample
from exporter.detectors.calibration import Budget
from exporter.detectors.presets import DEFAULT_PRESET, ENABLED, PRESETS, in_effect, preset_named
from exporter.detectors.registry import LIVE_DETECTORS, NAMES, STEP_DETECTORS, DetectorPlan, build_detectors
from exporter.detectors.setup import RunSetup

GIB = 1024.0**3
KINDS = {**STEP_DETECTORS, **LIVE_DETECTORS}


def names(preset: str, options: dict[str, dict[str, Any]] | None = None) -> set[str]:
    return {detector.name for detector in build_detectors(options, preset=preset).all()}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_built_and_gives_a_reason_for_each_difference(preset: str) -> None:
    assert names(preset) <= set(NAMES)
    for detector, difference in PRESETS[preset].differences.items():
        assert detector in NAMES
        assert difference.options
        assert difference.why.endswith(".")


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_certain_is_watched_under_every_preset(preset: str) -> None:
    assert names(preset) >= {"non_finite", "stalled_phase", "silent_run", "trainer_exited"}


def test_manual_leaves_off_what_learns_its_thresholds_from_the_run() -> None:
    calibrated = {name for name, kind in KINDS.items() if "budget" in inspect.signature(kind).parameters}
    assert calibrated
    assert names("manual").isdisjoint(calibrated | {"surge", "gradient_instability", "slow_worker"})


def test_sft_leaves_off_what_needs_a_rollout() -> None:
    off = {"kl", "entropy", "response_length", "clipping", "rollout_mismatch", "reward", "communication"}
    off |= {"aborted_rollouts", "rollout_failures", "slow_worker"}
    assert names("sft").isdisjoint(off)
    assert names("grpo") >= off


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_sets_an_option_to_what_it_is_anyway(preset: str) -> None:
    for detector, difference in PRESETS[preset].differences.items():
        parameters = inspect.signature(KINDS[detector]).parameters
        for option, value in difference.options.items():
            default = True if option == ENABLED else parameters[option].default
            assert value != default or detector == "fixed_limits", f"{preset}: {detector}.{option}"


def test_the_default_preset_is_what_the_detectors_do_without_options() -> None:
    assert DEFAULT_PRESET == "grpo"
    assert PRESETS["grpo"].differences == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpro", "preset is 'gpro': did you mean 'grpo'? Known: grpo, ppo, dapo, sft, manual"),
        ("GRPO", "preset is 'GRPO': did you mean 'grpo'?"),
        ("zzzz", "preset is 'zzzz': Known: grpo"),
        (None, "preset is None"),
        (["grpo"], "preset is ['grpo']"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(name: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        build_detectors(preset=name)
    with pytest.raises(ValueError, match=re.escape(words)):
        preset_named(name)


def test_a_users_options_go_before_those_of_the_preset_one_by_one() -> None:
    together = in_effect("manual", {"fixed_limits": {"kl_above": 0.5, "mfu_below": 0.2}})["fixed_limits"]
    assert (together["kl_above"], together["kl_below"], together["mfu_below"]) == (0.5, 0.01, 0.2)
    assert PRESETS["manual"].differences["fixed_limits"].options["kl_above"] == 0.3


def test_what_a_preset_leaves_off_is_on_once_it_is_named_and_off_when_it_is_said_so() -> None:
    assert "surge" not in names("manual")
    assert "surge" in names("manual", {"surge": {"k": 4}})
    assert "surge" in names("manual", {"surge": {}})
    assert "surge" not in names("manual", {"surge": {"k": 4, "enabled": False}})


def test_options_are_checked_together_with_those_of_the_preset() -> None:
    with pytest.raises(ValueError, match=re.escape("kl_below is 0.4: it must not be above kl_above (0.3)")):
        DetectorPlan({"fixed_limits": {"kl_below": 0.4}}, preset="manual")


def test_each_run_has_detectors_of_its_own() -> None:
    plan = DetectorPlan(preset="manual")
    one, other = plan(), plan()
    watch(one.step, healthy(40))
    assert one.state_dict() != other.state_dict()
    assert other.state_dict() == build_detectors(preset="manual").state_dict()


@pytest.mark.parametrize("before", PRESETS)
def test_a_restart_under_another_preset_takes_over_what_fits(before: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "surge": {"window": 40, "n": 9, "k": 4},
        "fixed_limits": {"kl_above": 0.1, "n": 20, "window": 60},
    }
    old = build_detectors(options, preset=before)
    steps = healthy(90)
    watch(old.step, steps[:50])
    state = json.loads(json.dumps(old.state_dict(), allow_nan=False))
    for after in PRESETS:
        new = build_detectors(preset=after)
        new.load_state_dict(state)
        pages = [v for v in watch(new.step, steps[50:]) if v.severity is Severity.CRITICAL]
        assert {v.detector for v in pages} <= {"fixed_limits"}  # the manual's KL below 0.01
        json.dumps(new.state_dict(), allow_nan=False)


def test_the_budget_reaches_every_detector_that_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter.detectors import registry

    seen: list[Budget] = []

    class Calibrated:
        """Takes a budget."""

        name = "calibrated"

        def __init__(self, *, budget: Budget | None = None) -> None:
            if budget is not None:
                seen.append(budget)

    monkeypatch.setattr(registry, "STEP_DETECTORS", {"calibrated": Calibrated})
    registry.DetectorPlan(budget=Budget(2.0))()
    assert seen
    assert set(seen) == {Budget(2.0)}


def manual(steps: list[tuple[int, dict[str, float]]]) -> list[tuple[int, str, Severity]]:
    """What the preset says of steps that follow 40 usual ones, beside what it says of the usual ones."""
    usual = {"step_time": 20.0, "kl": 0.05, "loss": 0.2, "gpu_memory": 60.0 * GIB}
    detectors = build_detectors(preset="manual").step
    found = []
    for step, signals in [*((step, {}) for step in range(1, 41)), *steps]:
        sample = StepSample(step, 1, float(step), usual | signals, RunSetup(gpu_memory_bytes=80.0 * GIB))
        for detector in detectors:
            found += [(v.step, v.signal, v.severity) for v in detector.observe(sample)]
    return found


@pytest.mark.parametrize(
    ("steps", "page"),
    [
        ([(41, {"kl": 0.31})], (41, "kl")),
        ([(41, {"kl": 0.009})], (41, "kl")),
        ([(41, {"gpu_memory": 76.5 * GIB})], (41, "gpu_memory")),
        ([(41, {"step_time": 31.0}), (42, {"step_time": 31.0}), (43, {"step_time": 31.0})], (43, "step_time")),
        ([(step, {"step_time": 130.0 if step % 2 else 20.0}) for step in range(41, 47)], (45, "step_time")),
        ([(41, {"loss": 2.1})], (41, "loss")),
        ([(41, {"loss": float("nan")})], (41, "loss")),
    ],
)
def test_manual_pages_at_the_manuals_thresholds(
    steps: list[tuple[int, dict[str, float]]], page: tuple[int, str]
) -> None:
    assert manual(steps)[0] == (*page, Severity.CRITICAL)


@pytest.mark.parametrize(
    "signals", [{}, {"kl": 0.3}, {"kl": 0.01}, {"gpu_memory": 76.0 * GIB}, {"loss": 1.9}, {"grad_norm": 1e6}]
)
def test_manual_says_nothing_short_of_them(signals: dict[str, float]) -> None:
    assert manual([(41, signals), (42, {"step_time": 31.0}), (43, {"step_time": 31.0})]) == []


def wave(step: int) -> float:
    return math.sin(step * 1.7) + 0.7 * math.sin(step * 2.9)


def ramp(step: int, steps: int, first: int = 100) -> float:
    """From 0 to 1 over so many steps."""
    return min(1.0, max(0.0, (step - first) / steps))


Change = Callable[[int, dict[str, float]], dict[str, float]]
CHANGES: dict[str, tuple[str, Change]] = {
    "entropy doubles": ("entropy", lambda step, usual: {"entropy": usual["entropy"] * (1 + 1.2 * ramp(step, 15))}),
    "answers get 1.8 times as long": (
        "response_length",
        lambda step, _: {
            "response_length": 800 * (1 + 0.05 * wave(step)) * (1 + 0.8 * ramp(step, 20)),
            "clip_ratio": 0.02 + 0.3 * ramp(step, 20),
        },
    ),
    "half of the answers are cut": (
        "clipping",
        lambda step, _: {"clip_ratio": 0.1 + 0.02 * wave(step) + 0.4 * ramp(step, 10)},
    ),
    "steps take 1.7 times as long": (
        "step_time",
        lambda step, _: {
            "step_time": 30 * (1.7 if step > 100 else 1.0) * (1 + 0.04 * wave(step)),
            "tokens": 1e5 * (1 + 0.04 * wave(step)),
            "response_length": 800.0,
        },
    ),
    "KL grows to the controller's target": (
        "kl",
        lambda step, _: {"kl": 0.005 * (1 + 0.1 * wave(step)) * (1 + 19 * ramp(step, 12))},
    ),
    "KL grows far beyond it": (
        "kl",
        lambda step, _: {"kl": 0.005 * (1 + 0.1 * wave(step)) * (1 + 59 * ramp(step, 12))},
    ),
    "eight steps without a gradient": (
        "dead_run",
        lambda step, _: {"grad_norm": 0.0, "advantage_spread": 0.0} if 100 < step <= 108 else {"advantage_spread": 2.0},
    ),
}


@pytest.mark.parametrize(
    ("change", "pages", "does_not"),
    [
        ("entropy doubles", ("grpo", "ppo"), ("dapo", "sft")),
        ("answers get 1.8 times as long", ("grpo", "ppo"), ("dapo", "sft")),
        ("half of the answers are cut", ("grpo", "ppo"), ("dapo", "sft")),
        ("steps take 1.7 times as long", ("grpo", "ppo", "sft"), ("dapo",)),
        ("KL grows to the controller's target", ("grpo", "dapo"), ("ppo", "sft")),
        ("KL grows far beyond it", ("grpo", "ppo", "dapo"), ("sft",)),
        ("eight steps without a gradient", ("ppo", "dapo", "sft"), ("grpo",)),
    ],
)
def test_what_is_a_failure_of_one_kind_of_training_is_healthy_in_another(
    change: str, pages: tuple[str, ...], does_not: tuple[str, ...]
) -> None:
    detector, changed = CHANGES[change]
    steps = [(step, usual | changed(step, usual)) for step, usual in healthy(160)]
    found = {}
    for preset in (*pages, *does_not):
        said = watch(build_detectors(preset=preset).step, steps)
        found[preset] = any(v.detector == detector and v.severity is Severity.CRITICAL for v in said)
    assert found == dict.fromkeys(pages, True) | dict.fromkeys(does_not, False)
