"""What a picture of a past run is made of: its signals, what was expected of them, and what was said of them.

Filled by the replay row by row, drawn by :mod:`exporter.replay.picture`. Memory does not grow with the length of a run:
beyond :data:`MOST_PLACES` rows two neighbours become one, again and again, and of values that became one the smallest,
the largest and the mean are kept.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exporter.detectors.base import Expectation, Forecast, Severity, Verdict
from exporter.replay.past_run import Said

MOST_PLACES: Final = 4096
"""Places of a picture from left to right; more than it has pixels."""
MOST_CHARTS: Final = 20
MOST_EPISODES: Final = 5000
MOST_LOST: Final = 2000
"""Values that are not finite, of one signal."""
MOST_STARTS: Final = 1000
MOST_SIGNALS: Final = 200
EPISODE_GAP: Final = 10
"""A finding that is said again after at most so many steps is the same one."""


@dataclass(slots=True)
class Trace:
    """One signal over the places of a chart; NaN where a place has none."""

    low: array[float] = field(default_factory=lambda: array("d"))
    high: array[float] = field(default_factory=lambda: array("d"))
    total: array[float] = field(default_factory=lambda: array("d"))
    count: array[int] = field(default_factory=lambda: array("q"))
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Start and step of values that are not finite."""

    def add(self, place: int, value: float) -> None:
        """A finite value."""
        missing = place + 1 - len(self.low)
        if missing > 0:
            for values in (self.low, self.high):
                values.extend([math.nan] * missing)
            self.total.extend([0.0] * missing)
            self.count.extend([0] * missing)
        if self.count[place] == 0:
            self.low[place] = self.high[place] = self.total[place] = value
        else:
            self.low[place] = min(self.low[place], value)
            self.high[place] = max(self.high[place], value)
            self.total[place] += value
        self.count[place] += 1

    def halve(self) -> None:
        """Two places become one."""
        old = Trace(self.low, self.high, self.total, self.count)
        self.low, self.high, self.total, self.count = array("d"), array("d"), array("d"), array("q")
        for place in range(0, len(old.low), 2):
            both = slice(place, place + 2)
            seen = [index for index in range(place, min(place + 2, len(old.low))) if old.count[index]]
            self.low.append(min((old.low[index] for index in seen), default=math.nan))
            self.high.append(max((old.high[index] for index in seen), default=math.nan))
            self.total.append(sum(old.total[both]))
            self.count.append(sum(old.count[both]))


@dataclass(slots=True)
class Band:
    """What one detector expected of one signal, by place; NaN where nothing."""

    lower: array[float] = field(default_factory=lambda: array("d"))
    upper: array[float] = field(default_factory=lambda: array("d"))

    def add(self, place: int, expectation: Expectation) -> None:
        missing = place + 1 - len(self.lower)
        if missing > 0:
            self.lower.extend([math.nan] * missing)
            self.upper.extend([math.nan] * missing)
        self.lower[place], self.upper[place] = expectation.lower, expectation.upper

    def halve(self) -> None:
        """Of two places the later one stays: an expectation changes slowly."""
        self.lower, self.upper = self.lower[1::2], self.upper[1::2]


@dataclass(slots=True)
class Episode:
    """A finding for as long as it was said."""

    detector: str
    signal: str
    attempt: int
    onset: int
    said: int
    """Step at which it was first said."""
    last: int
    severity: Severity
    """The worst."""
    worst_said: int
    """Step at which it became as severe as that."""
    forecasts: list[tuple[int, Forecast]] = field(default_factory=list)
    """The first one and the last, with the step at which each was made."""

    def take(self, verdict: Verdict) -> None:
        """It is said again."""
        self.last = verdict.step
        self.onset = min(self.onset, verdict.onset)
        if verdict.severity > self.severity:
            self.severity, self.worst_said = verdict.severity, verdict.step
        if verdict.forecast is not None:
            self.forecasts[1:] = [(verdict.step, verdict.forecast)]


