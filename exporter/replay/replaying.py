"""Replays one file: its rows go to the past runs in it, what is left out is counted. Called by the command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exporter.detectors.base import Severity, Verdict
from exporter.follow.parsing import Garbage, LastStep
from exporter.replay.past_run import PastRun
from exporter.replay.recognised import READERS
from exporter.replay.rows import FileUnusable, Row
from exporter.signals import SIGNALS, plan_of
from exporter.signals.plans import PHASE_PREFIX

if TYPE_CHECKING:
    from exporter.replay.charts import Charts
    from exporter.replay.plans import Decision, PastPlans

MOST_KEYS: Final = 20_000
"""Unknown keys that are remembered."""
MOST_RUNS: Final = 200

_KNOWN: Final = frozenset(
    key for signal in SIGNALS.values() for spelling in signal.spellings for key in (spelling.key, spelling.minus)
)


@dataclass
class Keys:
    """Keys of all files that no signal is made of, in the order in which they came."""

    unknown: dict[str, None] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Take in the keys of a step.

        >>> keys = Keys()
        >>> keys.note({"actor/loss": 0.5, "timing_s/gen": 1.0, "val-core/x/mean@1": 0.5, "training/epoch": 0.0})
        >>> list(keys.unknown)
        ['training/epoch']
        """
        if self._seen.issuperset(metrics):
            return
        for key in metrics:
            if key not in self._seen and len(self._seen) < MOST_KEYS:
                self._seen.add(key)
                if not (key in _KNOWN or key.startswith(PHASE_PREFIX) or plan_of({key: 0.0}).validation):
                    self.unknown[key] = None


@dataclass(frozen=True, slots=True)
class Saying:
    """What one row led to, where it led to something."""

    run: str
    """Its name, where the file holds several runs."""
    attempt: int
    verdicts: Sequence[Verdict]
    news: Sequence[Verdict]
    """Those that are the first of an episode, or worse than what was said before."""
    decisions: Sequence[Decision] = ()
    """What recovery would have decided, where that was asked."""


@dataclass
class Replay:
    """One file.

    Args:
        number: the how-manieth of the files it is.
        path: the file, or a folder of TensorBoard's event files.
        form: a key of :data:`exporter.replay.recognised.READERS`.
        new_run: makes what judges a run, when its first row comes.
        keys: notes the keys.
        say: tells a person.
        charts: takes in what is to be drawn.
        new_plans: makes what asks the recovery's policy of a run.
    """

    number: int
    path: Path
    form: str
    new_run: Callable[[], PastRun]
    keys: Keys
    say: Callable[[str], None]
    charts: Charts | None = None
    new_plans: Callable[[], PastPlans] | None = None
    runs: dict[str, PastRun] = field(default_factory=dict)
    plans: dict[str, PastPlans] = field(default_factory=dict)
    rows: int = 0
    left_out: int = 0
    """Lines, records or entries that are no steps and should be."""
    values_left_out: int = 0
    first: int | None = None
    last: int = 0
    last_step: int | None = None
    """Of the whole training, where the file tells."""
    told: Counter[Severity] = field(default_factory=Counter)
    """Episodes, and their escalations, by severity."""

    def sayings(self) -> Iterator[Saying]:
        """What the rows lead to, in their order. Raises :class:`FileUnusable`, also where there is no step."""
        for found in READERS[self.form](self.path):
            if isinstance(found, Garbage):
                self.left_out += 1
                if self.left_out == 1:
                    self.say(f"A part of {self.path} is left out, and others may be without a word: {found.reason}.")
            elif isinstance(found, LastStep):
                self.last_step = found.step
                for run in self.runs.values():
                    run.told_last_step(found.step)
            else:
                self.values_left_out += found.left_out
                if found.metrics and (saying := self._take(found)) is not None:
                    yield saying
        if not self.rows:
            raise FileUnusable(f"{self.path} has no step that could be read as {self.form}.")

    def _take(self, row: Row) -> Saying | None:
        self.rows += 1
        self.first = row.step if self.first is None else min(self.first, row.step)
        self.last = max(self.last, row.step)
        self.keys.note(row.metrics)
        run = self.runs.get(row.run) or self._new(row.run)
        chart = None if self.charts is None else self.charts.of(self.number, self.path, row.run)
        expected = [] if chart is None else run.expected()
        said = run.take(row)
        if chart is not None:
            chart.take(said, run.signals(), expected)
        for verdict in said.news:
            self.told[verdict.severity] += 1
        decisions = self.plans[row.run].take(run, said) if self.plans else ()
        if said.verdicts or decisions:
            return Saying(row.run, said.attempt, said.verdicts, said.news, decisions)
        return None

    def _new(self, name: str) -> PastRun:
        if len(self.runs) >= MOST_RUNS:
            raise FileUnusable(f"{self.path} holds more than {MOST_RUNS} runs: give it in parts.")
        run = self.runs[name] = self.new_run()
        if self.last_step is not None:
            run.told_last_step(self.last_step)
        if self.new_plans is not None:
            self.plans[name] = self.new_plans()
        return run

    def sentence(self) -> str:
        """What was read and said, for a person, at the end."""
        runs, starts = len(self.runs), sum(run.attempts for run in self.runs.values())
        steps = sum(run.steps for run in self.runs.values())
        of = f" of {runs} runs" if runs > 1 else ""
        again = f", {starts - runs} restart{'' if starts - runs == 1 else 's'}" if starts > runs else ""
        out = [(self.left_out, "lines or records"), (self.values_left_out, "values that are no numbers")]
        left = ", ".join(f"{count} {what}" for count, what in out if count)
        pages, warnings, notes = (self.told[s] for s in (Severity.CRITICAL, Severity.WARNING, Severity.INFO))
        return (
            f"{self.path}: {steps} step{'' if steps == 1 else 's'}{of} ({self.first} to {self.last}){again} "
            f"read as {self.form}; critical: {pages}, warning: {warnings}, info: {notes}."
            + (f" Left out: {left}." if left else "")
        )
