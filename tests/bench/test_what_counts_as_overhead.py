"""Throughput with work beside training: stalls count, noise is no pass, nothing is claimed that was not measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.checkpoint_overhead import run
from bench.throughput import Window, figures, throughput


def training(windows: Sequence[Window], step: float, slow: float, jitter: float = 0.0) -> list[float]:
    """When each step begins, where one takes ``slow`` times as long within a busy window."""
    drawn, now, starts = random.Random(0), 0.0, []
    while now < windows[-1].ended + 1:
        starts.append(now)
        busy = any(one.busy and one.began <= now < one.ended for one in windows)
        now += step * (slow if busy else 1.0) * (1 + jitter * drawn.random())
    return starts


BEFORE = Window(0.0, 10.0, False)
WINDOWS = [Window(10.0 + 20 * i, 29.0 + 20 * i, i % 4 in (0, 3)) for i in range(20)]


@pytest.mark.parametrize(("slow", "met"), [(1.0, True), (1.01, True), (1.05, False)])
def test_what_is_slower_by_more_than_the_target_is_found(slow: float, met: bool) -> None:
    found = figures(BEFORE, WINDOWS, training(WINDOWS, 0.05, slow, 0.02))
    assert found["ratio"] == pytest.approx(slow, abs=0.003)
    assert (found["ratio_within_target"], found["target_met"]) == (met, met)


def test_a_stall_in_each_round_counts_though_all_other_steps_are_as_fast() -> None:
    starts = training(WINDOWS, 0.05, 1.0)
    for window in WINDOWS:
        if window.busy:  # the last step of the window goes on for 2 s, beyond its end
            starts = [one for one in starts if not window.ended - 1.5 < one < window.ended + 0.5]
    found = figures(BEFORE, WINDOWS, starts)
    assert found["ratio"] > 1.05
    assert not found["target_met"]
    assert found["longest_step_ms_with_background"] > 1900


def test_a_ratio_within_the_target_is_not_met_while_the_interval_goes_beyond_it() -> None:
    drawn, starts, now = random.Random(3), [0.0], 0.0
    speeds = [drawn.uniform(0.8, 1.2) for _ in range(100)]
    while now < WINDOWS[-1].ended + 1:
        now += 0.05 * speeds[int(now // 10)]
        starts.append(now)
    found = figures(BEFORE, WINDOWS, starts)
    assert found["ratio_interval"][0] < found["ratio"] < found["ratio_interval"][1]
    assert found["ratio_interval"][1] > 1.02
    assert not found["target_met"]


def test_a_window_without_a_whole_step_counts_the_part_that_lies_in_it() -> None:
    assert throughput(Window(1.0, 3.0, True), [0.0, 8.0]).steps == 0.25


def test_where_no_round_is_completed_nothing_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.checkpoint_overhead.ROUND_SECONDS", 0.0)
    monkeypatch.setattr("bench.checkpoint_overhead.WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr("bench.checkpoint_overhead.KEEPER_SECONDS", 0.0)
    monkeypatch.setattr("bench.checkpoint_overhead.BEFORE_SECONDS", 0.1)
    with pytest.raises(SystemExit, match="Nothing was measured: no round was completed"):
        run(tmp_path, 1_000_000, 1)
