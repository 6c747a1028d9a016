"""Stragglers: a GPU, a node or a rollout worker away from its peers for long; never for one step."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import read

from bench.detection.runs import DATA
from exporter.detectors.base import GpuView, LiveView, Severity, StepSample, Verdict
from exporter.detectors.slow_worker import SlowWorker
from exporter.detectors.stragglers import Stragglers

EVERY = 10
Reading = Callable[[int, int, int], dict[str, float]]
"""Of the time, the node and the index."""


def watched(reading: Reading, seconds: int, *, nodes: int = 1, each: int = 8) -> list[tuple[int, Verdict]]:
    detector, found = Stragglers(), []
    for now in range(0, seconds, EVERY):
        gpus = tuple(
            GpuView(f"n{node}", index, now - 1.0, **reading(now, node, index))  # type: ignore[arg-type]
            for node in range(nodes)
            for index in range(each)
        )
        step = now // 60
        found += [(now, v) for v in detector.look(LiveView(float(now), step, 1, step, True, float(now), gpus=gpus))]
    return found


def pages(found: Iterable[tuple[int, Verdict]]) -> list[int]:
    return [now for now, v in found if v.severity is Severity.CRITICAL]


def test_a_gpu_that_gets_hot_is_a_warning_then_a_page_and_is_named() -> None:
    found = watched(lambda now, _, i: {"temperature": 90.0 if i == 3 and now >= 1200 else 60.0 + i % 3}, 3000)
    assert found[0][0] > 1200 + 300
    assert found[0][1].severity is Severity.WARNING
    assert 1200 + 600 < pages(found)[0] < 1200 + 900
    assert "GPU n0/3" in found[0][1].summary
    assert abs(found[0][1].onset - 20) <= 1


def test_a_gpu_that_idles_while_its_peers_work_is_a_page() -> None:
    found = watched(lambda now, _, i: {"utilization": 0.05 if i == 3 and now >= 1200 else 0.95}, 3000)
    assert pages(found)
    assert {v.signal for _, v in found} == {"gpu_utilization"}


def test_a_gpu_that_is_throttled_in_one_phase_of_every_step_adds_up() -> None:
    def power(now: int, _: int, index: int) -> dict[str, float]:
        working = now % 60 < 45
        slow = index == 3 and now >= 1200
        return {"power": (280.0 if slow else 600.0) + index if working else 120.0 + index}

    assert pages(watched(power, 5000))


def test_one_long_step_with_one_busy_gpu_is_no_page() -> None:
    tail = watched(lambda now, _, i: {"utilization": 0.02 if 1200 <= now < 1500 and i else 0.95}, 4000)
    assert pages(tail) == []
    away = watched(lambda now, _, i: {"utilization": 0.02 if 1200 <= now < 1260 and i == 2 else 0.95}, 4000)
    assert away == []


def test_another_gpu_in_every_step_is_nothing() -> None:
    assert watched(lambda now, _, i: {"utilization": 0.05 if now // 60 % 8 == i else 0.9}, 6000) == []


def test_roles_from_the_beginning_are_no_page() -> None:
    assert watched(lambda now, _, i: {"utilization": 0.9 if i < 6 else 0.1}, 6000) == []
    warm = watched(lambda now, _, i: {"temperature": 84.0 if i == 7 else 60.0}, 6000)
    assert warm
    assert pages(warm) == []


def test_fewer_than_four_have_no_peers() -> None:
    assert watched(lambda now, _, i: {"temperature": 95.0 if i == 0 else 40.0}, 3000, each=3) == []


def test_noise_is_nothing() -> None:
    rnd = random.Random(2)
    noisy = watched(lambda now, _, i: {"utilization": rnd.random(), "temperature": 70.0 + rnd.gauss(0.0, 5.0)}, 6000)
    assert noisy == []


def test_a_whole_node_is_named_as_one() -> None:
    found = watched(lambda now, n, i: {"power": 200.0 if n == 2 and now >= 1200 else 600.0}, 3000, nodes=4)
    assert "node n2 away" in found[-1][1].summary


def test_a_lost_gpu_is_a_page_at_once() -> None:
    gpus = tuple(GpuView("a", index, 4.0, lost=index == 1) for index in range(2))
    found = Stragglers().look(LiveView(5.0, 7, 1, 7, True, 5.0, gpus=gpus))
    assert [(v.signal, v.severity, v.onset) for v in found] == [("gpu_lost", Severity.CRITICAL, 7)]
    assert "a/1" in found[0].summary


def test_of_a_run_that_is_over_nothing_is_said() -> None:
    gpus = (GpuView("a", 0, 4.0, lost=True),)
    assert Stragglers().look(LiveView(5.0, 7, 1, 7, False, 5.0, gpus=gpus)) == ()


numbers = st.sampled_from([None, 0.0, 0.5, 95.0, 1e30, -1e308, math.nan, math.inf])
machines = st.lists(
    st.builds(
        GpuView, st.sampled_from(["a", "b"]), st.integers(0, 9), st.sampled_from([0.0, 90.0]), numbers,
        temperature=numbers, power=numbers, lost=st.booleans(),
    ),
    max_size=9,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1.0, 6.0, 40.0, 90.0, -9.0]), machines), max_size=40), st.integers(0, 40))
def test_whatever_gpus_say_is_taken_and_a_restart_changes_nothing(
    series: list[tuple[float, list[GpuView]]], cut: int
) -> None:
    now, views = 0.0, []
    for number, (passed, gpus) in enumerate(series):
        now += passed
        views.append(LiveView(now, number, 1, number, True, now, gpus=tuple(gpus)))
    one, two = Stragglers(seconds=10.0), Stragglers(seconds=10.0)
    for moment in views[:cut]:
        one.look(moment)
    two.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    for moment in views[cut:]:
        verdicts = list(one.look(moment))
        assert list(two.look(moment)) == verdicts
        assert all(v.score > v.threshold and math.isfinite(v.score) and v.onset <= v.step for v in verdicts)


@pytest.mark.parametrize(("option", "value"), [("seconds", 0.0), ("z", 0.5)])
def test_a_wrong_option_of_stragglers_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"detector stragglers: {option}"):
        Stragglers(**{option: value})


# The slowest rollout worker, step by step


def generation(steps: int, slow: Callable[[int], float], seed: int = 0) -> list[Verdict]:
    rnd, detector, found = random.Random(seed), SlowWorker(), []
    for step in range(1, steps):
        mean = 12.0 * math.exp(0.1 * rnd.gauss(0.0, 1.0))
        slowest = mean * (2.4 * math.exp(0.2 * rnd.gauss(0.0, 1.0)) + 1.0) * slow(step)
        signals = {"slowest_rollout_time": slowest, "mean_rollout_time": mean}
        found += detector.observe(StepSample(step, 1, 0.0, signals))
    return found


def test_a_worker_three_times_slower_is_a_page_within_the_window() -> None:
    found = generation(150, lambda step: 3.0 if step >= 100 else 1.0)
    critical = [v for v in found if v.severity is Severity.CRITICAL]
    assert critical
    assert critical[0].step < 115
    assert abs(critical[0].onset - 100) <= 3
    assert critical[-1].step == 149
    assert critical[-1].onset == critical[0].onset


def test_single_slow_steps_and_healthy_noise_are_no_page() -> None:
    for seed in range(10):
        assert generation(400, lambda step: 4.0 if step % 40 == 0 else 1.0, seed) == []


def test_a_mean_that_shrinks_makes_no_straggler() -> None:
    detector = SlowWorker()
    for step in range(1, 300):
        signals = {"slowest_rollout_time": 30.0, "mean_rollout_time": 12.0 / (1.0 + 0.03 * step)}
        assert detector.observe(StepSample(step, 1, 0.0, signals)) == ()


times = st.sampled_from([0.0, 1.0, 5.0, 1e30, 5e-324, -1.0, math.nan, math.inf])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 1, 1, 0, -3]), times, times), max_size=80), st.integers(0, 80))
def test_whatever_times_come_are_taken_and_a_restart_changes_nothing(
    series: list[tuple[int, float, float]], cut: int
) -> None:
    steps, step = [], 0
    for jump, slowest, mean in series:
        step = max(step + jump, 0)
        signals = {"slowest_rollout_time": slowest, "mean_rollout_time": mean}
        steps.append(StepSample(step, 1, 0.0, signals))
    one, two = SlowWorker(warmup=10, k=2, n=3), SlowWorker(warmup=10, k=2, n=3)
    for sample in steps[:cut]:
        one.observe(sample)
    two.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    for sample in steps[cut:]:
        verdicts = list(one.observe(sample))
        assert list(two.observe(sample)) == verdicts
        assert all(v.score > v.threshold and math.isfinite(v.score) and v.onset <= v.step for v in verdicts)


@pytest.mark.parametrize(("option", "value"), [("factor", 1.0), ("k", 0), ("k", 99), ("window", 3), ("warmup", 2)])
def test_a_wrong_option_of_slow_worker_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"detector slow_worker: {option}"):
        SlowWorker(**{option: value})  # type: ignore[arg-type]


@pytest.mark.skipif(not DATA.is_dir(), reason="real verl logs are not part of the repository")
def test_real_runs_have_no_straggler_and_one_put_into_them_is_paged() -> None:
    paged, runs = 0, sorted(DATA.glob("*.jsonl.gz"))
    for path in runs:
        steps = list(read(path))
        healthy, broken = SlowWorker(), SlowWorker()
        assert not any(healthy.observe(StepSample(step, 1, 0.0, signals)) for step, signals in steps), path.name
        found = []
        for index, (step, signals) in enumerate(steps[:430]):
            slow = signals["slowest_rollout_time"] * (3.0 if index >= 400 else 1.0)
            found += broken.observe(StepSample(step, 1, 0.0, signals | {"slowest_rollout_time": slow}))
        paged += any(v.severity is Severity.CRITICAL for v in found)
    assert paged == len(runs)
