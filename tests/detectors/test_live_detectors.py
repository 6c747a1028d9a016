"""Rollout failures by evidence, silence by the exporter's own watch, and the end of a process."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from exporter.detectors.base import LiveView, Severity, Verdict
from exporter.detectors.rollout_failures import RolloutFailures
from exporter.detectors.silent_run import SilentRun
from exporter.detectors.trainer_exited import TrainerExited


def requests(batches: Iterable[tuple[int, int]], *, seconds: float = 2.0) -> list[LiveView]:
    """One look a step; each batch is (succeeded, failed) of that step."""
    ok = failed = 0
    looks = [LiveView(1000.0, 1, 1, 1, True, 1000.0)]
    for step, (good, bad) in enumerate(batches, start=2):
        ok, failed = ok + good, failed + bad
        now = 1000.0 + step * seconds
        looks.append(LiveView(now, step, 1, step, True, now, rollouts_succeeded=ok, rollouts_failed=failed))
    return looks


def look_at(detector: RolloutFailures | SilentRun, views: Iterable[LiveView]) -> list[Verdict]:
    return [verdict for view in views for verdict in detector.look(view)]


def test_seven_failures_in_a_hundred_requests_are_a_page_however_long_all_was_well() -> None:
    pages = look_at(RolloutFailures(), requests([(16, 0)] * 200 + [(14, 2), (15, 1), (14, 2), (14, 2)]))
    assert pages[-1].severity is Severity.CRITICAL
    assert pages[-1].confidence > 0.99
    assert pages[-1].onset == 202
    assert "7 of 64" in pages[-1].summary


def test_one_failure_in_a_hundred_says_nothing() -> None:
    assert look_at(RolloutFailures(), requests([(33, 0), (33, 1), (33, 0)])) == []


def test_one_hiccup_of_one_server_is_a_warning_not_a_page() -> None:
    verdicts = look_at(RolloutFailures(), requests([(32, 0)] * 5 + [(22, 10)] + [(32, 0)] * 5))
    assert {v.severity for v in verdicts} == {Severity.WARNING}


def test_a_share_at_the_limit_never_pages() -> None:
    verdicts = look_at(RolloutFailures(), requests([(199, 1)] * 400))
    assert [v for v in verdicts if v.severity is Severity.CRITICAL] == []


def test_failures_that_stopped_are_forgotten_after_the_window() -> None:
    views = requests([(14, 2)] * 10 + [(16, 0)] * 400)
    detector = RolloutFailures(window_seconds=120.0)
    last = [bool(detector.look(view)) for view in views]
    assert any(last[:20])
    assert not any(last[90:])


def test_a_new_attempt_does_not_inherit_failures() -> None:
    detector = RolloutFailures()
    views = requests([(14, 2)] * 10 + [(16, 0)] * 3)
    look_at(detector, views[:11])
    detector.resumed(5, attempt=2)
    assert look_at(detector, views[11:]) == []


def test_counters_that_go_back_start_a_new_count() -> None:
    detector = RolloutFailures()
    look_at(detector, requests([(14, 2)] * 10))
    assert look_at(detector, requests([(16, 0)] * 3)) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("limit", 0.0),
        ("limit", 1.5),
        ("window_seconds", 0.0),
        ("min_requests", 0),
        ("min_failures", 0.5),
        ("alpha", 0.5),
    ],
)
def test_a_wrong_option_of_rollout_failures_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        RolloutFailures(**{option: value})  # type: ignore[arg-type]


def silence(
    start: int, end: int, *, heard: float, attempt: int = 1, steps: int = 9, every: int = 5, running: bool = True
) -> list[LiveView]:
    return [LiveView(float(now), 9, attempt, steps, running, heard) for now in range(start, end, every)]


def test_a_run_that_goes_silent_pages_after_its_limit() -> None:
    verdicts = look_at(SilentRun(limit_seconds=60.0), silence(1000, 1100, heard=1010.0))
    first = next(v for v in verdicts if v.severity is Severity.CRITICAL)
    assert "65 s" in first.summary
    assert first.onset == 9


def test_a_run_that_is_heard_says_nothing() -> None:
    views = [LiveView(float(now), 9, 1, 9, True, now - 3.0) for now in range(1000, 2000, 5)]
    assert look_at(SilentRun(limit_seconds=60.0), views) == []


def test_time_in_which_the_exporter_was_down_does_not_count() -> None:
    detector = SilentRun(limit_seconds=60.0)
    look_at(detector, silence(1000, 1020, heard=1019.0))
    again = SilentRun(limit_seconds=60.0)
    again.load_state_dict(detector.state_dict())
    assert look_at(again, silence(4600, 4625, heard=1019.0)) == []
    assert look_at(again, silence(4625, 4670, heard=1019.0))[-1].severity is Severity.CRITICAL


def test_a_new_attempt_has_a_longer_time_to_its_first_sign_of_life() -> None:
    detector = SilentRun(limit_seconds=60.0, start_seconds=900.0)
    look_at(detector, silence(1000, 1020, heard=1010.0))
    detector.resumed(5, attempt=2)
    assert look_at(detector, silence(1020, 1400, heard=1010.0, attempt=2, steps=0)) == []
    assert look_at(detector, silence(1400, 2000, heard=1010.0, attempt=2, steps=0))[-1].severity is Severity.CRITICAL


def test_a_run_that_has_ended_may_be_silent() -> None:
    assert look_at(SilentRun(limit_seconds=60.0), silence(1000, 5000, heard=1000.0, running=False)) == []


@pytest.mark.parametrize(("option", "value"), [("limit_seconds", 0.0), ("start_seconds", 5.0), ("blind_seconds", 0.0)])
def test_a_wrong_option_of_silent_run_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        SilentRun(**{option: value})


def test_an_unexpected_exit_is_certain_and_the_steps_before_it_are_sound() -> None:
    view = LiveView(5.0, 41, 1, 41, False, 4.0, exit_code=1, exited_unexpectedly=True, exit_summary="RayActorError")
    (verdict,) = TrainerExited().look(view)
    assert (verdict.severity, verdict.confidence, verdict.onset) == (Severity.CRITICAL, 1.0, 41)
    assert "exit code 1" in verdict.summary
    assert "RayActorError" in verdict.summary


def test_an_expected_end_or_a_new_attempt_says_nothing() -> None:
    assert TrainerExited().look(LiveView(5.0, 41, 1, 41, False, 4.0, exit_code=0)) == ()
    assert TrainerExited().look(LiveView(5.0, 41, 2, 0, True, 4.0, exited_unexpectedly=True)) == ()
