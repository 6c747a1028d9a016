"""Non-finite values: at once, certain when they stay, and silent where a KL is simply not used."""

from __future__ import annotations

import math

import pytest
from streams import critical, healthy, series, watch

from exporter.detectors.base import Severity, StepSample
from exporter.detectors.non_finite import NonFinite

NAN = math.nan


@pytest.mark.parametrize("signal", ["loss", "grad_norm", "kl", "ppo_kl", "entropy", "reward"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_critical_at_once(signal: str, value: float) -> None:
    steps = healthy(40)
    steps[-1][1][signal] = value
    verdicts = watch([NonFinite()], steps)
    assert [(v.step, v.signal, v.severity) for v in verdicts] == [(40, signal, Severity.CRITICAL)]
    assert verdicts[0].confidence < 0.99, "it may heal"


def test_one_that_stays_is_certain() -> None:
    verdicts = watch([NonFinite()], series("loss", [0.5] * 20 + [NAN] * 3))
    assert [v.confidence for v in verdicts] == [0.9, 1.0, 1.0]
    assert {v.onset for v in verdicts} == {20}, "the weights were broken by the step before the first NaN loss"


def test_a_finite_entropy_in_the_same_step_shows_that_the_step_began_with_sound_weights() -> None:
    steps = healthy(30)
    steps[-1][1]["loss"] = NAN
    assert watch([NonFinite()], steps)[0].onset == 30


def test_one_that_heals_is_over_at_the_next_step_and_the_next_one_starts_anew() -> None:
    verdicts = watch([NonFinite()], series("grad_norm", [0.5, NAN, 0.5, NAN, NAN]))
    assert [(v.step, v.onset) for v in verdicts] == [(2, 2), (4, 4), (5, 4)]


def test_a_kl_that_is_nan_from_the_start_is_not_used_and_never_pages() -> None:
    assert watch([NonFinite()], series("kl", [NAN] * 200)) == []


def test_a_kl_that_was_finite_once_must_stay_so_also_after_a_resume() -> None:
    detector = NonFinite()
    watch([detector], series("kl", [0.01]))
    detector.resumed(1, attempt=2)
    assert watch([detector], series("kl", [NAN], first=2))


def test_a_loss_that_is_nan_from_the_first_step_on_pages() -> None:
    assert critical(watch([NonFinite()], series("loss", [NAN, NAN])))[-1].confidence == 1.0


def test_weights_that_are_nan_give_several_signals_in_the_same_step() -> None:
    steps = healthy(30)
    steps[-1][1].update(loss=NAN, grad_norm=NAN, entropy=NAN)
    assert [v.signal for v in critical(watch([NonFinite()], steps))] == ["loss", "grad_norm", "entropy"]


def test_an_infinite_gradient_alone_while_a_loss_scaler_settles_is_a_warning() -> None:
    steps = [(step, {"loss": 0.5, "grad_norm": math.inf if step < 4 else 0.5}) for step in range(1, 10)]
    verdicts = watch([NonFinite()], steps)
    assert [v.severity for v in verdicts] == [Severity.WARNING] * 3


def test_an_absent_signal_says_nothing() -> None:
    assert watch([NonFinite()], [(1, {}), (2, {"loss": NAN}), (3, {})])[-1].step == 2


def test_a_skipped_update_is_explained() -> None:
    verdict = watch([NonFinite()], series("grad_norm", [NAN]))[0]
    assert "skips the update" in verdict.meaning


def test_a_step_in_two_parts_counts_once() -> None:
    detector = NonFinite()
    parts = [StepSample(7, 1, 0.0, {"loss": NAN}), StepSample(7, 1, 0.0, {"loss": NAN, "val_loss": 1.0})]
    assert [detector.observe(part)[0].score for part in parts] == [1.0, 1.0]


@pytest.mark.parametrize("options", [{"stays": 0}, {"stays": 1.5}, {"warmup": -1}])
def test_a_wrong_option_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        NonFinite(**options)


def test_a_term_of_the_loss_and_advantages_page_by_themselves_and_a_loss_speaks_for_its_term() -> None:
    usual = {"loss": 0.1, "pg_loss": 0.1, "advantage_spread": 2.0}
    for signal in ("pg_loss", "advantage_spread"):
        steps = [(1, usual), (2, usual | {signal: math.nan})]
        assert [v.signal for v in critical(watch([NonFinite()], steps))] == [signal]
    both = [(1, usual), (2, usual | {"loss": math.nan, "pg_loss": math.nan})]
    assert [v.signal for v in critical(watch([NonFinite()], both))] == ["loss"]
