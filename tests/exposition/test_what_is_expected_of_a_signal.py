"""The band beside a signal is the one that its detector judges by: inside it nothing is high, outside it a step is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from exporter_scene import Scene, verdict
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import exposition, samples

from exporter.detectors.base import Forecast, Severity, StepSample, Verdict
from exporter.detectors.registry import build_detectors
from exporter.detectors.surge import Surge


def surge(signal: str, seed: int, usual: float, steps: int = 60) -> Surge:
    """A detector that has seen a healthy series."""
    rng, detector = random.Random(seed), Surge()
    for step in range(1, steps + 1):
        detector.observe(StepSample(step, 1, 0.0, {signal: usual * rng.uniform(0.8, 1.2)}))
    return detector


def is_high(detector: Surge, signal: str, value: float, step: int = 61) -> bool:
    """Whether the value is a finding as the next step; the detector is not changed."""
    other = Surge()
    other.load_state_dict(detector.state_dict())
    return bool(other.observe(StepSample(step, 1, 0.0, {signal: value})))


@pytest.mark.parametrize("signal", ["loss", "grad_norm", "critic_loss", "kl", "ppo_kl", "pg_clipfrac", "entropy"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-3, 2), steps=st.integers(16, 130))
def test_a_value_is_high_just_outside_of_the_band_and_not_inside(
    signal: str, seed: int, exponent: int, steps: int
) -> None:
    detector = surge(signal, seed, 2.0 * 10.0**exponent, steps)
    band = detector.expected()[signal]
    assert band.lower <= band.expected <= band.upper
    step = steps + 1
    assert not is_high(detector, signal, band.expected or 0.5 * band.upper, step)
    assert not is_high(detector, signal, band.upper * 0.999, step)
    assert is_high(detector, signal, band.upper * 1.001, step)
    if band.lower > 0.0:
        assert not is_high(detector, signal, band.lower * 1.001, step)
        assert is_high(detector, signal, band.lower * 0.999, step)
    elif band.lower < 0.0:
        assert not is_high(detector, signal, band.lower * 0.999, step)
        assert is_high(detector, signal, band.lower * 1.001, step)


def test_a_loss_below_zero_is_expected_there_and_one_that_changes_sign_around_zero() -> None:
    assert surge("loss", 1, -0.5).expected()["loss"].expected == pytest.approx(-0.5, rel=0.2)
    changing = Surge()
    for step in range(1, 61):
        changing.observe(StepSample(step, 1, 0.0, {"loss": 0.4 if step % 2 else -0.4}))
    assert changing.expected()["loss"].expected == 0.0


def test_entropy_has_a_limit_on_both_sides() -> None:
    band = surge("entropy", 1, 1.0).expected()["entropy"]
    assert 0.0 < band.lower < 0.8
    assert band.upper > 1.2


def test_nothing_is_expected_while_too_little_was_seen_or_after_a_resume() -> None:
    assert surge("grad_norm", 1, 1.0, steps=8).expected() == {}
    detector = surge("grad_norm", 1, 1.0)
    detector.resumed(40, 2)
    assert detector.expected() == {}


def test_what_is_expected_survives_a_restart_of_the_exporter() -> None:
    detector, again = surge("loss", 3, -2.0), Surge()
    again.load_state_dict(detector.state_dict())
    assert again.expected() == detector.expected()


def test_the_page_has_the_band_of_the_signals_that_the_run_logs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, detectors=build_detectors)
    for step in range(1, 41):
        scene.step(step, grad=1.0 + step % 3 / 10)
    shown = exposition(scene)
    page = samples(shown.render().body.decode())
    where = (("run", "r"), ("signal", "grad_norm"))
    lower, expected, upper = (page[f"verl_signal_{name}", where] for name in ("lower", "expected", "upper"))
    assert lower == 0.0 < expected < upper
    bands = {dict(labels)["signal"] for name, labels in page if name == "verl_signal_expected"}
    assert bands == {"grad_norm"}
    # Once more after further steps: the lines that were kept are those of then.
    for step in range(41, 161):
        scene.step(step, grad=10.0 + step % 3)
    later = samples(shown.render().body.decode())
    assert later["verl_signal_expected", where] == pytest.approx(11.0)
    scene.close()


class Foreseeing:
    """A detector that says when the response length will reach its limit: noted, and from step 10 on a warning."""

    name = "foreseeing"

    def observe(self, sample: StepSample) -> list[Verdict]:
        severity = Severity.INFO if sample.step < 10 else Severity.WARNING
        forecast = Forecast(limit=1024.0, seconds=100.0 - sample.step)
        if sample.step == 3:
            return []
        return [verdict(self.name, "response_length", severity, sample.step, 1.0, forecast=forecast)]

    def resumed(self, step: int, attempt: int) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


class ForeseeingOnly:
    def __init__(self) -> None:
        self.step, self.live = (Foreseeing(),), ()


def test_a_forecast_is_shown_for_as_long_as_it_is_made(tmp_path: Path) -> None:
    scene = Scene(tmp_path, detectors=ForeseeingOnly)
    where = ("verl_forecast_seconds_to_limit", (("run", "r"), ("signal", "response_length")))
    shown = exposition(scene)
    expected = {1: 99.0, 2: 98.0, 3: None, 4: 96.0, 10: 90.0, 11: 89.0}
    for step, seconds in expected.items():
        scene.step(step)
        assert samples(shown.render().body.decode()).get(where) == seconds
    scene.close()
