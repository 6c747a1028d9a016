"""Real verl logs, where they are there: healthy runs cost next to no page, faults put into them are found.

All twelve runs were looked at while the detectors were written, so this keeps what was reached and is no blind trial.
The split is that of ``bench.detection.runs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
from streams import Signals, critical, episodes, read, watch

from bench.detection.runs import DATA, HELD_OUT, TUNED
from exporter.detectors.base import Severity
from exporter.detectors.registry import build_detectors

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"real verl logs are not part of the repository and not at {DATA} (VERL_SENTINEL_DATA)"
)

Change = Callable[[Signals, int], Signals]


@cache
def steps_of(run: str) -> list[tuple[int, Signals]]:
    return list(read(DATA / f"{run}.jsonl.gz"))


def episodes_per_thousand(runs: tuple[str, ...], severity: Severity) -> float:
    count = total = 0
    for run in runs:
        verdicts = watch(build_detectors().step, steps_of(run))
        count += episodes(v.step for v in verdicts if v.severity is severity)
        total += len(steps_of(run))
    return 1000.0 * count / total


@pytest.mark.parametrize("runs", [HELD_OUT, TUNED], ids=["held out", "tuned"])
def test_healthy_runs_cost_at_most_a_tenth_of_a_page_and_two_warnings_in_a_thousand_steps(
    runs: tuple[str, ...],
) -> None:
    assert episodes_per_thousand(runs, Severity.CRITICAL) <= 0.1
    assert episodes_per_thousand(runs, Severity.WARNING) <= 2.0


def times(signal: str, *factors: float) -> Change:
    return lambda signals, i: signals | {signal: signals[signal] * factors[min(i, len(factors) - 1)]}


def plus(signal: str, *values: float) -> Change:
    return lambda signals, i: signals | {signal: signals[signal] + values[min(i, len(values) - 1)]}


def with_fault(run: str, at: int, change: Change) -> tuple[int, list[tuple[int, Signals]]]:
    """The 150 steps before index ``at`` of a run and 10 after, with ``change`` applied from there on."""
    part = steps_of(run)[at - 150 : at + 10]
    return part[150][0], part[:150] + [(step, change(dict(signals), i)) for i, (step, signals) in enumerate(part[150:])]


FAULTS = {
    "gradient growth": (times("grad_norm", 1.2, 4.75, 12.0, 80.0, 725.0), "grad_norm"),
    "loss not a number": (plus("loss", math.nan), "loss"),
    "KL runaway": (plus("ppo_kl", 0.02, 0.05, 0.1, 0.2, 0.4, 0.8), "ppo_kl"),
    "entropy jump": (plus("entropy", 0.6, 1.0, 1.5), "entropy"),
}


@pytest.mark.parametrize("run", HELD_OUT)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_real_run_pages_within_five_steps(run: str, fault: str) -> None:
    change, signal = FAULTS[fault]
    for at in (200, 350, 500, 650):
        step, steps = with_fault(run, at, change)
        pages = critical(watch(build_detectors().step, steps))
        assert signal in {page.signal for page in pages}
        assert step <= pages[0].step <= step + 5
        assert step - 6 <= pages[0].onset <= step + 5


@pytest.mark.parametrize("run", HELD_OUT)
def test_a_wrecked_policy_gives_two_critical_signals_within_four_steps(run: str) -> None:
    def wreck(signals: Signals, i: int) -> Signals:
        return signals | {
            "grad_norm": signals["grad_norm"] * 8.0,
            "ppo_kl": 0.3,
            "entropy": signals["entropy"] + 0.8,
        }

    step, steps = with_fault(run, 400, wreck)
    pages = critical(watch(build_detectors().step, steps))
    assert len({page.signal for page in pages if page.step <= step + 4}) >= 2


@pytest.mark.parametrize("run", HELD_OUT)
def test_a_spike_that_heals_in_a_real_run_does_not_page(run: str) -> None:
    def spike(signals: Signals, i: int) -> Signals:
        return signals | {"grad_norm": signals["grad_norm"] * (50.0 if i == 0 else 1.0)}

    _, steps = with_fault(run, 400, spike)
    assert critical(watch(build_detectors().step, steps)) == []


@pytest.mark.parametrize("run", HELD_OUT)
def test_a_loss_ten_times_up_is_found_in_most_places(run: str) -> None:
    """A policy loss crosses 0 by chance for some steps, so not in every place within five steps."""
    found = []
    for at in range(200, 700, 50):
        step, steps = with_fault(run, at, times("loss", 10.0))
        found.append(any(page.step <= step + 9 for page in critical(watch(build_detectors().step, steps))))
    assert sum(found) >= 0.7 * len(found)
