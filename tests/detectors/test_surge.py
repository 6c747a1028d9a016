"""Surge: growth that stays is a page, a spike that heals is not."""

from __future__ import annotations

import math

import pytest
from streams import critical, healthy, series, watch

from exporter.detectors.base import Severity
from exporter.detectors.surge import Surge

FAULT = 60


def faulty(signal: str, change: dict[int, float]) -> list[tuple[int, dict[str, float]]]:
    """A healthy run in which ``signal`` has other values from step FAULT on (offset to value)."""
    steps = healthy(FAULT + 20)
    for offset, value in change.items():
        steps[FAULT - 1 + offset][1][signal] = value
    return steps


@pytest.mark.parametrize(
    ("signal", "values"),
    [
        pytest.param("grad_norm", [0.24, 0.95, 2.4, 16.0, 145.0, 160.0], id="gradient growth"),
        pytest.param("loss", [0.12, -0.1, 0.14, 0.11, 0.13, 0.12], id="policy loss x10"),
        pytest.param("kl", [0.01, 0.09, 0.3, 0.9, 2.5, 4.0], id="KL runaway"),
        pytest.param("ppo_kl", [0.06, 0.26, 0.37, 1.4, 0.7, 0.1], id="KL to the old policy"),
        pytest.param("entropy", [0.5, 1.6, 1.9, 2.2, 2.4, 2.5], id="entropy jump"),
        pytest.param("entropy", [0.3, 0.08, 0.04, 0.02, 0.02, 0.01], id="entropy collapse"),
        pytest.param("pg_clipfrac", [0.1, 0.2, 0.2, 0.3, 0.3, 0.3], id="clipping"),
    ],
)
def test_a_fault_pages_within_five_steps_and_its_onset_is_near(signal: str, values: list[float]) -> None:
    pages = critical(watch([Surge()], faulty(signal, dict(enumerate(values)))))
    assert {page.signal for page in pages} == {signal}
    assert FAULT <= pages[0].step <= FAULT + 5
    assert FAULT - 2 <= pages[0].onset <= FAULT + 2
    assert pages[0].score > pages[0].threshold
    assert pages[0].confidence < 0.99, "one signal that surges is no certainty"


def test_a_supervised_loss_that_is_ten_times_up_pages_at_the_third_step_and_one_that_grows_at_the_second() -> None:
    loss = [2.0 + 0.1 * math.sin(step) for step in range(40)]
    assert critical(watch([Surge()], series("loss", [*loss, 40.0, 40.0, 40.0])))[0].step == 43
    assert critical(watch([Surge()], series("loss", [*loss, 40.0, 100.0])))[0].step == 42


@pytest.mark.parametrize("second", [0.3, 1.0, 1.2])
def test_a_spike_that_lasts_for_two_steps_and_heals_does_not_page(second: float) -> None:
    loss = [2.0 + 0.1 * math.sin(step) for step in range(40)]
    tail = [60.0, 60.0 * second, *(2.0 + 0.1 * math.sin(step) for step in range(20))]
    assert critical(watch([Surge()], series("loss", loss + tail))) == []


def test_a_single_spike_that_heals_is_noted_and_no_more() -> None:
    verdicts = watch([Surge()], faulty("grad_norm", {0: 40.0}))
    assert [(v.step, v.severity) for v in verdicts] == [(FAULT, Severity.INFO)]


def test_two_spikes_close_together_are_a_warning() -> None:
    verdicts = watch([Surge()], faulty("grad_norm", {0: 6.0, 2: 6.0}))
    assert max(v.severity for v in verdicts) is Severity.WARNING


def test_a_policy_loss_near_zero_that_changes_sign_never_pages() -> None:
    loss = [1e-5 * (-1) ** step for step in range(40)] + [0.004, -0.006, 0.005, -0.007, 0.006] * 5
    assert watch([Surge()], series("loss", loss)) == []


