"""A bounded window of numbers that is kept sorted: the memory of the step detectors.

Used by the detectors that compare a value with its own recent past. Pushing costs O(window), and reading the median or
an order statistic costs nothing. The numbers lie in arrays, at a quarter of what a list of floats takes: there is a
window for each watched signal of each run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator


class SortedWindow:
    """The last ``size`` finite numbers, in order of arrival and in order of size.

    >>> window = SortedWindow(3, [5.0, 1.0, 2.0, 4.0])
    >>> list(window), window.median(), window.largest(2)
    ([1.0, 2.0, 4.0], 2.0, 2.0)
    """

    __slots__ = ("_arrival", "_oldest", "_size", "_sorted")

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._size = size
        self._arrival = array("d")
        self._oldest = 0  # place in _arrival of the number that leaves next, once the window is full
        self._sorted = array("d")
        for value in values:
            self.push(value)

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[float]:
        yield from self._arrival[self._oldest :]
        yield from self._arrival[: self._oldest]

    def push(self, value: float) -> None:
        """Add a number; the oldest one leaves when the window is full."""
        if len(self._arrival) < self._size:
            self._arrival.append(value)
        else:
            del self._sorted[bisect_left(self._sorted, self._arrival[self._oldest])]
            self._arrival[self._oldest] = value
            self._oldest = (self._oldest + 1) % self._size
        insort(self._sorted, value)

    def clear(self) -> None:
        """Forget everything."""
        self._arrival = array("d")
        self._sorted = array("d")
        self._oldest = 0

    def median(self) -> float:
        """Median of the window (the mean of the middle two). Raises ``IndexError`` when empty."""
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return self._sorted[middle]
        return 0.5 * self._sorted[middle - 1] + 0.5 * self._sorted[middle]

    def largest(self, rank: int) -> float:
        """The ``rank``-th largest number, or the smallest there is. Raises ``IndexError`` when empty."""
        return self._sorted[max(len(self._sorted) - rank, 0)]

    def quantile(self, share: float) -> float:
        """The number below which about ``share`` of the window lies. Raises ``IndexError`` when empty."""
        return self._sorted[int(share * (len(self._sorted) - 1) + 0.5)]
