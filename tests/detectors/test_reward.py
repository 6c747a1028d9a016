"""A collapse of the reward pages, harder tasks and small batches do not, and hacking is told with what was compared."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Signals, critical, watch

from exporter.detectors.base import Severity, StepSample
from exporter.detectors.reward import Reward

Steps = list[tuple[int, Signals]]


def run(steps: int, seed: int = 0, *, level: float = 0.6, noise: float = 0.06) -> Steps:
    draw = random.Random(seed)
    return [
        (
            step,
            {
                "reward": level + noise * draw.gauss(0, 1),
                "entropy": 0.3 * math.exp(0.05 * draw.gauss(0, 1) - step / 2000),
                "grad_norm": 0.5 * math.exp(0.2 * draw.gauss(0, 1)),
                "ppo_kl": 2e-4 * draw.gauss(0, 1),
                "response_length": 1000 * math.exp(0.05 * draw.gauss(0, 1)),
            },
        )
        for step in range(1, steps + 1)
    ]


def changed(steps: Steps, at: int, change: Callable[[Signals, int], Signals]) -> Steps:
    return [(step, signals if step < at else signals | change(signals, step - at)) for step, signals in steps]


def falls(by: float, over: int, **factors: float) -> Callable[[Signals, int], Signals]:
    """The reward by a share, and other signals to ``factors`` times what they were, over some steps."""

    def change(signals: Signals, i: int) -> Signals:
        way = min(1.0, (i + 1) / over)
        moved = {name: signals[name] * factor**way for name, factor in factors.items()}
        return {"reward": signals["reward"] - 0.6 * by * way} | moved

    return change


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beside", [{"entropy": 0.3}, {"entropy": 4.0}, {"grad_norm": 5.0}, {"response_length": 0.3}])
@pytest.mark.parametrize("by", [0.5, 0.95])
def test_a_collapse_with_the_policy_moving_pages_within_twenty_steps(
    seed: int, by: float, beside: dict[str, float]
) -> None:
    found = critical(watch([Reward()], changed(run(160, seed), 120, falls(by, 10, **beside))))
    assert found
    assert 120 <= found[0].step <= 140
    assert 108 <= found[0].onset <= 130
    assert next(iter(beside)) in found[0].summary


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("over", [1, 10, 30])
def test_a_deep_collapse_pages_by_itself(seed: int, over: int) -> None:
    found = critical(watch([Reward()], changed(run(200, seed), 120, falls(0.9, over))))
    assert found
    assert 120 <= found[0].step <= 130 + over


def test_a_fall_of_half_that_takes_twenty_steps_mostly_pages_since_no_curriculum_does_that() -> None:
    pages = [critical(watch([Reward()], changed(run(200, seed), 120, falls(0.5, 20)))) for seed in range(12)]
    assert sum("goes on" in page[0].summary for page in pages if page) >= 8


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", [0.25, 0.4])
def test_harder_tasks_are_a_warning(seed: int, by: float) -> None:
    found = watch([Reward()], changed(run(250, seed), 120, falls(by, 1, response_length=1.3)))
    assert {v.severity for v in found} == {Severity.WARNING}
    assert 110 <= found[0].onset <= 125


@pytest.mark.parametrize("seed", SEEDS)
def test_easier_tasks_say_nothing(seed: int) -> None:
    assert watch([Reward()], changed(run(250, seed), 120, falls(-0.5, 1))) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2, 1.0])
def test_noise_says_nothing_critical_however_small_the_batch(seed: int, noise: float) -> None:
    assert critical(watch([Reward()], run(600, seed, noise=noise))) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_two_bad_batches_say_nothing(seed: int) -> None:
    def bad(signals: Signals, i: int) -> Signals:
        return {"reward": 0.0, "grad_norm": 5.0} if i < 2 else {}

    assert watch([Reward()], changed(run(200, seed), 120, bad)) == []


@pytest.mark.parametrize(("scale", "offset"), [(50.0, 0.0), (1.0, -1.6), (2.0, -1.0), (1e-4, 0.0), (1e6, 0.0)])
def test_rewards_of_any_scale_and_sign(scale: float, offset: float) -> None:
    for seed in SEEDS:
        quiet = [(s, x | {"reward": scale * x["reward"] + offset}) for s, x in run(300, seed)]
        assert critical(watch([Reward()], quiet)) == []
        wrecked = changed(run(160, seed), 120, falls(1.5, 10, grad_norm=6.0))
        moved = [(s, x | {"reward": scale * x["reward"] + offset}) for s, x in wrecked]
        assert critical(watch([Reward()], moved))


def spent(steps: int, *, level: float, gain: float = 0.0, entropy: float = 0.002) -> Steps:
    """A run that learned, lost its entropy, and then gains ``gain`` in all."""
    draw, found = random.Random(5), []
    for step in range(1, steps + 1):
        way = min(step / 150, 1.0)
        reward = level * (0.5 + 0.5 * way) + gain * step / steps + 0.02 * draw.gauss(0, 1)
        found.append((step, {"reward": reward, "entropy": 0.3 * (entropy / 0.3) ** way * math.exp(draw.gauss(0, 0.1))}))
    return found


def test_a_plateau_without_entropy_is_a_warning() -> None:
    found = watch([Reward()], spent(700, level=0.5))
    assert {v.severity for v in found} == {Severity.WARNING}
    assert "entropy" in found[0].summary
    assert 400 <= found[0].step <= 520
    assert 100 <= found[0].onset <= 220


@pytest.mark.parametrize(
    "steps",
    [
        spent(700, level=0.95),
        spent(700, level=0.5, entropy=0.1),
        spent(700, level=0.5, gain=0.2),
        spent(300, level=0.5),
        [(step, signals | {"reward": 3 * signals["reward"] - 2}) for step, signals in spent(700, level=0.95)],
    ],
    ids=["solved", "entropy left", "still gaining", "short", "solved, of -1 to 1"],
)
def test_what_is_no_plateau(steps: Steps) -> None:
    assert watch([Reward()], steps) == []


def validated(train: Callable[[int], float], validation: Callable[[int], float], *, noise: float = 0.01) -> Steps:
    """200 steps with a validation at each tenth."""
    draw, steps = random.Random(7), run(200, noise=0.03)
    for step, signals in steps:
        signals["reward"] += train(step) - 0.6
        if step % 10 == 0:
            signals["val_reward"] = validation(step) + noise * draw.gauss(0, 1)
    return steps


def test_training_up_and_validation_down_is_a_warning_that_says_what_was_compared() -> None:
    steps = validated(lambda s: 0.4 + s / 500, lambda s: 0.5 - max(0, s - 100) / 500)
    found = [v for v in watch([Reward()], steps) if v.signal == "val_reward"]
    assert found
    assert {v.severity for v in found} == {Severity.WARNING}
    assert 120 <= found[0].step <= 170
    assert 70 <= found[0].onset <= 130
    assert "training reward rose from 0.5" in found[0].summary
    assert "validation reward fell from 0.5" in found[0].summary


@pytest.mark.parametrize(
    ("train", "validation", "noise"),
    [
        (lambda s: 0.4 + s / 500, lambda s: 0.3 + s / 600, 0.01),
        (lambda s: 0.4 + s / 500, lambda s: 0.5, 0.05),
        (lambda s: 0.6, lambda s: 0.5 - max(0, s - 100) / 500, 0.01),
        (lambda s: 0.7 - s / 500, lambda s: 0.6 - s / 500, 0.01),
    ],
    ids=["both rise", "noisy validation", "training flat", "both fall"],
)
def test_what_is_no_hacking(train: Callable[[int], float], validation: Callable[[int], float], noise: float) -> None:
    found = watch([Reward()], validated(train, validation, noise=noise))
    assert [v for v in found if v.signal == "val_reward"] == []


def often_validated(seed: int, every: int, to: float, over: int, *, train: float = 1.25, noise: float = 0.015) -> Steps:
    """Training at ``train`` times its level, validation at ``to`` times, ``over`` steps after step 200; noisy tasks."""
    draw, steps = random.Random(seed), run(200 + over + 25, seed, level=0.4, noise=0.1)
    for step, signals in steps:
        way = min(1.0, max(0, step - 200) / over)
        if step % every == 0:
            signals["val_reward"] = (0.38 + noise * draw.gauss(0, 1)) * (1.0 + (to - 1.0) * way)
        signals["reward"] *= 1.0 + (train - 1.0) * way
    return steps


def hacking(steps: Steps) -> list[int]:
    return [v.step for v in watch([Reward()], steps) if v.signal == "val_reward"]


@pytest.mark.parametrize("every", [5, 10, 20])
@pytest.mark.parametrize("train", [1.0, 1.25])
def test_a_validation_that_falls_to_a_third_is_hacking_even_where_training_only_keeps_its_level(
    every: int, train: float
) -> None:
    found = [hacking(often_validated(seed, every, 0.3, 60, train=train)) for seed in range(12)]
    assert sum(bool(steps) for steps in found) >= (12 if train > 1.0 else 9)
    assert all(step > 200 for steps in found for step in steps)


@pytest.mark.parametrize("every", [5, 10])
@pytest.mark.parametrize(("to", "over", "least"), [(0.8, 100, 9), (0.6, 80, 11)])
def test_a_validation_that_loses_less_is_hacking_where_training_rises(
    every: int, to: float, over: int, least: int
) -> None:
    found = [hacking(often_validated(seed, every, to, over)) for seed in range(12)]
    assert sum(bool(steps) for steps in found) >= least


@pytest.mark.parametrize("to", [0.8, 0.3])
def test_a_validation_that_falls_with_training_is_no_hacking(to: float) -> None:
    assert [hacking(often_validated(seed, 5, to, 60, train=to)) for seed in SEEDS] == [[]] * len(SEEDS)


@pytest.mark.parametrize("every", [5, 10, 20])
@pytest.mark.parametrize("noise", [0.015, 0.03, 0.05])
def test_noise_of_a_healthy_validation_is_hacking_in_few_runs(every: int, noise: float) -> None:
    found = [hacking(often_validated(seed, every, 1.0, 400, noise=noise)) for seed in range(12)]
    assert sum(bool(steps) for steps in found) <= 1


@pytest.mark.parametrize("offset", [-0.25, -0.5, -0.8, -2.0])
def test_how_deep_a_fall_of_a_signed_reward_is_does_not_depend_on_where_its_zero_lies(offset: float) -> None:
    """A fall by 1.2 units of noise, of a run that has gained 4: a large share of any level near 0, and never a page."""
    for seed in SEEDS:
        steps = run(300, seed, level=0.0, noise=0.1)
        for step, signals in steps:
            signals["reward"] += offset + 0.4 * min(1.0, step / 100) - (0.12 if step >= 200 else 0.0)
        assert critical(watch([Reward()], steps)) == []
        for step, signals in steps:
            signals["reward"] -= 0.28 if step >= 200 else 0.0
        assert critical(watch([Reward()], steps))


def test_a_validation_that_comes_as_a_second_part_of_its_step_counts() -> None:
    steps = validated(lambda s: 0.4 + s / 500, lambda s: 0.5 - max(0, s - 100) / 500)
    parts: Steps = []
    for step, signals in steps:
        value = signals.pop("val_reward", None)
        parts.append((step, signals))
        if value is not None:
            parts.append((step, {"val_reward": value}))
    assert any(v.signal == "val_reward" for v in watch([Reward()], parts))


def test_a_resume_forgets_the_level() -> None:
    detector = Reward()
    watch([detector], run(150))
    detector.resumed(100, 2)
    assert watch([detector], [(100 + s, x) for s, x in run(100, level=0.1, noise=0.02)]) == []


odd = st.one_of(st.sampled_from([0.0, 1e30, -1e30, 1e-30, 1e308, -1e308, math.nan, math.inf]), st.floats(-2.0, 2.0))
names = st.sampled_from(["reward", "val_reward", "entropy", "grad_norm", "ppo_kl", "response_length", "step_time"])


@given(st.lists(st.tuples(st.integers(-2, 3), st.dictionaries(names, odd)), max_size=80), st.integers(0, 120))
@settings(max_examples=150, deadline=None)
def test_anything_is_taken_and_a_restart_in_between_changes_nothing(moves: list[tuple[int, Signals]], cut: int) -> None:
    steps, step = run(40), 40
    for jump, signals in moves:
        step += jump
        steps.append((step, signals))
    detector, again = Reward(), Reward()
    watch([detector], steps[:cut])
    again.load_state_dict(json.loads(json.dumps(detector.state_dict(), allow_nan=False)))
    expected = watch([detector], steps[cut:])
    assert watch([again], steps[cut:]) == expected
    assert all(v.score > v.threshold and math.isfinite(v.score) and v.onset <= max(v.step, 0) for v in expected)


def test_a_restart_in_the_middle_of_a_plateau_and_of_hacking_changes_nothing() -> None:
    for steps in (spent(500, level=0.5), validated(lambda s: 0.4 + s / 500, lambda s: 0.5 - max(0, s - 100) / 500)):
        detector, again = Reward(), Reward()
        cut = len(steps) - 20
        watch([detector], steps[:cut])
        again.load_state_dict(json.loads(json.dumps(detector.state_dict(), allow_nan=False)))
        expected = watch([detector], steps[cut:])
        assert expected
        assert watch([again], steps[cut:]) == expected


def test_options_that_are_wrong_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="detector reward: warn is"):
        Reward(page=0.1, warn=0.2)
    with pytest.raises(ValueError, match="plateau_steps"):
        Reward(plateau_steps=10)
    assert list(Reward().observe(StepSample(1, 1, 0.0, {}))) == []
