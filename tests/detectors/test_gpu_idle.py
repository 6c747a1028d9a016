"""GPU idle: a step in progress on GPUs that do nothing; waits that belong to the run are none of its business."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.detectors.base import GpuView, LiveView, Severity, Verdict
from exporter.detectors.gpu_idle import GpuIdle
from exporter.detectors.gpu_memory_pressure import GpuMemoryPressure

EVERY = 10


def view(
    now: float, busy: float | None, *, phase: str = "update_actor", step: int = 20, steps: int = 20, **others: float
) -> LiveView:
    gpus = tuple(GpuView("a", index, now - others.get("age", 1.0), utilization=busy) for index in range(8))
    heard = now - others.get("silent", 0.0)
    return LiveView(now, step, 1, steps, True, heard, {"step": 1e4, phase: 5.0} if phase else {}, gpus=gpus)


def trained(phase: str = "update_actor", **options: float) -> GpuIdle:
    """A detector that has seen the phase end a few times and the GPUs at work."""
    detector = GpuIdle(**options)
    for step in range(15, 20):
        detector.phase_closed(phase, 20.0, step)
    detector.look(view(0.0, 0.9, phase=phase))
    return detector


def watched(
    detector: GpuIdle, seconds: int, busy: float | None = 0.0, **how: float | str
) -> list[tuple[float, Verdict]]:
    found = []
    for now in range(EVERY, seconds, EVERY):
        found += [(float(now), v) for v in detector.look(view(float(now), busy, **how))]  # type: ignore[arg-type]
    return found


def test_five_minutes_below_a_tenth_within_a_phase_are_a_page() -> None:
    found = watched(trained(), 600, busy=0.05)
    assert found[0][0] == pytest.approx(300 + 2 * EVERY, abs=EVERY)
    assert {v.severity for _, v in found} == {Severity.CRITICAL}
    assert found[0][1].onset == 20
    assert "8 GPUs at 5% on average" in found[0][1].summary


def test_gpus_at_work_and_work_in_between_are_nothing() -> None:
    assert watched(trained(), 3000, busy=0.11) == []
    detector = trained()
    assert not any(detector.look(view(float(now), 0.8 if now % 250 == 0 else 0.0)) for now in range(10, 5000, EVERY))


def test_a_phase_that_idles_each_time_sets_its_own_limit() -> None:
    detector, now = trained("gen"), 10.0
    for step in range(20, 24):
        for _ in range(24):  # four minutes for a tool
            assert detector.look(view(now, 0.0, phase="gen", step=step)) == ()
            now += EVERY
        assert detector.look(view(now, 0.9, phase="gen", step=step)) == ()
        detector.phase_closed("gen", 250.0, step)
    found = []
    for _ in range(90):
        now += EVERY
        found += [(now, v) for v in detector.look(view(now, 0.0, phase="gen", step=24))]
    assert found
    assert "(limit 720 s)" in found[0][1].summary.replace("690 s", "720 s")


def test_validations_checkpoints_and_first_steps_get_longer() -> None:
    for phase in ("testing", "save_checkpoint"):
        assert watched(trained(phase), 1500, phase=phase) == []
        assert watched(trained(phase), 2500, phase=phase) != []
    assert watched(trained(), 1500, steps=1) == []


def test_a_phase_that_has_not_ended_yet_is_a_warning_before_it_is_a_page() -> None:
    detector = GpuIdle()
    detector.look(view(0.0, 0.9, phase="gen"))
    found = watched(detector, 800, phase="gen")
    assert {v.severity for now, v in found if now < 600} == {Severity.WARNING}
    assert found[-1][1].severity is Severity.CRITICAL


def test_without_readings_or_with_old_ones_nothing_is_said() -> None:
    assert watched(trained(), 2000, busy=None) == []
    assert watched(trained(), 2000, age=500.0) == []


def test_a_reading_that_a_clock_set_back_has_put_into_the_future_is_fresh() -> None:
    assert watched(trained(), 2000, age=-60.0) == watched(trained(), 2000) != []


def test_gpus_that_were_never_busy_tell_nothing() -> None:
    assert watched(GpuIdle(), 4000) == []


def test_between_steps_and_of_a_silent_run_nothing_is_said() -> None:
    assert watched(trained(), 2000, phase="") == []
    assert watched(trained(), 2000, silent=30.0) == []


def test_a_new_step_and_an_exporter_that_was_away_begin_anew() -> None:
    detector = trained()
    assert not any(detector.look(view(float(now), 0.0, step=20 + now // 200)) for now in range(10, 3000, EVERY))
    detector = trained()
    watched(detector, 290)
    assert not any(detector.look(view(5000.0 + now, 0.0)) for now in range(0, 290, EVERY))


def test_after_a_resume_the_clock_begins_anew() -> None:
    detector = trained()
    watched(detector, 290)
    detector.resumed(10, 2)
    assert detector.look(view(310.0, 0.0)) == ()


@pytest.mark.parametrize(("option", "value"), [("limit", 0.0), ("limit", 1.5), ("seconds", 0.0), ("seconds", math.nan)])
def test_a_wrong_option_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"detector gpu_idle: {option}"):
        GpuIdle(**{option: value})


numbers = st.sampled_from([None, 0.0, 0.05, 0.5, 1.0, -1.0, 1e30, math.nan, math.inf, 80e9, 5e-324])
gpus = st.lists(
    st.builds(
        GpuView, st.sampled_from(["a", "b"]), st.integers(0, 3), st.sampled_from([0.0, 1e6, -5.0]), numbers, numbers,
        numbers, numbers, numbers, st.booleans(),
    ),
    max_size=5,
)  # fmt: skip
moments = st.lists(
    st.tuples(
        st.sampled_from([1.0, 10.0, 55.0, 61.0, 400.0, -30.0]), gpus, st.sampled_from(["gen", "testing", ""]),
        st.integers(1, 3), st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(moments, st.integers(0, 40))
def test_whatever_a_gpu_says_is_taken_and_a_restart_changes_nothing(
    series: list[tuple[float, list[GpuView], str, int, bool]], cut: int
) -> None:
    now, views = 0.0, []
    for passed, there, phase, step, running in series:
        now += passed
        phases = {"step": 10.0, phase: 1.0} if phase else {}
        views.append(LiveView(now, step, 1, step, running, now, phases, gpus=tuple(there)))
    for kind in (lambda: GpuIdle(seconds=20.0), lambda: GpuMemoryPressure(slot_seconds=5.0, above=0.01)):
        one, two = kind(), kind()
        for moment in views[:cut]:
            one.look(moment)
        two.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
        for moment in views[cut:]:
            one.phase_closed("gen", 1.0, moment.step)
            two.phase_closed("gen", 1.0, moment.step)
            verdicts = list(one.look(moment))
            assert list(two.look(moment)) == verdicts
            assert all(v.score > v.threshold and math.isfinite(v.score) for v in verdicts)


def filling(shares: list[float]) -> list[tuple[int, Verdict]]:
    """What is said of a GPU with these shares in use, one every 20 s; a step takes 10 min."""
    detector, found = GpuMemoryPressure(), []
    for number, share in enumerate(shares):
        now = 20.0 * number
        card = GpuView("a", 0, now - 1.0, memory_used=share * 80e9, memory_total=80e9)
        other = GpuView("a", 1, now - 1.0, memory_used=40e9, memory_total=80e9)
        moment = LiveView(now, number // 30, 1, number // 30, True, now, gpus=(card, other))
        found += [(number, v) for v in detector.look(moment)]
    return found


def test_a_gpu_that_fills_up_is_a_page_before_it_is_full() -> None:
    shares = [0.7] * 150 + [min(0.7 + 0.001 * x, 1.0) for x in range(300)]
    pages = [(number, v) for number, v in filling(shares) if v.severity is Severity.CRITICAL]
    assert pages
    number, page = pages[0]
    assert number < 400
    assert page.forecast is not None
    assert page.forecast.seconds == pytest.approx(20.0 * (450 - number), rel=0.2)
    assert abs(page.onset - 5) <= 1


def test_a_rollout_engine_that_takes_and_gives_back_is_nothing() -> None:
    assert filling([0.93 if number % 30 < 15 else 0.5 for number in range(900)]) == []
    assert filling([0.6 + 0.3 * (number % 30) / 30 for number in range(900)]) == []
    assert filling([0.97] * 600) == []


@pytest.mark.parametrize("option", ["above", "horizon_seconds", "slot_seconds"])
def test_a_wrong_option_of_gpu_memory_pressure_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"detector gpu_memory_pressure: {option}"):
        GpuMemoryPressure(**{option: 0.0})
