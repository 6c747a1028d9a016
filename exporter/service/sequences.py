"""Which sequence numbers of a sender have been taken: what makes a push idempotent. Used by the core.

Nearly always the numbers arrive in order and all of them arrive, so one number says it all. What arrives out of order
is kept as ranges above it, until the gap is filled.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

MAX_RANGES = 1000
"""Gaps that are remembered; when there are more, the oldest is taken for one that nobody will fill any more."""


@dataclass(slots=True)
class Sequences:
    """Sequence numbers from 1.

    >>> taken = Sequences()
    >>> [taken.add(seq) for seq in (1, 2, 5, 2, 4, 3)]
    [True, True, True, False, True, True]
    >>> taken.upto, taken.above, 5 in taken, 6 in taken, taken.highest
    (5, [], True, False, 5)
    """

    upto: int = 0
    """Everything up to here has been taken."""
    above: list[tuple[int, int]] = field(default_factory=list)
    """Ranges (first, last) above it, in order, not touching."""
    heard: float = 0.0
    """When the sender was last heard, Unix seconds."""

    @property
    def highest(self) -> int:
        return self.above[-1][1] if self.above else self.upto

    def __contains__(self, seq: int) -> bool:
        if seq <= self.upto:
            return True
        index = bisect_right(self.above, seq, key=lambda one: one[0]) - 1
        return index >= 0 and seq <= self.above[index][1]

    def add(self, seq: int) -> bool:
        """Take a number; False where it was taken before."""
        if seq in self:
            return False
        if seq == self.upto + 1 and not self.above:
            self.upto = seq
            return True
        index = bisect_right(self.above, seq, key=lambda one: one[0])
        first = last = seq
        if index < len(self.above) and self.above[index][0] == seq + 1:
            last = self.above.pop(index)[1]
        if index > 0 and self.above[index - 1][1] == seq - 1:
            index -= 1
            first = self.above.pop(index)[0]
        if first == self.upto + 1:
            self.upto = last
        else:
            self.above.insert(index, (first, last))
            if len(self.above) > MAX_RANGES:
                self.upto = self.above.pop(0)[1]
        return True