class Chart:
    """One run.

    >>> chart = Chart(Path("a.jsonl"), "")
    >>> for step in range(1, 10_001):
    ...     chart.take(Said(1, step, float(step), True, (), ()), {"loss": 1.0 / step})
    >>> len(chart.steps), chart.traces["loss"].high[0], chart.steps[-1]
    (2500, 1.0, 9997)
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self.rows = 0
        self.first = self.last = 0
        self.steps: array[int] = array("q")
        """The first step of each place."""
        self.attempts: array[int] = array("q")
        self.starts: dict[int, int] = {}
        """First step of each start of the trainer."""
        self.traces: dict[str, Trace] = {}
        self.bands: dict[tuple[str, str], Band] = {}
        """By detector and signal."""
        self.episodes: list[Episode] = []
        self._open: dict[tuple[str, str], Episode] = {}
        self._width = 1
        """Rows of a place."""
        self._newest = (0, -1)

    def take(
        self, said: Said, signals: Mapping[str, float], expected: Iterable[tuple[str, str, Expectation]] = ()
    ) -> None:
        """A row, and what was expected before it came. One that was judged by nobody is passed over."""
        if not said.judged:
            return
        self._place(said)
        place = len(self.steps) - 1
        for name, value in signals.items():
            trace = self.traces.get(name)
            if trace is None:
                if len(self.traces) >= MOST_SIGNALS:
                    continue
                trace = self.traces[name] = Trace()
            if math.isfinite(value):
                trace.add(place, value)
            elif len(trace.lost) < MOST_LOST:
                trace.lost.append((said.attempt, said.step))
        for detector, signal, expectation in expected:
            if signal in self.traces:
                self.bands.setdefault((detector, signal), Band()).add(place, expectation)
        for verdict in said.verdicts:
            self._note(verdict, said.attempt)

    def _place(self, said: Said) -> None:
        if (said.attempt, said.step) == self._newest:
            return  # a second part of the step
        self._newest = (said.attempt, said.step)
        self.first = min(self.first, said.step) if self.rows else said.step
        self.last = max(self.last, said.step)
        if said.attempt not in self.starts and len(self.starts) < MOST_STARTS:
            self.starts[said.attempt] = said.step
        if self.rows % self._width == 0:
            if len(self.steps) == MOST_PLACES:
                self._halve()
            self.steps.append(said.step)
            self.attempts.append(said.attempt)
        self.rows += 1

    def _halve(self) -> None:
        self._width *= 2
        self.steps, self.attempts = self.steps[::2], self.attempts[::2]
        for trace in self.traces.values():
            trace.halve()
        for band in self.bands.values():
            band.halve()

    def _note(self, verdict: Verdict, attempt: int) -> None:
        key = (verdict.detector, verdict.signal)
        episode = self._open.get(key)
        if episode is not None and episode.attempt == attempt and verdict.step - episode.last <= EPISODE_GAP:
            episode.take(verdict)
            return
        if len(self.episodes) >= MOST_EPISODES and verdict.severity is Severity.INFO:
            return
        episode = Episode(
            *key, attempt, verdict.onset, verdict.step, verdict.step, verdict.severity, worst_said=verdict.step
        )
        if verdict.forecast is not None:
            episode.forecasts.append((verdict.step, verdict.forecast))
        self._open[key] = episode
        if len(self.episodes) < 2 * MOST_EPISODES:
            self.episodes.append(episode)


class Charts:
    """The charts of all runs that are replayed; of the first :data:`MOST_CHARTS`, for each takes some megabytes."""

    def __init__(self) -> None:
        self._charts: dict[tuple[int, str], Chart] = {}
        self.left_out: set[tuple[int, str]] = set()

    def __iter__(self) -> Iterator[Chart]:
        """Those with something in them, in the order in which their runs began."""
        return (chart for chart in self._charts.values() if chart.traces)

    def of(self, number: int, path: Path, run: str) -> Chart | None:
        """The chart of a run in the file that was given as ``number``; None where there are too many."""
        chart = self._charts.get((number, run))
        if chart is None:
            if len(self._charts) >= MOST_CHARTS:
                self.left_out.add((number, run))
                return None
            chart = self._charts[(number, run)] = Chart(path, run)
        return chart
