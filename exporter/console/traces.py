"""The signals of one run over its steps, with what was expected of them. Used by :mod:`exporter.console.series`.

Memory has the newest steps of every run and no band of the past. Both are made again from the archive for a run that
somebody looks at: its steps go through fresh detectors of the same configuration, as they went when they arrived, and
what the detectors expected of a step is what they said before they saw it. Of a long run that is done for its newest
:data:`JUDGED_STEPS` steps; of those before there are the values alone. Kept while somebody looks, it goes on from there
with what memory has.

All of it happens on a thread, which lets others have the interpreter now and then.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from exporter.detectors.base import Expectation, Expecting, StepDetector, StepSample
from exporter.detectors.setup import RunSetup
from exporter.service.history import ArchivedStep
from exporter.service.recent import RecentStep
from exporter.signals.plans import Plans

JUDGED_STEPS: Final = 3000
MOST_ROWS: Final = 40_000
"""Of a longer run the oldest steps go."""
MOST_LOST: Final = 200
"""Values of one signal that are not finite and are shown as such: the newest."""
_DETECTORS_BYTES: Final = 512 * 1024
"""What the detectors of one run remember, generously."""
WORK_SECONDS: Final = 0.004
REST_SECONDS: Final = 0.002
"""After so much work the thread rests as long: who pushes must not notice that somebody looks."""

PHASES: Final = (
    "generation_time",
    "reward_time",
    "old_log_prob_time",
    "ref_time",
    "values_time",
    "adv_time",
    "update_critic_time",
    "update_actor_time",
    "weight_sync_time",
    "validation_time",
    "checkpoint_time",
)
"""Parts of a step, in the order in which they are stacked."""

CHARTS: Final[Sequence[tuple[str, ...]]] = (
    ("reward",),
    ("val_reward", "val_loss"),
    ("kl", "ppo_kl"),
    ("entropy",),
    ("grad_norm",),
    ("loss",),
    ("response_length",),
    ("clip_ratio", "pg_clipfrac"),
    ("rollout_kl", "rollout_k3_kl", "rollout_probs_diff", "rollout_log_ppl_diff"),
    ("step_time",),
    ("throughput", "tokens"),
    ("gpu_memory", "gpu_memory_allocated", "host_memory", "run_memory"),
)
"""One chart for each: of the first of these signals that the run has."""

KEPT: Final = frozenset(name for names in CHARTS for name in names) | frozenset(PHASES)


class Gap(Exception):
    """Memory does not go back as far as what is here: it has to be made anew."""


class Stopped(Exception):
    """Nobody waits for it any more."""


@dataclass(slots=True)
class Band:
    """What was expected of each row; NaN where nothing was."""

    expected: array[float] = field(default_factory=lambda: array("f"))
    lower: array[float] = field(default_factory=lambda: array("f"))
    upper: array[float] = field(default_factory=lambda: array("f"))

    def all(self) -> tuple[array[float], ...]:
        return self.expected, self.lower, self.upper


class Traces:
    """One run.

    Args:
        detectors: its step detectors, fresh.
        setup: what is known of its configuration and machine.
        trainer: the kind of trainer, for the spelling of its metrics.
        resumes: attempt to the step that it was resumed from, where that is known.
        stopped: whether nobody waits any more, because the exporter ends.
    """

    def __init__(
        self,
        detectors: Sequence[StepDetector],
        setup: RunSetup,
        trainer: str,
        resumes: Mapping[int, int | None],
        stopped: Callable[[], bool] = bool,
    ) -> None:
        self._detectors = detectors
        self._expecting = [detector for detector in detectors if isinstance(detector, Expecting)]
        self._setup = setup
        self._trainer = trainer
        self._resumes = resumes
        self._stopped = stopped
        self._plans = Plans()
        self._next: dict[str, Expectation] = {}
        self._sender = ""
        self._breath = time.perf_counter()
        self.steps: array[int] = array("q")
        self.attempts: array[int] = array("q")
        self.times: array[float] = array("d")
        self.values: dict[str, array[float]] = {}
        self.bands: dict[str, Band] = {}
        self.lost: dict[str, list[int]] = {}
        """Rows in which a signal was logged and was not finite."""
        self.starts: list[int] = []
        """Rows with which an attempt begins, or another trainer in it."""
        self.judged_from: int | None = None
        """First row that went through the detectors."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def bytes(self) -> int:
        """What it takes of memory, about."""
        columns = len(self.values) + 3 * len(self.bands)
        return _DETECTORS_BYTES + len(self) * (3 * 8 + 4 * columns)

    def now_known(self, setup: RunSetup, resumes: Mapping[int, int | None]) -> None:
        """A new attempt may have been configured anew."""
        self._setup, self._resumes = setup, resumes

    def read(self, parts: Iterator[ArchivedStep], steps_total: int) -> None:
        """Take all of the archive; ``steps_total``: how many the run has, about."""
        for part in parts:
            self._rest()
            signals = self._plans.of(part.metrics, self._trainer).signals(part.metrics, floats=True)
            judge = self.judged_from is not None or len(self) >= steps_total - JUDGED_STEPS
            self._take(part.step, part.attempt, part.at, signals, part.sender, judge)

    def go_on(self, newest: Sequence[RecentStep]) -> None:
        """Take what memory has that is newer; oldest first. Raises :class:`Gap`."""
        if len(self):
            last = (self.attempts[-1], self.steps[-1])
            place = next((n for n in reversed(range(len(newest))) if (newest[n].attempt, newest[n].step) == last), None)
            if place is None and newest and newest[0].at > self.times[-1]:
                raise Gap
            newest = newest[place:] if place is not None else ()
        for row in newest:
            self._rest()
            self._take(row.step, row.attempt, row.at, row.signals, self._sender, True)

    def _rest(self) -> None:
        if time.perf_counter() - self._breath > WORK_SECONDS:
            if self._stopped():
                raise Stopped
            time.sleep(REST_SECONDS)
            self._breath = time.perf_counter()

    def _take(self, step: int, attempt: int, at: float, signals: Mapping[str, float], sender: str, judge: bool) -> None:
        """One step, or a part of one. What comes late is judged by nobody, and not shown either."""
        last, known = len(self) - 1, len(self) > 0
        if known and attempt < self.attempts[last]:
            return
        same = known and attempt == self.attempts[last]
        if same and step == self.steps[last]:
            fresh = {n: v for n, v in signals.items() if n not in self.values or math.isnan(self.values[n][last])}
            self._put(last, fresh)
            if judge and fresh:
                self._judge(StepSample(step, attempt, at, fresh, self._setup))
            return
        if same and step < self.steps[last] and sender == self._sender:
            return
        begins = not same or step < self.steps[last]
        if begins:
            resumed = self._resumes.get(attempt) if not same else None
            if known:
                self._resumed(step - 1 if resumed is None else resumed, attempt)
            self.starts.append(len(self))
        self._sender = sender
        self._append(step, attempt, at, signals)
        if judge:
            if self.judged_from is None:
                self.judged_from = len(self) - 1
            self._judge(StepSample(step, attempt, at, signals, self._setup))

    def _append(self, step: int, attempt: int, at: float, signals: Mapping[str, float]) -> None:
        row = len(self)
        self.steps.append(step)
        self.attempts.append(attempt)
        self.times.append(at)
        for column in self.values.values():
            column.append(math.nan)
        for name, band in self.bands.items():
            expectation = self._next.get(name)
            found = (math.nan,) * 3 if expectation is None else (expectation[0], expectation[1], expectation[2])
            for column, value in zip(band.all(), found, strict=True):
                column.append(_single(value))
        for name in self._next.keys() - self.bands.keys():
            if name in KEPT:
                band = self.bands[name] = Band()
                for column, value in zip(band.all(), self._next[name], strict=True):
                    column.extend([math.nan] * row)
                    column.append(_single(value))
        self._put(row, signals)
        if len(self) > MOST_ROWS:
            self._forget(MOST_ROWS // 4)

    def _put(self, row: int, signals: Mapping[str, float]) -> None:
        for name, value in signals.items():
            if name not in KEPT:
                continue
            column = self.values.get(name)
            if column is None:
                column = self.values[name] = array("f", [math.nan]) * len(self)
            column[row] = single = _single(value)
            if math.isnan(single):
                lost = self.lost.setdefault(name, [])
                lost.append(row)
                del lost[:-MOST_LOST]

    def _judge(self, sample: StepSample) -> None:
        for detector in self._detectors:
            try:
                detector.observe(sample)
            except Exception:  # noqa: BLE001 - where it judges for real it is counted and logged
                continue
        self._expect()

    def _resumed(self, step: int, attempt: int) -> None:
        for detector in self._detectors:
            try:
                detector.resumed(step, attempt)
            except Exception:  # noqa: BLE001 - as in _judge
                continue
        self._expect()

    def _expect(self) -> None:
        self._next = expectations(self._expecting)

    def _forget(self, count: int) -> None:
        del self.steps[:count], self.attempts[:count], self.times[:count]
        for column in self.values.values():
            del column[:count]
        for band in self.bands.values():
            for column in band.all():
                del column[:count]
        self.lost = {name: [row - count for row in rows if row >= count] for name, rows in self.lost.items()}
        self.starts = [0, *(row - count for row in self.starts if row > count)]
        if self.judged_from is not None:
            self.judged_from = max(0, self.judged_from - count)

    def row_of(self, attempt: int, step: int) -> int | None:
        """The newest row of a step, or else of the nearest one before it in its attempt; its first row where the
        attempt began later, None where nothing of it is here."""
        nearest = first = None
        for begin, end in reversed(list(zip(self.starts, [*self.starts[1:], len(self)], strict=True))):
            if self.attempts[begin] != attempt:
                continue
            first = begin
            row = bisect_right(self.steps, step, begin, end) - 1
            if row < begin:
                continue
            if self.steps[row] == step:
                return row
            nearest = row if nearest is None else nearest
        return first if nearest is None else nearest


def expectations(expecting: Iterable[Expecting]) -> dict[str, Expectation]:
    """What detectors expect of the next step; of two that speak of one signal the first."""
    found: dict[str, Expectation] = {}
    for detector in expecting:
        try:
            found = {**detector.expected(), **found}
        except Exception:  # noqa: BLE001 - as in Traces._judge
            continue
    return found


def _single(value: float) -> float:
    """What a column keeps: NaN for what is not finite, or too large for it."""
    return value if abs(value) < 3e38 else math.nan
