"""Stalled phase: longer than it has ever taken times a factor; one headline; each phase has its own past."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from exporter.detectors.base import LiveView, Severity, Verdict
from exporter.detectors.stalled_phase import StalledPhase


def view(
    now: float, phases: Mapping[str, float], *, step: int = 20, steps: int = 20, heard: float | None = None
) -> LiveView:
    """``step`` is the newest that was logged; the trainer works on the next one."""
    heard = now if heard is None else heard
    return LiveView(now, step + 1, 1, steps, True, heard, open_phases=phases, logged=step if steps else 0)


def trained(**options: float) -> StalledPhase:
    """A detector that has seen 20 steps: the first takes 60 s, later ones 10 s, a validation every fifth 50 s."""
    detector = StalledPhase(**{"factor": 3.0, "floor_seconds": 5.0, **options})
    for step in range(1, 21):
        slow = 50.0 if step == 1 else 0.0
        detector.phase_closed("gen", 8.0 + slow, step)
        detector.phase_closed("update_actor", 1.0, step)
        if step % 5 == 0:
            detector.phase_closed("testing", 50.0, step)
        detector.phase_closed("step", 10.0 + slow + 50.0 * (step % 5 == 0), step)
    return detector


def said(verdicts: object) -> list[tuple[str, Severity]]:
    assert isinstance(verdicts, (list, tuple))
    return [(v.signal, v.severity) for v in verdicts if isinstance(v, Verdict)]


def test_a_generation_that_hangs_is_one_headline_not_two() -> None:
    assert said(trained().look(view(100.0, {"step": 70.0, "gen": 69.0}))) == [("gen", Severity.CRITICAL)]


def test_onset_is_the_step_in_progress_and_the_words_have_the_numbers() -> None:
    verdict = trained().look(view(100.0, {"step": 70.0, "gen": 69.0}))[0]
    assert verdict.onset == 21
    assert "69 s" in verdict.summary
    assert "8 s" in verdict.summary
    assert "limit 24 s" in verdict.summary


def test_half_way_there_it_is_a_warning() -> None:
    assert said(trained().look(view(100.0, {"gen": 13.0}))) == [("gen", Severity.WARNING)]


def test_a_long_generation_raises_its_own_limit_once_its_step_is_logged() -> None:
    detector = trained()
    assert said(detector.look(view(100.0, {"gen": 23.0}))) == [("gen", Severity.WARNING)]
    detector.phase_closed("gen", 23.5, 21)
    assert said(detector.look(view(200.0, {"gen": 30.0}))) == [("gen", Severity.CRITICAL)]
    assert detector.look(view(201.0, {"gen": 30.0}, step=21, steps=21)) == ()


def test_so_it_does_where_the_sender_does_not_know_its_step() -> None:
    detector = StalledPhase(factor=3.0, floor_seconds=5.0)
    for step in range(1, 21):
        detector.phase_closed("gen", 8.0, 0)
        detector.look(view(float(step), {"gen": 1.0}, step=step, steps=step))
    detector.phase_closed("gen", 23.5, 0)
    assert said(detector.look(view(200.0, {"gen": 30.0}))) == [("gen", Severity.CRITICAL)]
    assert detector.look(view(201.0, {"gen": 30.0}, step=21, steps=21)) == ()


def test_a_long_generation_raises_its_own_limit_once_phases_of_a_later_step_end() -> None:
    detector = trained()
    detector.phase_closed("gen", 23.5, 21)
    detector.phase_closed("gen", 8.0, 22)
    assert detector.look(view(200.0, {"gen": 30.0})) == ()


def test_a_slow_second_step_of_an_attempt_does_not_loosen_the_limit_of_later_ones() -> None:
    detector = StalledPhase(factor=3.0, floor_seconds=5.0)
    for step in range(1, 21):
        detector.look(view(float(step), {"gen": 1.0}, step=step - 1, steps=step - 1))
        detector.phase_closed("gen", 150.0 if step == 2 else 8.0, step)
    assert said(detector.look(view(400.0, {"gen": 25.0}, step=20, steps=20))) == [("gen", Severity.CRITICAL)]


@pytest.mark.parametrize("attempts", [1, 5])
def test_hangs_that_ended_with_the_trainer_do_not_let_the_next_one_last_longer(attempts: int) -> None:
    detector = trained()
    for attempt in range(1, attempts + 1):
        assert said(detector.look(view(300.0, {"gen": 25.0}))) == [("gen", Severity.CRITICAL)]
        detector.phase_closed("gen", 26.0, 21)  # as the exception that stops it goes through the phases
        detector.phase_closed("step", 28.0, 21)
        detector.resumed(15, attempt + 1)
        detector.look(view(301.0, {}, step=20, steps=0))
        for step in range(16, 21):
            detector.phase_closed("gen", 8.0, step)
    assert said(detector.look(view(400.0, {"gen": 25.0}))) == [("gen", Severity.CRITICAL)]


def test_a_pause_of_the_machine_raises_the_limit_once_by_the_factor_at_most() -> None:
    detector = trained()
    detector.phase_closed("gen", 5000.0, 21)
    assert detector.look(view(300.0, {"gen": 60.0}, step=21, steps=21)) != ()
    assert said(detector.look(view(301.0, {"gen": 80.0}, step=21, steps=21))) == [("gen", Severity.CRITICAL)]


def test_a_validation_is_measured_by_validations() -> None:
    assert trained().look(view(100.0, {"step": 58.0, "testing": 50.0})) == ()
    assert said(trained().look(view(300.0, {"step": 170.0, "testing": 160.0}))) == [("testing", Severity.CRITICAL)]


def test_a_short_phase_is_not_judged_below_the_floor() -> None:
    detector = trained(floor_seconds=60.0)
    assert detector.look(view(100.0, {"update_actor": 29.0})) == ()
    assert said(detector.look(view(150.0, {"update_actor": 61.0}))) == [("update_actor", Severity.CRITICAL)]


def test_the_first_steps_of_an_attempt_may_take_as_long_as_first_steps_did() -> None:
    detector = trained()
    detector.resumed(20, attempt=2)
    assert detector.look(view(100.0, {"gen": 58.0}, steps=0)) == ()
    assert said(detector.look(view(300.0, {"gen": 200.0}, steps=0))) == [("gen", Severity.CRITICAL)]


def test_a_slow_first_step_after_a_resume_does_not_loosen_the_limit_of_later_ones() -> None:
    detector = trained()
    detector.resumed(20, attempt=2)
    detector.phase_closed("gen", 200.0, 21)
    assert said(detector.look(view(100.0, {"gen": 30.0}, step=25, steps=5))) == [("gen", Severity.CRITICAL)]


def test_a_phase_that_has_never_ended_has_a_long_limit() -> None:
    detector = trained(unknown_seconds=600.0)
    assert detector.look(view(1000.0, {"step": 9.0, "save_checkpoint": 290.0})) == ()
    page = detector.look(view(2000.0, {"save_checkpoint": 601.0}))
    assert said(page) == [("save_checkpoint", Severity.CRITICAL)]
    assert "has never ended before" in page[0].summary


def test_progress_inside_a_long_step_is_no_stall() -> None:
    assert trained().look(view(100.0, {"step": 1000.0, "update_actor": 0.5})) == ()


def test_with_no_phase_open_and_no_progress_the_pause_itself_is_judged() -> None:
    detector = StalledPhase(factor=3.0, floor_seconds=30.0, unknown_seconds=100.0)
    found = [(now, v.signal, v.severity) for now in range(0, 130, 5) for v in detector.look(view(float(now), {}))]
    assert (105, "idle", Severity.CRITICAL) in found
    assert all(severity is Severity.WARNING for now, _, severity in found if now <= 100)


def test_a_step_without_a_phase_inside_may_be_a_validation_that_verl_does_not_time() -> None:
    detector = trained(unknown_seconds=600.0)
    assert detector.look(view(1000.0, {"step": 290.0})) == ()
    assert said(detector.look(view(2000.0, {"step": 601.0}))) == [("step", Severity.CRITICAL)]


def test_steps_that_keep_coming_without_phases_are_no_pause() -> None:
    detector = StalledPhase(floor_seconds=30.0, unknown_seconds=50.0)
    assert not any(detector.look(view(float(now), {}, step=now // 20, steps=now // 20)) for now in range(0, 2000, 5))


def test_a_silent_run_is_left_to_the_detector_for_silent_runs() -> None:
    assert trained().look(view(1000.0, {"gen": 900.0}, heard=100.0)) == ()


def test_a_run_that_is_not_running_is_not_judged() -> None:
    stopped = LiveView(100.0, 20, 1, 20, False, 100.0, open_phases={"gen": 90.0})
    assert trained().look(stopped) == ()


def test_durations_that_make_no_sense_are_not_learned() -> None:
    detector = trained()
    for seconds in (float("nan"), float("inf"), -5.0):
        detector.phase_closed("gen", seconds, 21)
    assert said(detector.look(view(100.0, {"gen": 25.0}))) == [("gen", Severity.CRITICAL)]


def test_ever_new_phase_names_do_not_fill_the_memory() -> None:
    detector = trained()
    for number in range(10_000):
        detector.phase_closed(f"phase{number}", 1.0, 21 + number // 2_000)
    state = detector.state_dict()
    assert (len(state["later"]) <= 100, len(state["pending"]) <= 100) == (True, True)


@pytest.mark.parametrize(
    ("option", "value"),
    [("factor", 1.0), ("floor_seconds", 0.0), ("floor_seconds", float("nan")), ("unknown_seconds", 1.0)],
)
def test_a_wrong_option_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        StalledPhase(**{option: value})


def test_an_exporter_that_was_paused_does_not_take_its_own_absence_for_a_stall() -> None:
    detector = StalledPhase(floor_seconds=12.0)
    for step in range(1, 10):
        detector.phase_closed("gen", 1.0, step)
    # The last heartbeat, 20 s ago, said that gen had been open for half a second; nothing was heard or judged since.
    paused = LiveView(
        now=1020.0,
        step=10,
        attempt=1,
        steps_this_attempt=9,
        running=True,
        last_push=1000.0,
        open_phases={"step": 20.6, "gen": 20.5},
    )
    assert detector.look(paused) == ()
    heard = dataclasses.replace(paused, now=1021.0, last_push=1021.0)
    assert [verdict.severity for verdict in detector.look(heard)] == [Severity.CRITICAL]
