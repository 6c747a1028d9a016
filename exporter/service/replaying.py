"""Reading the journal at a start: every entry has its effect again, and live detectors see the time in between again.

Used by the core. Live detectors look once a second and remember what they saw; what they concluded is in the journal,
and their memory is not. So they are shown the same time again, in larger steps, without that in which no exporter was
there: an exporter that was down for an hour must not take a run for silent, and one that is killed every minute must
not take a silent run for one that it has just met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from exporter.service.entries import read_start
from exporter.service.keeping import Keeper
from exporter.service.roster import Roster
from exporter.service.stored import Entry
from exporter.service.watch import LOOK_SECONDS, WatchedRun

STEP_SECONDS = 10.0
"""Below what detectors take for a pause in which nobody looked."""

MOST_SECONDS = 1800.0
"""Of the time before an entry, as much is looked at again: no detector remembers more of a run that says nothing."""


class Replay:
    """One start.

    Args:
        roster: finds the runs.
        keeper: knows which entries are in a snapshot already.
        apply: gives an entry its effect.
    """

    def __init__(self, roster: Roster, keeper: Keeper, apply: Callable[[Entry], None]) -> None:
        self._roster = roster
        self._keeper = keeper
        self._apply = apply
        self._down: list[tuple[float, float]] = []
        """Times from and to in which no exporter was there, in order."""

    def through(self, entries: Iterable[Entry], watched: float) -> Iterator[int]:
        """Apply what no snapshot has; yields the position after each entry.

        ``watched`` is when the last exporter was there last, Unix seconds.
        """
        for entry in entries:
            if entry.kind == "start":
                self._down.append((read_start(entry).watched, entry.at))
            if not self._keeper.has(entry.run_id, entry.position):
                run = self._roster.find(entry.run_id)
                if run is not None:
                    self._look(run, entry.at)
                self._apply(entry)
                run = self._roster.runs.get(entry.run_id)
                if run is not None and not run.last_look:
                    run.look(entry.at)
            yield entry.position
        for run in list(self._roster.runs.values()):
            self._look(run, watched)
            yield self._keeper.applied

    def _look(self, run: WatchedRun, until: float) -> None:
        """Let the run's live detectors see the time from their last look on."""
        if not run.last_look or until - run.last_look < LOOK_SECONDS:
            return
        at = max(run.last_look, until - MOST_SECONDS)
        while at < until:
            at = min(self._after(at), until)
            run.look(at)

    def _after(self, at: float) -> float:
        """The next moment to look at: where nobody was there, the one at which somebody came back."""
        next_at = at + STEP_SECONDS
        for left, back in self._down:
            if at <= left < next_at:
                return left if at < left else max(back, at + LOOK_SECONDS)
            if left < at < back:
                return back
        return next_at
