"""Gradient instability: most of the last steps jump about, by a lot."""

from __future__ import annotations

import pytest
from streams import critical, healthy, series, watch

from exporter.detectors.gradient_instability import GradientInstability

CALM = [0.5, 0.6, 0.55, 0.65, 0.52] * 12


def test_a_gradient_that_jumps_up_and_down_pages() -> None:
    pages = critical(watch([GradientInstability()], series("grad_norm", CALM + [4.0, 0.4] * 8)))
    assert 61 <= pages[0].step <= 70
    assert 60 <= pages[0].onset <= 62


@pytest.mark.parametrize("spikes", [{0: 30.0}, {0: 30.0, 6: 30.0}])
def test_a_spike_or_two_that_heal_do_not_page(spikes: dict[int, float]) -> None:
    tail = [0.5 + 0.1 * (step % 2) for step in range(40)]
    for offset, value in spikes.items():
        tail[offset] = value
    assert critical(watch([GradientInstability()], series("grad_norm", CALM + tail))) == []


def test_twice_the_usual_spread_alone_is_not_enough() -> None:
    tail = [0.55 + 0.12 * (-1) ** step for step in range(40)]
    assert critical(watch([GradientInstability()], series("grad_norm", CALM + tail))) == []


def test_heavy_tails_that_were_there_from_the_start_do_not_page() -> None:
    norms = [0.01 if step % 3 else 0.02 + 5.0 * ((step * 7919) % 13 == 0) for step in range(400)]
    assert critical(watch([GradientInstability()], series("grad_norm", norms))) == []


def test_a_run_that_looks_like_grpo_is_quiet() -> None:
    assert watch([GradientInstability()], healthy(400)) == []


def test_after_a_resume_it_warms_up_again() -> None:
    detector = GradientInstability()
    watch([detector], series("grad_norm", CALM))
    detector.resumed(60, attempt=2)
    assert watch([detector], series("grad_norm", [4.0, 0.4] * 10, first=61)) == []


@pytest.mark.parametrize(("option", "value"), [("factor", 1.0), ("k", 2), ("n", 3), ("k", 11), ("window", 3)])
def test_a_wrong_option_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        GradientInstability(**{option: value})  # type: ignore[arg-type]
