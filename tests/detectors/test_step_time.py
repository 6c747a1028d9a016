"""Step time: what takes longer than what has to be done is found; what is slow by nature is not."""

from __future__ import annotations

import math

import pytest
from streams import critical, read
from timed_runs import observed, restarted_in_between, slowed, summed, timed, wild

from bench.detection.runs import DATA
from exporter.detectors.base import Severity, StepSample
from exporter.detectors.phase_times import net_time
from exporter.detectors.step_time import StepTime

FAULT = 120
SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("factor", "within"), [(2.0, 8), (3.0, 8), (1.5, 30)])
def test_a_step_that_takes_longer_from_one_step_on_is_a_page_with_its_onset(
    factor: float, within: int, seed: int
) -> None:
    pages = critical(observed(StepTime(), slowed(timed(FAULT + 40, seed), FAULT, lambda _: factor)))
    assert FAULT <= pages[0].step <= FAULT + within
    assert abs(pages[0].onset - FAULT) <= 3
    assert pages[0].score > pages[0].threshold


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_that_takes_a_third_longer_is_at_least_a_warning(seed: int) -> None:
    verdicts = observed(StepTime(), slowed(timed(FAULT + 40, seed), FAULT, lambda _: 1.33))
    assert verdicts
    assert verdicts[0].step >= FAULT


@pytest.mark.parametrize("timer", ["generation_time", "update_actor_time", "weight_sync_time"])
def test_the_phase_that_grew_is_named_with_its_numbers_and_its_advice(timer: str) -> None:
    factor = {"generation_time": 3.0, "update_actor_time": 5.0, "weight_sync_time": 15.0}[timer]
    run = slowed(timed(FAULT + 10), FAULT, lambda _: factor, [timer])
    page = next(v for v in critical(observed(StepTime(), run)) if v.signal == "step_time")
    assert f"{timer} grew from" in page.summary
    assert page.advice != critical(
        observed(StepTime(), slowed(timed(FAULT + 10), FAULT, lambda _: 3.0, ["old_log_prob_time"]))
    )
    others = {"generation_time", "update_actor_time", "weight_sync_time"} - {timer}
    assert not any(other in page.summary for other in others)


