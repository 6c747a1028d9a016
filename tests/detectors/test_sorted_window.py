"""The window is the last numbers, in both orders, whatever was pushed."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from exporter.detectors.window import SortedWindow

NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from([0.0, 1.0]))


@given(st.integers(1, 6), NUMBERS)
def test_it_holds_the_last_numbers_in_order_of_arrival_and_of_size(size: int, numbers: list[float]) -> None:
    window = SortedWindow(size, numbers)
    last = numbers[-size:]
    assert list(window) == last
    assert len(window) == len(last)
    if last:
        assert window.median() == statistics.median(last)
        assert [window.largest(rank) for rank in range(1, len(last) + 1)] == sorted(last, reverse=True)
        assert window.largest(len(last) + 3) == min(last)


@given(NUMBERS, NUMBERS)
def test_cleared_it_is_as_new(before: list[float], after: list[float]) -> None:
    window = SortedWindow(4, before)
    window.clear()
    for number in after:
        window.push(number)
    assert list(window) == after[-4:]
