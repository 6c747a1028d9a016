"""What a learning rate has been, where nobody said what it should be. Used by the detector ``learning_rate`` only.

No schedule that verl has makes a jump: a rate rises in a line, stays, or falls smoothly. Nor does a rate carry noise,
so the next value lies between the newest one and the straight line through the newest two (a convex fall, the end of a
cosine, lies between them), give or take a tolerance. What lies outside has jumped, and is measured from then on against
where it jumped from. Besides, a rate that has ended its warm-up never rises above its peak again, however slowly, and
one that fell to 0 has no work left.

Reference: control by the residual of a short-term forecast (G. E. P. Box, A. Luceño, Statistical Control by Monitoring
and Feedback Adjustment, 1997), here with a forecast that is exact but for its bend.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

SETTLED = 5
"""Steps without a new peak that end a warm-up."""
REMEMBERED = 200
"""Changes of the rate that are remembered, to compare a resume with."""
ACCEPTED = 100
"""Steps at a new level until it is the usual one."""
ZERO = 1e-6
"""Share of the peak below which a rate is none."""
RISING = 2.0
"""Relative jump that counts during a warm-up, where a rounded rate may double."""
FLOOR = 0.02
"""Share of the peak that a distance is measured by at least: near the ends of a schedule ratios mean nothing."""
MOST = 1e12


class RateCurve:
    """One rate. ``off`` is the relative distance from what was to be expected, negative downwards, 0.0 within it.

    ``confirm``: steps over which a distance is the smallest one. ``tolerance``: relative distance that is none.

    >>> curve = RateCurve(confirm=3, tolerance=0.1, warmup=15)
    >>> for step in range(1, 101):
    ...     curve.push(step, 1e-6 * min(step / 50, 1.0))
    >>> curve.off
    0.0
    >>> for step in range(101, 104):
    ...     curve.push(step, 1e-5)
    >>> round(curve.off, 3), curve.since, curve.steps_off, curve.reference
    (9.0, 101, 3, 1e-06)
    """

    def __init__(self, *, confirm: int, tolerance: float, warmup: int) -> None:
        self._confirm, self._tolerance, self._warmup = confirm, tolerance, warmup
        self._steps, self._rates = array("d"), array("d")  # changes of the rate: from which step on, and to what
        self.seen = 0
        self.last_step = -1
        self.last = 0.0
        self._slope = 0.0  # per step
        self.peak = 0.0
        self._peak_for = 0  # steps since the peak was reached
        self._quantum = 0.0  # the smallest change that was no jump: what rounding of the log may make
        self.zero_for = 0
        self.since = 0
        self.steps_off = 0
        self.reference = 0.0
        self._sizes = array("d")  # relative distances of the newest steps (upwards) or the first steps (downwards)

    @property
    def off(self) -> float:
        """The smallest distance of those that count."""
        return min(self._sizes, key=abs) if self._sizes else 0.0

    def push(self, step: int, rate: float) -> None:
        """Take the rate of the next step: finite, at least 0."""
        self.zero_for = self.zero_for + 1 if rate <= ZERO * self.peak else 0
        if self.steps_off:
            self._stays_off(step, rate)
        else:
            distance, reference = self._distance(step, rate)
            if distance:
                self.since, self.steps_off, self.reference = step, 1, reference
                self._sizes = array("d", [distance])
            else:
                self._learn(step, rate)
        self.seen += 1
        self.last_step = step

    def accept(self) -> None:
        """Take the newest rate for the usual one."""
        self.steps_off = 0
        self._sizes = array("d")

    def expected(self, step: int) -> tuple[float, float] | None:
        """Lowest and highest rate to be expected at a step that was seen or comes soon; None where it is not known."""
        if not self._steps or step < self._steps[0] or step > self.last_step + 2 * self._warmup:
            return None
        if step > self.last_step:
            line = max(0.0, self.last + self._slope * (step - self.last_step))
            return min(self.last, line), max(self.last, line)
        near = [self._rates[max(bisect_right(self._steps, s) - 1, 0)] for s in (step - 1, step, step + 1)]
        return min(near), max(near)

    def _distance(self, step: int, rate: float) -> tuple[float, float]:
        """Relative distance from the forecast, and what was forecast; 0 where there is none."""
        if self.seen < self._warmup or self.last_step < 0:
            return 0.0, 0.0
        line = max(0.0, self.last + self._slope * (step - self.last_step))
        low, high = min(self.last, line), max(self.last, line)
        settled = self._peak_for >= SETTLED
        if settled and high > self.peak:
            high = self.peak  # a rise by small steps, which the line would follow
        reference = high if rate > high else low if rate < low else rate
        if reference <= 0.0 or abs(rate - reference) <= max(1.5 * self._quantum, FLOOR * self.peak):
            return 0.0, 0.0
        distance = min(rate / reference - 1.0, MOST)
        least = self._tolerance if settled or distance < 0.0 else RISING
        return (distance, reference) if abs(distance) > least else (0.0, 0.0)

    def _stays_off(self, step: int, rate: float) -> None:
        distance = min(rate / self.reference - 1.0, MOST)
        self.steps_off += 1
        if abs(distance) <= self._tolerance or self.steps_off > ACCEPTED:
            self.accept()
            self.peak = max(self.peak, rate)
            self._slope = 0.0
            self.last = rate
            self._remember(step, rate)
            return
        # Upwards the newest steps count: a rise may go on. Downwards the first: a fall that goes on may be a decay.
        if len(self._sizes) < self._confirm:
            self._sizes.append(distance)
        elif self._sizes[0] > 0.0:
            self._sizes = array("d", [*self._sizes[1:], distance])

    def _learn(self, step: int, rate: float) -> None:
        if self.last_step >= 0:
            change = rate - self.last
            self._slope = change / max(step - self.last_step, 1)
            if change and self.seen > 1:
                self._quantum = min(self._quantum or abs(change), abs(change))
        self.last = rate
        # Once the warm-up is over the peak stands, or a slow rise would carry it along. Where the log is rounded so
        # coarsely that a warm-up has plateaus, nobody can tell when it is over.
        coarse = self._quantum > self._tolerance * self.peak
        if rate > self.peak * (1.0 + 1e-6) and (coarse or self._peak_for < SETTLED):
            self.peak, self._peak_for = rate, 0
        elif self.peak > 0.0:
            self._peak_for += 1
        self._remember(step, rate)

    def _remember(self, step: int, rate: float) -> None:
        if self._rates and abs(rate - self._rates[-1]) <= 1e-3 * self._rates[-1]:
            return
        if len(self._rates) >= REMEMBERED:
            del self._steps[0], self._rates[0]
        self._steps.append(step)
        self._rates.append(rate)

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "steps": list(self._steps),
            "rates": list(self._rates),
            "seen": self.seen,
            "last_step": self.last_step,
            "last": self.last,
            "slope": self._slope,
            "peak": self.peak,
            "peak_for": self._peak_for,
            "quantum": self._quantum,
            "zero_for": self.zero_for,
            "since": self.since,
            "steps_off": self.steps_off,
            "reference": self.reference,
            "sizes": list(self._sizes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._steps, self._rates = array("d", state["steps"]), array("d", state["rates"])
        self.seen, self.last_step, self.last = state["seen"], state["last_step"], float(state["last"])
        self._slope, self.peak, self._peak_for = float(state["slope"]), float(state["peak"]), state["peak_for"]
        self._quantum, self.zero_for = float(state["quantum"]), state["zero_for"]
        self.since, self.steps_off, self.reference = state["since"], state["steps_off"], float(state["reference"])
        self._sizes = array("d", state["sizes"])