def test_time_that_no_timer_has_is_said_to_lie_elsewhere() -> None:
    run = timed(FAULT + 20)
    for step, signals in run:
        if step >= FAULT:
            summed(signals, extra=45.0)
    page = critical(observed(StepTime(), run))[0]
    assert "grew from" not in page.summary
    assert "driver's host" in page.advice[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drift_to_twice_the_time_is_warned_of_with_a_forecast_and_paged_before_it_is_complete(seed: int) -> None:
    run = slowed(timed(FAULT + 200, seed), FAULT, lambda n: 1.0 + min(1.0, n / 150))
    verdicts = [v for v in observed(StepTime(), run) if v.signal == "step_time"]
    first = verdicts[0]
    assert first.severity is Severity.WARNING
    assert FAULT - 40 <= first.onset <= FAULT + 40
    pages = critical(verdicts)
    assert FAULT < pages[0].step <= FAULT + 140
    foreseen = [v for v in verdicts if v.forecast is not None and v.step < FAULT + 100]
    assert foreseen
    forecast = foreseen[-1].forecast
    assert forecast is not None
    assert forecast.steps is not None
    assert forecast.interval is not None
    assert forecast.interval[0] <= forecast.steps <= forecast.interval[1]
    assert foreseen[-1].step + forecast.steps == pytest.approx(FAULT + 150, abs=60)


def test_three_steps_in_a_row_that_time_out_are_a_page_and_two_are_none() -> None:
    def run(count: int) -> list[tuple[int, dict[str, float]]]:
        return slowed(timed(FAULT + 30), FAULT, lambda n: 6.0 if n < count else 1.0, ["generation_time"])

    page = critical(observed(StepTime(), run(3)))[0]
    assert (page.step, page.onset) == (FAULT + 2, FAULT)
    assert "3 steps in a row" in page.summary
    assert [v.severity for v in observed(StepTime(), run(2))] == [Severity.WARNING]
    assert observed(StepTime(), run(1)) == [], "one slow step heals"


@pytest.mark.parametrize("signal", ["throughput", "mfu"])
def test_a_rate_that_halves_while_the_step_time_says_nothing_is_a_page_of_its_own(signal: str) -> None:
    run = timed(FAULT + 20)
    for step, signals in run:
        if step >= FAULT:
            signals[signal] *= 0.5
    pages = critical(observed(StepTime(), run))
    assert {page.signal for page in pages} == {signal}
    assert abs(pages[0].onset - FAULT) <= 2
    assert "below" in pages[0].summary


def test_a_supervised_run_that_logs_its_utilisation_only_is_judged_by_it() -> None:
    run = [(s, {"mfu": m["mfu"] * (0.5 if s >= FAULT else 1.0)}) for s, m in timed(FAULT + 20)]
    assert {page.signal for page in critical(observed(StepTime(), run))} == {"mfu"}


def test_one_cause_is_said_once_in_a_step() -> None:
    run = slowed(timed(FAULT + 30), FAULT, lambda _: 2.5)
    steps = [v.step for v in critical(observed(StepTime(), run))]
    assert len(steps) == len(set(steps))


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_grow_to_three_times_the_length_are_no_finding(seed: int) -> None:
    run = timed(400, seed, length=lambda step: 1.0 + 2.0 * min(1.0, max(0, step - 100) / 150))
    assert observed(StepTime(), run) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_collapse_are_no_finding_though_the_rates_fall_and_a_token_costs_more(seed: int) -> None:
    run = timed(200, seed, length=lambda step: 1.0 if step < 100 else 0.3)
    for _, signals in run:
        summed(signals, extra=15.0)  # what no answer shortens
        signals["mfu"] *= (signals["tokens"] / 2e5) ** 0.3
    assert observed(StepTime(), run) == []


@pytest.mark.parametrize("inside", [True, False], ids=["timed within the step", "timed beside the step"])
@pytest.mark.parametrize("timers", [True, False], ids=["with timers", "the step's time only"])
def test_validation_and_checkpoint_steps_are_no_finding_and_hide_none(inside: bool, timers: bool) -> None:
    def run(slower: float) -> list[tuple[int, dict[str, float]]]:
        steps = slowed(timed(FAULT + 40), FAULT, lambda _: slower)
        for step, signals in steps:
            extra = 0.0
            if step % 4 == 0:
                signals["validation_time"] = 90.0
                extra += 90.0
            if step % 6 == 0:
                signals["checkpoint_time"] = 60.0
                extra += 60.0
            summed(signals, extra=extra if inside else 0.0)
            if not timers:
                for name in [
                    name
                    for name in signals
                    if name not in ("step_time", "tokens", "validation_time", "checkpoint_time")
                ]:
                    del signals[name]
        return steps

    assert observed(StepTime(), run(1.0)) == []
    page = critical(observed(StepTime(), run(2.0)))[0]
    assert FAULT <= page.step <= FAULT + 12


def test_a_run_that_validates_and_saves_at_every_step_is_judged() -> None:
    run = slowed(timed(FAULT + 40), FAULT, lambda _: 2.0)
    for _, signals in run:
        signals["validation_time"], signals["checkpoint_time"] = 20.0, 5.0
        summed(signals, extra=25.0)
    verdicts = observed(StepTime(), run)
    assert verdicts[0].step >= FAULT
    assert critical(verdicts)


def test_every_third_step_three_times_as_slow_is_how_some_runs_are() -> None:
    run = timed(600)
    for step, signals in run:
        if step > 200 and step % 3 == 0:
            summed(signals, slower=3.0)
    assert observed(StepTime(), run) == []


def test_the_slow_first_step_of_an_attempt_is_not_learned_and_a_resume_warms_up_again() -> None:
    detector = StepTime()
    observed(detector, timed(100))
    detector.resumed(90, 2)
    slower = [(90 + step, summed(signals, slower=3.0)) for step, signals in timed(60)]
    assert observed(detector, slower) == [], "another machine is another level"


def test_a_step_number_that_goes_back_is_a_restart_and_a_second_part_of_a_step_is_not_counted() -> None:
    detector = StepTime()
    observed(detector, timed(100))
    assert observed(detector, [(s, summed(m, slower=3.0)) for s, m in timed(60)]) == []
    before = detector.state_dict()
    assert detector.observe(StepSample(60, 1, 0.0, {"step_time": 1e6, "val_reward": 0.5})) == ()
    assert detector.state_dict() == before


def test_growth_below_a_second_is_no_finding() -> None:
    run = [
        (step, {"step_time": 0.1 if step < 60 else 0.8, "mfu": 0.4 if step < 60 else 0.05}) for step in range(1, 120)
    ]
    assert observed(StepTime(), run) == []
    assert observed(StepTime(least_seconds=0.0), run)


def test_a_signal_that_appears_late_or_vanishes_is_no_finding() -> None:
    run = timed(200)
    for step, signals in run:
        if step < 80 or step > 150:
            del signals["tokens"]
        if 40 < step < 120:
            del signals["response_length"]
        if step > 100:
            del signals["mfu"]
    assert observed(StepTime(), run) == []


@pytest.mark.parametrize("value", [1e-30, 1.0, 1e30, 1e300])
def test_constants_at_any_level_are_no_finding(value: float) -> None:
    run = [(s, dict.fromkeys(("step_time", "tokens", "throughput", "mfu"), value)) for s in range(1, 300)]
    assert observed(StepTime(), run) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_nothing_raises_and_a_restart_in_between_changes_nothing(seed: int) -> None:
    names = ("step_time", "tokens", "response_length", "throughput", "mfu", "generation_time", "update_actor_time",
             "validation_time", "checkpoint_time")  # fmt: skip
    whole, halves = restarted_in_between(StepTime, wild(seed, names, 400), 40 + 15 * seed)
    assert whole == halves
    for v in whole:
        assert math.isfinite(v.score)
        assert v.score > v.threshold
        assert v.onset <= v.step
        assert 0.0 < v.confidence <= 1.0
        assert v.meaning
        assert v.advice


def test_the_wild_runs_have_findings_to_compare() -> None:
    names = ("step_time", "tokens", "throughput", "mfu", "generation_time")
    assert sum(len(observed(StepTime(), wild(seed, names, 400))) > 0 for seed in range(20)) > 5


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ({"step_time": 100.0, "validation_time": 60.0}, 40.0),
        ({"step_time": 45.0, "validation_time": 60.0}, 45.0),
        ({"step_time": 70.0, "checkpoint_time": 30.0, "generation_time": 60.0}, 70.0),
        ({"step_time": 95.0, "checkpoint_time": 30.0, "generation_time": 60.0}, 65.0),
        ({"step_time": math.nan}, None),
        ({"step_time": 0.0}, None),
        ({"checkpoint_time": 3.0}, None),
    ],
)
def test_what_a_step_takes_is_told_without_validation_and_saving(
    signals: dict[str, float], expected: float | None
) -> None:
    assert net_time(signals, None) == expected


def test_without_other_timers_the_usual_time_tells_whether_saving_is_part_of_the_step() -> None:
    assert net_time({"step_time": 80.0, "checkpoint_time": 40.0}, 42.0) == 40.0
    assert net_time({"step_time": 80.0, "checkpoint_time": 40.0}, 85.0) == 80.0


def test_options_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"warn_factor is 1\.5: it must not be above page_factor"):
        StepTime(warn_factor=1.5)
    with pytest.raises(ValueError, match="timeouts is 1: it must be a whole number of at least 2"):
        StepTime(timeouts=1)


@pytest.mark.skipif(not DATA.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize("log", sorted(DATA.glob("*.gz")) if DATA.is_dir() else [], ids=lambda path: path.name[7:-9])
def test_a_real_run_is_not_paged(log) -> None:  # type: ignore[no-untyped-def]
    assert critical(observed(StepTime(), read(log))) == []
