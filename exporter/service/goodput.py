"""Where the time of a run went: steps that brought it forward, and what was lost. Part of the run's state.

``productive``: seconds of steps that were done for the first time. Lost are

- ``replayed``: seconds of steps whose number had been done before (a resume from an older checkpoint);
- ``restart``: from the last step of one trainer to the beginning of the first step of the next, whatever the reason and
  however long nobody started it, with the step that was cut short;
- ``stall``: what a step, a save, a validation or the pause between steps took beyond :data:`FACTOR` times its usual.

``other`` is the rest of the time in which the run was alive: its first start, validation and saving outside of steps,
what verl does between steps. The five add up to the run's wall time from its first sign of life to the newest step, so
the effective training time ratio is ``productive`` over their sum.

Three clocks tell the time, and each is taken for what it knows. A step's own duration is the trainer's monotonic clock:
it counts, up to a day. Time *between* two steps is told by the sender's clock, for batches that were spooled arrive all
at once; but its hands may be moved, so nothing is lost that the exporter's clock has not seen pass, too, and nothing is
negative. Time by the sender's clock alone makes a step of SFT, which has no timer, as long as is usual, and no longer.

Effective training time ratio: A. Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research
Clusters, HPCA 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeGuard

from exporter.service.sequences import Sequences

FACTOR = 3.0
"""Times the usual duration that are still no stall."""
FLOOR_SECONDS = 10.0
"""What is shorter is no stall."""
LONGEST_STEP = 86_400.0
"""A step that says it took longer says nothing."""
MAX_RANGES = 64
"""Gaps in the numbers of steps that are remembered; of more, the oldest count as done."""
_WINDOW = 9


def note(steps: Sequences, number: int) -> bool:
    """Add a step to those that were done; whether it is the first time."""
    first = steps.add(number)
    while len(steps.above) > MAX_RANGES:
        steps.upto = steps.above.pop(0)[1]
    return first


@dataclass(slots=True)
class Usual:
    """How long something usually takes: the median of the newest few."""

    newest: list[float] = field(default_factory=list)
    limit: float = inf
    """The longest duration that is no stall; without end while nothing is known."""

    def learn(self, seconds: float) -> None:
        self.newest.append(seconds)
        if len(self.newest) > _WINDOW:
            del self.newest[0]
        self.limit = max(FLOOR_SECONDS, FACTOR * sorted(self.newest)[len(self.newest) // 2])

    def beyond(self, seconds: float) -> float:
        """What a duration has beyond the limit."""
        return seconds - self.limit if seconds > self.limit else 0.0


@dataclass(slots=True)
class Goodput:
    """Seconds of one run, over all its attempts; the five totals only grow.

    >>> run = Goodput()
    >>> run.began(at=1000.0)
    >>> for n in (1, 2, 3):
    ...     run.step(n, at=1060.0 + 10 * n, seconds=10.0)
    >>> run.ended(at=1095.0)                                          # killed in step 4
    >>> run.began(at=1095.0)
    >>> run.step(3, at=1160.0, seconds=10.0)                          # from the checkpoint of step 2
    >>> run.step(4, at=1370.0, seconds=210.0)                         # a step that hung
    >>> run.other, run.productive, run.restart, run.replayed, run.stall
    (60.0, 60.0, 60.0, 10.0, 180.0)
    >>> run.wall() == 1370.0 - 1000.0
    True
    """

    productive: float = 0.0
    replayed: float = 0.0
    restart: float = 0.0
    stall: float = 0.0
    other: float = 0.0
    done: Sequences = field(default_factory=Sequences)
    """Steps that were done."""
    until: float = 0.0
    """Everything before is in the totals; Unix seconds of the exporter's clock, 0 before the first sign of life."""
    said: float = 0.0
    """When that was by the clock of who said it; 0 where nobody did."""
    starting: bool = False
    """No step of the trainer that runs has been seen."""
    first_start: bool = True
    timed: bool = False
    """The newest step had a timer of its own."""
    down: bool = False
    """The trainer has ended, and no other has begun."""
    counted: float = 0.0
    """Seconds after ``until`` that are in ``stall`` already."""
    owed: float = 0.0
    """Seconds that were called lost and turned out to be of steps that came late: the next losses pay for them."""
    paused: float = 0.0
    """Saves and validations that ended since the last step, by the heartbeats."""
    steps: Usual = field(default_factory=Usual)
    pauses: Usual = field(default_factory=Usual)
    """Saves and validations, which are slow every time."""

    def wall(self) -> float:
        """Seconds that are accounted for."""
        return self.productive + self.replayed + self.restart + self.stall + self.other

    def spent(self) -> dict[str, float]:
        """The five totals by the names that people see."""
        return {
            "productive": self.productive,
            "replay": self.replayed,
            "restart": self.restart,
            "stall": self.stall,
            "other": self.other,
        }

    def began(self, at: float) -> None:
        """A trainer begins."""
        self._turn()
        if self.until:
            self.first_start = False
        else:
            self.until = at
        self.starting = True
        self.down = False
        self.paused = 0.0

    def step(
        self,
        number: int,
        at: float,
        *,
        said: float = 0.0,
        seconds: float | None = None,
        pause: float = 0.0,
        validated: bool = False,
    ) -> None:
        """A training step was logged.

        Args:
            number: of the step.
            at: when it arrived, by the exporter's clock.
            said: when it was logged, by the trainer's clock; 0 where it does not say.
            seconds: its duration by the trainer's own timer, None where it has none.
            pause: seconds that it saved and validated, inside of the step or after it.
            validated: something in it is validation.
        """
        if self.down and not self.starting:
            # What the trainer had not sent when it was seen to end.
            self.late(number, seconds, said - self.said if self.said else 0.0)
            return
        passed = self._passed(at)
        between = self._between(said, passed)
        pause = pause if 0.0 <= pause <= LONGEST_STEP else 0.0
        self.timed = is_duration(seconds)
        if not is_duration(seconds):
            pause += self.paused
            seconds = self._untimed(passed, between, pause)
        self.paused = 0.0
        gap = max(0.0, min(between, passed) - seconds)
        inside = min(pause, seconds) if gap < 0.5 * pause else 0.0
        alone = seconds - inside
        beyond = 0.0 if self.starting else self.steps.beyond(alone)
        gap_beyond = 0.0
        if pause > 0.0:
            if inside:
                beyond += self.pauses.beyond(pause)
            else:
                gap_beyond = min(gap, self.pauses.beyond(pause))
            self.pauses.learn(pause)
        beyond = min(beyond, seconds)
        if not self.starting and not validated:
            gap_beyond = min(gap, gap_beyond + self.steps.beyond(gap - pause))
        if not self.starting:
            self.steps.learn(alone)
        self._add_step(number, max(0.0, seconds - max(beyond, self.counted)))
        # A heartbeat that had called more of it stalled than it took was wrong: what is lost now pays for that first.
        self._owe(max(0.0, self.counted - seconds))
        self._lose("stall", max(0.0, min(beyond, passed) - self.counted) + gap_beyond)
        self._lose("restart" if self.starting and not self.first_start else "other", gap - gap_beyond)
        self._owe(max(0.0, seconds - passed))
        self._settle(at, said, seconds + gap)
        self.starting = self.first_start = False

    def part(self, at: float, *, said: float = 0.0) -> None:
        """A further part of the newest step: the trainer has validated since."""
        if self.starting or self.down:
            return
        self._turn()
        passed = self._passed(at)
        seconds = min(self._between(said, passed), passed)
        beyond = self.pauses.beyond(seconds)
        if seconds > 1.0:
            self.pauses.learn(seconds)
        self._lose("stall", beyond)
        self._lose("other", seconds - beyond)
        self._settle(at, said, seconds)

    def late(self, number: int, seconds: float | None, between: float = 0.0) -> None:
        """A step came after a newer one, or after its trainer was gone: what it took had been called lost.

        ``between``: seconds since the step before it, by the trainer's clock, for a step that has no timer.
        """
        taken = seconds if is_duration(seconds) else min(max(0.0, between), self._usual())
        self._add_step(number, taken)
        self._owe(taken)

    def pause_ended(self, seconds: float) -> None:
        """The trainer says that a save or a validation has ended."""
        self.paused = min(self.paused + seconds, LONGEST_STEP)

    def beat(self, at: float, *, age: float, pause: float = 0.0) -> None:
        """The trainer says that its step has been open for ``age`` seconds, and a save or validation for ``pause``.

        Of one without timers (SFT) it is not known whether it validates: there the next log tells.
        """
        if self.starting or self.down or not self.timed or not self.steps.newest:
            return
        beyond = self.steps.beyond(age - pause - self.paused) + self.pauses.beyond(pause)
        beyond = min(beyond, self._passed(at))
        if beyond > self.counted:
            self._lose("stall", beyond - self.counted)
            self.counted = beyond

    def ended(self, at: float, *, said: float = 0.0, clean: bool = False) -> None:
        """The trainer ended; ``clean``: with success, so that what it did since its last step was not cut short."""
        if self.down:
            return
        self.down = True
        if self.starting and not self.first_start:
            return
        self._turn()
        passed = self._passed(at)
        seconds = min(self._between(said, passed), passed)
        beyond = 0.0 if clean or self.starting else self.steps.beyond(seconds)
        self._lose("stall", beyond)
        self._lose("other" if clean or self.starting else "restart", seconds - beyond)
        self._settle(at, said, seconds)

    def _untimed(self, passed: float, between: float, pause: float) -> float:
        """How long a step without a timer took: what the exporter's clock has seen, and else no more than is usual."""
        if self.starting:
            return 0.0
        return min(between, max(passed, self._usual() + pause))

    def _usual(self) -> float:
        return self.steps.limit if self.steps.newest else FLOOR_SECONDS

    def _add_step(self, number: int, seconds: float) -> None:
        if note(self.done, number):
            self.productive += seconds
        else:
            self.replayed += seconds

    def _lose(self, kind: Literal["restart", "stall", "other"], seconds: float) -> None:
        if seconds <= 0.0:
            return
        paid = min(self.owed, seconds)
        self.owed -= paid
        setattr(self, kind, getattr(self, kind) + (seconds - paid))

    def _owe(self, seconds: float) -> None:
        self.owed = min(self.owed + seconds, self.restart + self.stall + self.other)

    def _passed(self, at: float) -> float:
        """Seconds of the exporter's clock that are in no total yet."""
        if not self.until or at < self.until:
            # The first sign of life, or the exporter's clock was set back.
            self.until = at
        return at - self.until

    def _between(self, said: float, passed: float) -> float:
        """Seconds since the newest total: by the sender's clock, where it says something that can be."""
        return said - self.said if 0.0 < self.said <= said < inf else passed

    def _turn(self) -> None:
        """What is in ``stall`` of the step that is open lies behind: it does not end any more, or has been logged."""
        self.until += self.counted
        self.said += self.counted if self.said else 0.0
        self.counted = 0.0

    def _settle(self, at: float, said: float, seconds: float) -> None:
        """The next total begins here; without the sender's clock, at the arrival."""
        told = 0.0 < said < inf
        self.until = min(at, self.until + seconds) if told else at
        self.said = said if told else 0.0
        self.counted = 0.0


def is_duration(seconds: float | None) -> TypeGuard[float]:
    """Whether a step may have taken that long: a finite number from 0 to a day."""
    return seconds is not None and 0.0 <= seconds <= LONGEST_STEP
