"""A signal around its onset as a drawing: everything lies in the box, gaps are gaps, and no value is made up."""

from __future__ import annotations

import math
import random
import re

import pytest

from exporter.console.around import HEIGHT, LEFT, MOST_ROWS, WIDTH, Around, Marked, around, drawn
from exporter.console.traces import Traces
from exporter.detectors.setup import UNKNOWN
from exporter.service.recent import RecentStep

NAN = math.nan


def of(values: list[float], lower: float = NAN, upper: float = NAN, *, lost: tuple[int, ...] = ()) -> Around:
    count = len(values)
    return Around(
        signal="kl",
        steps=list(range(10, 10 + count)),
        values=values,
        lower=[lower] * count,
        upper=[upper] * count,
        lost=[row in lost for row in range(count)],
        onset_row=count // 2,
        said_row=count - 1,
    )


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?[\d.]+(?:e-?\d+)?", text)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_values_are_all_of_it_is_in_the_box(seed: int) -> None:
    dice = random.Random(seed)
    size = 10.0 ** dice.randint(-30, 30)
    values = [dice.choice((NAN, 0.0, dice.uniform(-size, size))) for _ in range(dice.randint(1, 200))]
    made = drawn(of(values, dice.choice((NAN, -size * 1e6, 0.0)), dice.choice((NAN, size * 1e6, size)), lost=(0,)))
    points = [point for text in (*made.line, *made.band) for point in text.split()]
    for point in points:
        x, y = map(float, point.split(","))
        assert LEFT <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    for x in (made.onset, made.said, *made.lost, *(tick.at for tick in made.across)):
        assert LEFT <= x <= WIDTH
    assert all(math.isfinite(tick.value) and 0 <= tick.at <= HEIGHT for tick in made.up)


def test_a_gap_is_a_gap_and_a_lone_value_a_dot() -> None:
    made = drawn(of([1.0, 2.0, NAN, 3.0, NAN, 4.0, 5.0], lost=(2,)))
    assert [len(text.split()) for text in made.line] == [2, 2]
    assert len(made.dots) == 5
    assert len(made.lost) == 1
    assert [value for _, value, _, _ in made.rows] == [1.0, 2.0, None, 3.0, None, 4.0, 5.0]


def test_a_wide_band_does_not_flatten_the_values() -> None:
    made = drawn(of([1.0, 1.1, 1.2], -1e6, 1e6))
    heights = [float(point.split(",")[1]) for point in made.line[0].split()]
    assert max(heights) - min(heights) > HEIGHT / 8


def test_the_window_holds_the_onset_and_the_finding_and_is_bounded() -> None:
    traces = Traces((), UNKNOWN, "ppo_v1", {})
    traces.go_on([RecentStep(step, 1, float(step), {"kl": float(step)}) for step in range(1, 2001)])
    (made,) = around(traces, [Marked("kl", 1, onset=1000, first_step=1003, last_step=2000)])
    assert made.steps[made.onset_row] == 1000
    assert made.steps[made.said_row] == 1003
    assert len(made.steps) <= MOST_ROWS + 45
    assert made.steps[0] == 960


def test_a_signal_that_nobody_logged_is_not_drawn() -> None:
    traces = Traces((), UNKNOWN, "ppo_v1", {})
    traces.go_on([RecentStep(1, 1, 1.0, {"kl": 0.5})])
    assert around(traces, [Marked("process", 1, 1, 1, 1), Marked("reward", 1, 1, 1, 1), Marked("kl", 7, 1, 1, 1)]) == []
