"""How long the phases of a run take, summed: ``verl_phase_duration_seconds``. Part of the run's state.

Two sources tell the same durations. verl logs its timers with the step (``timing_s/gen`` …); these are spooled while
the exporter is away, and nothing of them is lost. The plugin's heartbeat carries the phases that closed; these come
from every trainer that has phases, also from SFT, which logs no timers, and are not kept while the exporter is away.
One trainer's durations are taken from one source only: from the steps where they have timers, else from the
heartbeats. A heartbeat comes before the step that tells which it is, so what it brings waits until the first training
step, or until the trainer is gone.

With timers the count is of steps that had the phase, with heartbeats of the times that it ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_PHASES = 64
"""Of one run; each is two series in ``/metrics``. verl has about twenty."""

MAX_SECONDS = 30 * 86_400.0
"""What is longer is no duration of a phase."""

STEPS = "steps"
HEARTBEATS = "heartbeats"


@dataclass(slots=True)
class PhaseTotal:
    """Durations of one phase: how many, and their sum in seconds."""

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class PhaseTimes:
    """All phases of a run, over all attempts.

    >>> times = PhaseTimes()
    >>> times.closed("gen", 2.0)             # of the heartbeat: waits
    >>> times.logged([("gen", "timing_s/gen")], {"timing_s/gen": 2.0})
    >>> # The step has timers: they count, and what waits does not.
    >>> times.closed("gen", 3.0)
    >>> times.totals
    {'gen': PhaseTotal(count=1, seconds=2.0)}
    >>> times.new_trainer()
    >>> times.closed("step", 0.5)
    >>> times.logged([], {})                 # SFT: no timers
    >>> times.totals["step"]
    PhaseTotal(count=1, seconds=0.5)
    """

    totals: dict[str, PhaseTotal] = field(default_factory=dict)
    left_out: int = 0
    """Durations that are in no total: of one phase too many, or no number of seconds."""
    source: str = ""
    """Of the trainer that runs: ``steps``, ``heartbeats``, or empty while nobody knows."""
    waiting: dict[str, PhaseTotal] = field(default_factory=dict)

    def closed(self, name: str, seconds: float) -> None:
        """A heartbeat says that a phase ended."""
        if self.source == HEARTBEATS:
            self._add(self.totals, name, 1, seconds)
        elif not self.source:
            self._add(self.waiting, name, 1, seconds)

    def logged(self, timers: Sequence[tuple[str, str]], metrics: Mapping[str, float]) -> None:
        """The trainer logged the first part of a training step; ``timers``: phases and their keys in ``metrics``."""
        for name, key in timers:
            seconds, total = metrics[key], self.totals.get(name)
            if total is not None and 0.0 <= seconds <= MAX_SECONDS:
                total.count += 1
                total.seconds += seconds
            else:
                self._add(self.totals, name, 1, seconds)
        if timers:
            self.source = STEPS
            if self.waiting:
                self.waiting.clear()
        elif not self.source:
            self.source = HEARTBEATS
            self._take_waiting()

    def new_trainer(self) -> None:
        """Another trainer begins. One that logged no step has told its phases by heartbeat alone."""
        self._take_waiting()
        self.source = ""

    def _take_waiting(self) -> None:
        for name, total in self.waiting.items():
            self._add(self.totals, name, total.count, total.seconds)
        self.waiting.clear()

    def _add(self, totals: dict[str, PhaseTotal], name: str, count: int, seconds: float) -> None:
        total = totals.get(name)
        if not 0.0 <= seconds <= MAX_SECONDS * count or (total is None and len(totals) >= MAX_PHASES):
            self.left_out += count
            return
        if total is None:
            total = totals[name] = PhaseTotal()
        total.count += count
        total.seconds += seconds