def test_a_kl_of_1e_4_all_the_time_may_grow_tenfold_in_silence() -> None:
    assert watch([Surge()], series("kl", [1e-4] * 40 + [1e-3] * 20)) == []


def test_a_kl_that_grows_from_nothing_as_the_policy_learns_never_pages() -> None:
    kl = [0.2 * (step / 120) ** 2 for step in range(1, 121)]
    assert critical(watch([Surge()], series("kl", kl))) == []


def test_the_first_steps_after_a_start_are_not_judged() -> None:
    assert watch([Surge()], series("grad_norm", [0.2] * 6 + [90.0] * 5)) == []


def test_after_a_resume_the_detector_warms_up_again() -> None:
    detector = Surge()
    watch([detector], healthy(60))
    detector.resumed(50, attempt=2)
    assert watch([detector], series("grad_norm", [9.0] * 12, first=51)) == []


def test_steps_that_go_backwards_without_a_resume_start_afresh() -> None:
    detector = Surge()
    watch([detector], series("grad_norm", [0.5] * 60))
    assert watch([detector], series("grad_norm", [9.0] * 12, first=31)) == []


def test_streaks_of_exactly_zero_are_no_level_to_measure_others_by() -> None:
    norms = [0.5, 0.6, 0.55] * 10 + [0.0] * 30 + [0.5, 0.6, 0.55] * 5
    assert watch([Surge()], series("grad_norm", norms)) == []


def test_a_level_that_lasts_is_accepted_in_the_end() -> None:
    verdicts = watch([Surge()], series("grad_norm", [0.5, 0.6] * 30 + [5.0, 5.5] * 60))
    assert critical(verdicts)
    assert verdicts[-1].step < 61 + 80


def test_a_signal_that_is_not_logged_at_a_step_is_not_judged_there() -> None:
    steps = healthy(60)
    assert watch([Surge()], [*steps, (61, {"reward": 0.5}), (62, {"grad_norm": math.nan})]) == []


def test_a_step_that_arrives_in_two_parts_is_counted_once_and_said_again() -> None:
    detector = Surge()
    steps = faulty("grad_norm", {0: 9.0, 1: 9.0, 2: 9.0})[: FAULT + 2]
    first = critical(watch([detector], steps))
    again = critical(watch([detector], [steps[-1]]))
    assert again == first[-1:]


def test_the_words_have_the_numbers_and_verls_own_keys() -> None:
    page = critical(watch([Surge()], faulty("kl", dict(enumerate([0.3, 0.9, 2.5])))))[0]
    assert "kl" in page.summary
    assert f"{page.step}" not in page.meaning
    assert any("actor_rollout_ref.actor.kl_loss_coef" in line for line in page.advice)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factor": 1.0}, "factor is 1.0"),
        ({"factor": math.nan}, "factor is nan"),
        ({"fast_factor": 1.5}, "must not be above fast_factor"),
        ({"k": 6}, "must not be above n"),
        ({"k": True}, "k is True"),
        ({"window": 5}, "window is 5"),
        ({"floors": {"entropi": 1.0}}, "did you mean 'entropy'"),
        ({"floors": {"entropy": -1.0}}, "floors.entropy is -1.0"),
    ],
)
def test_a_wrong_option_is_refused_with_its_value(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Surge(**options)  # type: ignore[arg-type]


def test_a_floor_of_ones_own_moves_the_limit() -> None:
    jump = series("kl", [1e-4] * 40 + [1e-2] * 5)
    assert watch([Surge()], jump) == []
    assert critical(watch([Surge(floors={"kl": 1e-3})], jump))


def test_a_signal_that_spikes_by_nature_is_soon_known_to() -> None:
    norms = [12.0 if step % 23 == 0 else 0.5 + 0.1 * (step % 3) for step in range(1, 400)]
    verdicts = watch([Surge()], series("grad_norm", norms))
    assert critical(verdicts) == []
    assert max(v.step for v in verdicts) < 100
