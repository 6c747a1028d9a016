"""One memory signal's windows, and when it is worth while to look at them: the state of the detector ``memory``.

Two windows: a short one that has every step, for what fills a card within an hour, and a long, thinned one, for what
takes a day. Fitting a growth costs a hundred times as much as taking a step, so it is asked for every few steps, and
only where the ends of a window say that there is a climb that goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from exporter.detectors.base import Forecast, Severity, Verdict
from exporter.detectors.growth import UNSURE, Growth, find_growth, settles_at, since_last_jump
from exporter.detectors.trend import Trend

RECENT, SPAN, POINTS = 64, 400, 100
"""Steps of the short window; steps and points of the long one."""
SKIPPED = 8
"""First steps of an attempt, whose stairs are not even learned."""
EVERY = 4
"""Steps between two looks at the least, and between two numbers that the long window gets."""
LEAST_BEFORE, CALM = 12, 0.25
"""Steps of the short window that have to lie before a growth for it to be younger than the window, and share of the
growth's slope below which the slope there has to be."""
LATE, STILL = 3, 0.1
"""A climb is over when less than this share of it was climbed in the newest third of its window."""
LEAST_LOOK = 8
BACK = (-0.2, 0.0, 0.5)
"""How far before the onset a climb is looked at that may settle, in times its age: one that slackens looks younger than
it is, and its steep beginning like a jump before it. With the level before it, it would seem to bend upwards."""
FROM_THE_START, UNSURE_THERE = 0.7, 2.5
"""Share of the attempt's steps, from which on a growth may be its warm-up, and how much more is asked of it then."""


class Climb:
    """The windows of one signal, and the verdict that holds."""

    def __init__(self) -> None:
        self._recent = Trend(span=RECENT, points=RECENT)
        self._wide = Trend(span=SPAN // EVERY, points=POINTS)
        self._next_look = 0
        self.seen = 0
        """Steps since the start or the resume."""
        self.said: Verdict | None = None

    def push(self, step: int, value: float) -> bool:
        """Take a step's value; whether it is time to look."""
        self.seen += 1
        if self.seen <= SKIPPED:
            return False
        self._recent.push(step, value)
        if self.seen % EVERY:
            return False
        self._wide.push(step, median(self._recent.values[-3:]))
        return step >= self._next_look

    def wait(self, steps: float) -> None:
        """Put the next look off, to ``steps`` from now."""
        self._next_look = int(self._recent.last_step + steps)

    def heights(self) -> list[tuple[float, float]]:
        """How far the newest values are above the lowest, and in how many steps, in each window where that goes on.

        Cheap: no fit, closed points only.
        """
        found = []
        for window in (self._recent, self._wide):
            ys = window.values
            if len(ys) < LEAST_LOOK:
                continue
            now, low = min(ys[-2:]), min(ys)
            rise = now - low
            if rise > 0.0 and now - max(ys[: len(ys) - len(ys) // LATE]) >= STILL * rise:
                found.append((rise, max(window.last_step - window.steps[ys.index(low)], 1.0)))
        return found

    def growth(self, worth: Callable[[Growth], bool]) -> Growth | None:
        """The growth at the end of the short window, or of the long one where it is older than the short one."""
        xs, ys = since_last_jump(*self._recent.series())
        if len(xs) < RECENT:  # since a jump, or since the start: there is no more to see
            return find_growth(xs, ys, worth)

        def fresh(growth: Growth) -> bool:
            """Whether the window goes back far enough to have the level from which it grew."""
            hinge = bisect_left(xs, growth.onset)
            if hinge < LEAST_BEFORE:
                return False
            slope = (median(ys[hinge - 5 : hinge]) - median(ys[:5])) / (xs[hinge - 3] - xs[2])
            return slope < CALM * growth.shape.gain and worth(growth)

        return find_growth(xs, ys, fresh) or find_growth(*since_last_jump(*self._wide.series()), worth)

    def settles_at(self, growth: Growth) -> float:
        """The lowest level at which the growth may come to rest, as it slackens; infinite where it does not."""
        xs, ys = self._recent.series()
        wide_xs, wide_ys = self._wide.series()
        older = bisect_left(wide_xs, xs[0])
        xs, ys = [*wide_xs[:older], *xs], [*wide_ys[:older], *ys]
        starts = {max(bisect_left(xs, growth.onset - back * growth.seen) - 1, 0) for back in BACK}
        unsure = UNSURE * (UNSURE_THERE if growth.seen > FROM_THE_START * self.seen else 1.0)
        return min(settles_at(xs[start:], ys[start:], unsure) for start in starts)

    def deepest_tooth(self) -> float:
        """The largest climb of either window that was taken back, as far as it was."""
        return max(_deepest_tooth(self._recent.series()[1]), _deepest_tooth(self._wide.series()[1]))

    def again(self, step: int) -> None:
        """Say what holds at a later step, with the forecast moved on."""
        verdict = self.said
        if verdict is None:
            return
        forecast, passed = verdict.forecast, step - verdict.step
        if forecast is not None and forecast.steps is not None and forecast.interval is not None:
            steps = max(forecast.steps - passed, 0.0)
            pace = None if forecast.seconds is None or not forecast.steps else forecast.seconds / forecast.steps
            early, late = forecast.interval
            forecast = Forecast(
                forecast.limit,
                steps,
                None if pace is None else steps * pace,
                (max(early - passed, 0.0), max(late - passed, 0.0)),
            )
        self.said = replace(verdict, step=step, forecast=forecast)

    def state_dict(self) -> dict[str, Any]:
        said = None
        if self.said is not None:
            said = asdict(self.said) | {"severity": int(self.said.severity)}
        return {
            "recent": self._recent.state_dict(),
            "wide": self._wide.state_dict(),
            "next_look": self._next_look,
            "seen": self.seen,
            "said": said,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.load_state_dict(state["recent"])
        self._wide.load_state_dict(state["wide"])
        self._next_look, self.seen = int(state["next_look"]), int(state["seen"])
        self.said = None
        if state["said"] is not None:
            said = dict(state["said"])
            forecast = said.pop("forecast")
            if forecast is not None:
                interval = forecast["interval"]
                forecast = Forecast(**(forecast | {"interval": None if interval is None else tuple(interval)}))
            said |= {"severity": Severity(said["severity"]), "advice": tuple(said["advice"])}
            self.said = Verdict(**said, forecast=forecast)


def _deepest_tooth(ys: Sequence[float]) -> float:
    """Of single spikes nothing is left by medians of three."""
    low = peak = median(ys[:3]) if ys else 0.0
    deepest = 0.0
    for y in map(median, zip(ys, ys[1:], ys[2:], strict=False)):
        if y > peak:
            peak = y
        elif min(peak - low, peak - y) > deepest:
            deepest = min(peak - low, peak - y)
        if y < low:
            low = peak = y
    return deepest
