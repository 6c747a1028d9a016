"""A bounded window of numbers that is kept sorted: the memory of the step detectors.

Used by the detectors that compare a value with its own recent past. Pushing costs O(window), and reading the median or
an order statistic costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator


class SortedWindow:
    """The last ``size`` finite numbers, in order of arrival and in order of size.

    >>> window = SortedWindow(3, [5.0, 1.0, 2.0, 4.0])
    >>> list(window), window.median(), window.largest(2)
    ([1.0, 2.0, 4.0], 2.0, 2.0)
    """

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._size = size
        self._arrival: deque[float] = deque()
        self._sorted: list[float] = []
        for value in values:
            self.push(value)

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[float]:
        return iter(self._arrival)

    def push(self, value: float) -> None:
        """Add a number; the oldest one leaves when the window is full."""
        if len(self._arrival) == self._size:
            oldest = self._arrival.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrival.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        """Forget everything."""
        self._arrival.clear()
        self._sorted.clear()

    def median(self) -> float:
        """Median of the window (the mean of the middle two). Raises ``IndexError`` when empty."""
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return self._sorted[middle]
        return 0.5 * self._sorted[middle - 1] + 0.5 * self._sorted[middle]

    def largest(self, rank: int) -> float:
        """The ``rank``-th largest number, or the smallest there is. Raises ``IndexError`` when empty."""
        return self._sorted[max(len(self._sorted) - rank, 0)]
