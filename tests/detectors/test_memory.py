"""Memory: leaks are paged in time and forecast well half way; plateaus, teeth, drifts and other jobs cost no page."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import read

from bench.detection.runs import DATA
from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.memory import Memory
from exporter.detectors.setup import UNKNOWN, RunSetup

GIB = 1024.0**3
CARD = RunSetup(gpu_memory_bytes=80.0 * GIB)
LEAK_FROM = 60

Shape = Callable[[float], float]
SHAPES: Mapping[str, Shape] = {
    "linear": lambda u: u,
    "square": lambda u: u * u,
    "exponential": lambda u: math.expm1(2.0 * u) / math.expm1(2.0),
    "stairs": lambda u: math.floor(20.0 * u + 1e-9) / 20.0,
}


def samples(
    values: Iterable[float], setup: RunSetup = UNKNOWN, signal: str = "gpu_memory", **others: float
) -> Iterator[StepSample]:
    for step, value in enumerate(values, start=1):
        yield StepSample(step, 1, 0.0, {signal: value * GIB, "step_time": 30.0, **others}, setup)


def said(values: Iterable[float], setup: RunSetup = UNKNOWN, signal: str = "gpu_memory") -> list[Verdict]:
    detector = Memory()
    return [v for sample in samples(values, setup, signal) for v in detector.observe(sample)]


def pages(verdicts: Iterable[Verdict]) -> list[int]:
    return [v.step for v in verdicts if v.severity is Severity.CRITICAL]


def leak(shape: Shape, steps: int, *, base: float = 50.0, end: float = 80.0, noise: float = 0.0) -> list[float]:
    """A plateau, and from step 60 on a way of ``steps`` steps to ``end``."""
    rnd = random.Random(steps)
    grown = (base + (end - base) * shape(max(0, step - LEAK_FROM) / steps) for step in range(1, LEAK_FROM + steps + 1))
    return [value * (1.0 + noise * rnd.gauss(0.0, 1.0)) for value in grown]


@pytest.mark.parametrize("noise", [0.0, 0.002])
@pytest.mark.parametrize("steps", [50, 100, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_leak_is_paged_before_the_last_third_of_the_way(shape: str, steps: int, noise: float) -> None:
    found = said(leak(SHAPES[shape], steps, noise=noise), CARD)
    assert pages(found)
    assert LEAK_FROM < pages(found)[0] <= LEAK_FROM + 2 * steps // 3
    assert pages(found)[-1] == LEAK_FROM + steps


HALF_WAY = [
    (shape, noise, steps)
    for shape, noise in (("linear", 0.0), ("linear", 0.005), ("square", 0.0), ("exponential", 0.0), ("stairs", 0.002))
    for steps in (50, 100, 300)
    if not (shape == "exponential" and steps == 50)  # 25 points do not tell it from a square to 15 %
]


@pytest.mark.parametrize(("shape", "noise", "steps"), HALF_WAY)
def test_half_way_the_forecast_is_within_15_percent(shape: str, noise: float, steps: int) -> None:
    detector, half = Memory(), LEAK_FROM + steps // 2
    for sample in samples(leak(SHAPES[shape], steps, noise=noise), CARD):
        verdicts = detector.observe(sample)
        if sample.step >= half and sample.step < LEAK_FROM + steps - 10:
            assert verdicts
            forecast = verdicts[0].forecast
            assert forecast is not None
            assert forecast.limit == 80.0 * GIB
            assert forecast.steps is not None
            assert forecast.seconds == pytest.approx(30.0 * forecast.steps)
            left = LEAK_FROM + steps - sample.step
            assert abs(forecast.steps - left) <= max(0.15 * left, 2.0)
            assert forecast.interval is not None
            assert forecast.interval[0] - 2.0 <= left <= forecast.interval[1] + 2.0
            if sample.step > half + 10:
                break


def test_the_onset_is_where_the_leak_began() -> None:
    for verdict in said(leak(SHAPES["linear"], 100, noise=0.002), CARD):
        assert abs(verdict.onset - LEAK_FROM) <= 8


def test_a_warning_comes_before_the_page() -> None:
    found = said(leak(SHAPES["linear"], 300), CARD)
    assert found[0].severity is Severity.WARNING
    assert found[0].step < pages(found)[0] - 20


def test_a_limit_that_the_run_does_not_live_to_see_is_no_page() -> None:
    values = leak(SHAPES["linear"], 200)[: LEAK_FROM + 80]
    assert pages(said(values, RunSetup(gpu_memory_bytes=80.0 * GIB, total_steps=LEAK_FROM + 80))) == []
    assert pages(said(values, RunSetup(gpu_memory_bytes=80.0 * GIB, total_steps=LEAK_FROM + 400))) != []


def test_above_95_percent_growth_is_a_page_however_little() -> None:
    values = [76.5 + (0.05 * max(0, step - 60)) for step in range(1, 100)]
    assert pages(said(values, CARD))
    assert said([78.0] * 200, CARD) == []


def test_without_a_limit_a_strong_leak_is_a_page_and_a_slow_one_a_warning() -> None:
    strong = said([200.0 + 0.6 * max(0, step - 60) for step in range(160)])
    assert pages(strong)
    assert strong[-1].forecast is None
    slow = said([200.0 + 0.06 * max(0, step - 60) for step in range(400)])
    assert slow
    assert pages(slow) == []


def test_a_limit_below_what_is_in_use_is_the_limit_of_something_else() -> None:
    assert said([200.0] * 200, CARD) == []
    assert pages(said([200.0 + 0.6 * max(0, step - 60) for step in range(160)], CARD))


def test_memory_that_grows_with_the_responses_is_a_warning_where_no_limit_is_known() -> None:
    detector, found = Memory(), []
    for step in range(1, 200):
        grown = 1.0 + 0.003 * max(0, step - 60)
        signals = {"gpu_memory": 60.0 * GIB * grown, "response_length": 500.0 * grown**2}
        found += detector.observe(StepSample(step, 1, 0.0, signals))
    assert found
    assert pages(found) == []


def warm_up(rnd: random.Random) -> list[float]:
    """A running peak: stairs that get rarer by the step, as records do."""
    level, values = 50.0, []
    for step in range(1, 300):
        if rnd.random() < 1.2 / step:
            level = min(level + rnd.expovariate(0.5), 74.0)
        values.append(level)
    return values


def saw_tooth(rnd: random.Random) -> list[float]:
    period, height = rnd.choice([5, 10, 20, 25]), rnd.uniform(1.0, 6.0)
    return [55.0 + height * (step % period) / period for step in range(300)]


def validation_peaks(rnd: random.Random) -> list[float]:
    period, height = rnd.choice([5, 10, 25]), rnd.uniform(1.0, 20.0)
    return [55.0 + height * (step % period == 0) + rnd.gauss(0.0, 0.05) for step in range(300)]


def late_saw_tooth(rnd: random.Random) -> list[float]:
    return [55.0] * 100 + saw_tooth(rnd)


def noise(rnd: random.Random) -> list[float]:
    return [60.0 + rnd.gauss(0.0, 1.5) for _ in range(300)]


def slow_plateau(rnd: random.Random) -> list[float]:
    return [50.0 + 6.0 * (1.0 - math.exp(-step / 25.0)) + rnd.gauss(0.0, 0.1) for step in range(300)]


def settling(rnd: random.Random, tau: float, *, start: float = 50.0, end: float = 72.0, noise: float) -> list[float]:
    """The peak so far of what settles as ``1 - exp(-steps / tau)``: what verl logs."""
    values = (end - (end - start) * math.exp(-step / tau) + rnd.gauss(0.0, noise) for step in range(300))
    return list(accumulate(values, max))


def rarer_stairs(rnd: random.Random, tau: float, *, start: float, end: float, stairs: int) -> list[float]:
    """Stairs at random, whose frequency falls by e in ``tau`` steps."""
    found = [(rnd.expovariate(1.0 / tau), rnd.uniform(0.3, 1.7)) for _ in range(stairs)]
    per = (end - start) / sum(height for _, height in found)
    return [start + per * sum(height for at, height in found if at <= step) for step in range(300)]


@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize("tau", [20.0, 40.0, 70.0, 100.0, 150.0])
def test_memory_that_settles_below_the_limit_is_no_page(tau: float, noise: float) -> None:
    host = RunSetup(host_memory_bytes=300.0 * GIB)
    for seed in range(8):
        assert pages(said(settling(random.Random(seed), tau, noise=noise), CARD)) == [], seed
        values = settling(random.Random(seed), tau, start=200.0, end=260.0, noise=4.0 * noise)
        assert pages(said(values, host, "host_memory")) == [], seed


@pytest.mark.parametrize("tau", [20.0, 40.0, 100.0])
def test_without_a_limit_memory_that_settles_is_no_page(tau: float) -> None:
    for seed in range(8):
        assert pages(said(settling(random.Random(seed), tau, noise=0.3))) == [], seed


@pytest.mark.parametrize(("tau", "start", "end"), [(25.0, 56.0, 68.0), (60.0, 56.0, 68.0)])
def test_stairs_that_become_rare_cost_hardly_a_page(tau: float, start: float, end: float) -> None:
    found = [
        bool(pages(said(rarer_stairs(random.Random(seed), tau, start=start, end=end, stairs=15), CARD)))
        for seed in range(40)
    ]
    assert sum(found) <= 1


def test_memory_that_settles_beyond_the_limit_is_a_page_all_the_same() -> None:
    values = [v for v in settling(random.Random(1), 100.0, start=50.0, end=130.0, noise=0.05) if v < 80.0]
    found = pages(said(values, CARD))
    assert found
    assert found[0] < len(values) - 5


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_leak_that_is_there_from_the_first_step_is_paged_in_time(shape: str, noise: float) -> None:
    rnd = random.Random(1)
    values = [50.0 + 30.0 * SHAPES[shape](step / 150) + rnd.gauss(0.0, noise) for step in range(151)]
    found = pages(said(values, CARD))
    assert found
    assert found[0] <= 120


@pytest.mark.parametrize("setup", [CARD, UNKNOWN], ids=["limit", "no limit"])
@pytest.mark.parametrize("control", [warm_up, saw_tooth, validation_peaks, late_saw_tooth, noise, slow_plateau])
def test_what_only_looks_like_a_leak_is_no_page(
    control: Callable[[random.Random], list[float]], setup: RunSetup
) -> None:
    for seed in range(30):
        assert pages(said(control(random.Random(seed)), setup)) == [], seed


def test_a_tooth_as_long_as_the_way_between_validations_waits_for_one() -> None:
    def observed(period: int) -> list[Verdict]:
        detector, found = Memory(), []
        for step in range(1, 260):
            value = 50.0 + 14.0 * ((step - 1) % period) / period
            signals = {"gpu_memory": value * GIB, "step_time": 30.0}
            if step % period == 0:
                signals["validation_time"] = 60.0
            found += detector.observe(StepSample(step, 1, 0.0, signals, CARD))
        return found

    assert pages(observed(60))  # the first tooth; nothing is known yet of validations
    assert [step for step in pages(observed(60)) if step > 75] == []


def test_another_job_on_the_host_is_no_page() -> None:
    rnd = random.Random(5)
    values = [150.0 + 0.01 * step + 95.0 * (200 <= step < 400) + rnd.gauss(0.0, 0.1) for step in range(700)]
    for setup in (UNKNOWN, RunSetup(host_memory_bytes=500.0 * GIB)):
        assert pages(said(values, setup, "host_memory")) == []


def test_a_leak_of_the_host_is_a_page() -> None:
    values = [150.0 + 3.0 * max(0, step - 60) for step in range(160)]
    found = said(values, RunSetup(host_memory_bytes=500.0 * GIB), "host_memory")
    assert pages(found)
    assert found[-1].signal == "host_memory"
    assert pages(said(values, signal="host_memory"))


def test_a_leak_of_the_runs_own_processes_is_foreseen_against_what_they_may_hold() -> None:
    setup = RunSetup(run_memory_bytes=6.0 * GIB)
    values = [2.0 + 0.05 * max(0, step - 25) for step in range(1, 101)]
    first = pages(said(values, setup, "run_memory"))[0]
    assert first < 70
    (verdict,) = [v for v in said(values[:first], setup, "run_memory") if v.step == first]
    assert verdict.forecast is not None
    assert verdict.forecast.limit == 6.0 * GIB
    assert verdict.forecast.steps is not None
    assert abs(first + verdict.forecast.steps - 105) < 12


def test_one_leak_is_said_once_though_torch_has_two_figures_for_it() -> None:
    detector = Memory()
    for step, value in enumerate(leak(SHAPES["linear"], 100), start=1):
        signals = {"gpu_memory": value * GIB, "gpu_memory_allocated": 0.9 * value * GIB}
        verdicts = detector.observe(StepSample(step, 1, 0.0, signals, CARD))
        assert [v.signal for v in verdicts] in ([], ["gpu_memory"], ["gpu_memory_allocated"])


def test_after_a_resume_it_warms_up_again() -> None:
    detector = Memory()
    for sample in samples(leak(SHAPES["linear"], 100), CARD):
        detector.observe(sample)
    detector.resumed(40, 2)
    for step in range(41, 55):
        assert detector.observe(StepSample(step, 2, 0.0, {"gpu_memory": (50.0 + step) * GIB}, CARD)) == []


def test_a_step_that_goes_back_is_a_restart_and_one_that_comes_again_says_the_same() -> None:
    detector = Memory()
    last = [detector.observe(sample) for sample in samples(leak(SHAPES["linear"], 100), CARD)][-1]
    again = StepSample(LEAK_FROM + 100, 1, 0.0, {"gpu_memory": 1.0}, CARD)
    assert list(detector.observe(again)) == list(last) != []
    assert detector.observe(StepSample(3, 1, 0.0, {"gpu_memory": 1.0 * GIB}, CARD)) == []


@pytest.mark.parametrize("cut", [30, 61, 90, 107, 133])
def test_a_restart_in_the_middle_of_a_leak_changes_nothing(cut: int) -> None:
    one, steps = Memory(), list(samples(leak(SHAPES["square"], 100, noise=0.002), CARD, response_length=300.0))
    for sample in steps[:cut]:
        one.observe(sample)
    two = Memory()
    two.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    assert [list(two.observe(s)) for s in steps[cut:]] == [list(one.observe(s)) for s in steps[cut:]]


memories = st.one_of(
    st.floats(1.0, 1e12), st.sampled_from([0.0, -1.0, 1e30, 1e-30, 1e308, 5e-324, math.nan, math.inf, -math.inf])
)
limits = st.sampled_from([None, 1e-300, 1.0, 80e9, 1e308])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 0, -2, 10**9]), memories, memories), max_size=90),
    st.integers(0, 90),
    limits,
    st.sampled_from([0.0, 1e-3, 0.5]),
)
def test_whatever_comes_is_taken_and_a_restart_changes_nothing(
    series: list[tuple[int, float, float]], cut: int, limit: float | None, growth: float
) -> None:
    setup = RunSetup(gpu_memory_bytes=limit, host_memory_bytes=limit)
    steps, step = [], 0
    for jump, gpu, host in series:
        step = max(step + jump, 0)
        scaled = gpu * (1.0 + growth * len(steps))
        steps.append(StepSample(step, 1, 0.0, {"gpu_memory": scaled, "host_memory": host, "val_reward": host}, setup))
    one = Memory(warmup=0)
    for sample in steps[:cut]:
        one.observe(sample)
    two = Memory(warmup=0)
    two.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    for sample in steps[cut:]:
        verdicts = list(one.observe(sample))
        assert list(two.observe(sample)) == verdicts
        for verdict in verdicts:
            assert math.isfinite(verdict.score)
            assert verdict.score > verdict.threshold
            assert 0.0 < verdict.confidence <= 1.0
            assert 0 <= verdict.onset <= verdict.step == sample.step


@pytest.mark.parametrize(
    ("option", "value"),
    [("horizon_steps", 0.0), ("near", 1.5), ("rise", 0.0), ("host_rise", float("nan")), ("warmup", -1)],
)
def test_a_wrong_option_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"detector memory: {option}"):
        Memory(**{option: value})  # type: ignore[arg-type]


@pytest.mark.skipif(not DATA.is_dir(), reason="real verl logs are not part of the repository")
def test_real_runs_cost_no_page_and_hardly_a_warning_with_or_without_a_limit() -> None:
    warned = 0
    for path in sorted(DATA.glob("*.jsonl.gz")):
        steps = list(read(path))
        most = {s: max(signals[s] for _, signals in steps) for s in ("gpu_memory", "host_memory")}
        roomy = RunSetup(None, 1.3 * most["gpu_memory"], 1.3 * most["host_memory"])
        brim_full = RunSetup(None, 1.02 * most["gpu_memory"], None)
        for setup in (UNKNOWN, roomy, brim_full):
            detector = Memory()
            found = [v for step, signals in steps for v in detector.observe(StepSample(step, 1, 0.0, signals, setup))]
            assert pages(found) == [], path.name
            warned += bool(found)
    assert warned <= 5
