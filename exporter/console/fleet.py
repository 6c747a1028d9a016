"""All runs as the list shows them: filtered, sorted, a page of them. Called by :mod:`exporter.console.runs_page`.

Of every run the list needs its state and how urgent it is; the rest is looked up for those that are shown. Both happen
between pushes, on the thread that changes the core.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from exporter.agreement import Situation, situation
from exporter.console.labels import STATES
from exporter.detectors.base import Severity
from exporter.service.core import Core
from exporter.service.pace import seconds_a_step, seconds_to_end
from exporter.service.recoveries import Recoveries
from exporter.service.run_state import run_state
from exporter.service.snapshot import RunSummary
from exporter.service.watch import WatchedRun

PAGE_RUNS: Final = 100
MOST_PROJECTS: Final = 200
"""Named in the filter."""

URGENCY: Final = {state: place for place, state in enumerate(STATES)}
ATTENTION: Final = ("awaiting_approval", "failed", "silent", "recovering")
"""States that the filter ``attention`` has in it, besides runs with something open that is critical."""


@dataclass(slots=True)
class Found:
    """One run, as far as filters and order need it."""

    run_id: str
    project: str
    experiment: str
    state: str
    critical: int
    """Open situations that are critical."""
    warning: int
    heard: float
    run: WatchedRun | None
    summary: RunSummary | None = None

    @property
    def needs_a_person(self) -> bool:
        # A run that is on disk only has left /metrics, too: nobody is called for it any more.
        return self.run is not None and (self.state in ATTENTION or self.critical > 0)

    @property
    def rank(self) -> tuple[int, int, int, float, str]:
        """The most urgent first."""
        return (
            0 if self.needs_a_person else 1 if self.warning else 2,
            URGENCY.get(self.state, len(URGENCY)),
            -self.critical,
            -self.heard,
            self.run_id,
        )


@dataclass(slots=True)
class Row:
    """One run in the list."""

    found: Found
    attempt: int = 0
    step: int | None = None
    planned: int | None = None
    step_age: float | None = None
    """Seconds since the newest step arrived."""
    phase: str = ""
    phase_age: float | None = None
    reward: float | None = None
    goodput: float | None = None
    """Share of the time that was spent on steps done for the first time."""
    eta: float | None = None
    situation: Situation | None = None
    """The worst that is open."""


@dataclass(slots=True)
class Wanted:
    """What the address asks for."""

    text: str = ""
    project: str = ""
    state: str = ""
    sort: str = "urgency"
    down: bool = False
    page: int = 1


@dataclass(slots=True)
class Fleet:
    """A page of runs."""

    rows: list[Row] = field(default_factory=list)
    total: int = 0
    matching: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Runs by state, and under ``attention`` those that need a person; whatever the filter for states is."""
    projects: list[str] = field(default_factory=list)
    page: int = 1
    pages: int = 1


def every_run(core: Core, recoveries: Recoveries, now: float) -> Iterator[Found]:
    """All runs that are known, in memory or on disk."""
    recoveries.refresh()
    for run_id, run in list(core.runs.items()):
        recovery = recoveries.of(run_id)
        open_ones = [group.severity for group in run.groups() if group.open] if any(True for _ in run.book) else []
        critical = sum(severity is Severity.CRITICAL for severity in open_ones)
        identity = run.state.identity
        yield Found(
            run_id=run_id,
            project=identity.project,
            experiment=identity.experiment,
            state=run_state(run, recovery.state if recovery is not None else None, now),
            critical=critical,
            warning=len(open_ones) - critical,
            heard=run.state.last_push,
            run=run,
        )
    for run_id, summary in list(core.roster.dormant.items()):
        yield Found(
            run_id=run_id,
            project=summary.project,
            experiment=summary.experiment,
            state=summary.run_state,
            critical=0,
            warning=0,
            heard=summary.last_push,
            run=None,
            summary=summary,
        )


def keys(found: Iterable[Found], wanted: Wanted) -> Iterator[Any]:
    """What each run is sorted by: some of it has to be worked out."""
    return map(ORDERS.get(wanted.sort, ORDERS["urgency"]), found)


def select(found: Sequence[Found], by: Sequence[Any], wanted: Wanted) -> Fleet:
    """The runs of a page, whose rows are still to be filled; ``by``: :func:`keys` of all that were found."""
    text = wanted.text.casefold()
    named = [
        (one, key)
        for one, key in zip(found, by, strict=True)
        if (not wanted.project or one.project == wanted.project)
        and (not text or text in f"{one.run_id}\n{one.project}\n{one.experiment}".casefold())
    ]
    counts = Counter(one.state for one, _ in named)
    counts["attention"] = sum(one.needs_a_person for one, _ in named)
    matching = [
        (one, key)
        for one, key in named
        if not wanted.state or one.state == wanted.state or (wanted.state == "attention" and one.needs_a_person)
    ]
    matching.sort(key=lambda both: both[0].rank)
    # What is not known comes last, whichever way it is sorted; what is alike stays in order of urgency.
    known = sorted((both for both in matching if both[1] is not None), key=lambda both: both[1], reverse=wanted.down)
    ordered = [one for one, _ in known] + [one for one, key in matching if key is None]
    pages = max(1, math.ceil(len(ordered) / PAGE_RUNS))
    page = min(max(1, wanted.page), pages)
    shown = ordered[(page - 1) * PAGE_RUNS : page * PAGE_RUNS]
    return Fleet(
        rows=[Row(one) for one in shown],
        total=len(found),
        matching=len(ordered),
        counts=counts,
        projects=sorted({one.project for one in found if one.project})[:MOST_PROJECTS],
        page=page,
        pages=pages,
    )


def fill(row: Row, now: float) -> Row:
    """Look up what the list shows of a run."""
    run, summary = row.found.run, row.found.summary
    if run is None:
        if summary is not None:
            row.attempt, row.step = summary.attempt, summary.step
        return row
    state = run.state
    row.attempt, row.step, row.planned = state.attempt, state.current, state.setup.total_steps
    row.step_age = _age(state.recent.newest_at() if len(state.recent) else 0.0, now)
    row.phase, row.phase_age = newest_phase(state.open_phases(now))
    row.reward = state.signals.get("reward")
    row.goodput = effective(state.goodput.spent())
    row.eta = _eta(run, now)
    open_ones = [group for group in run.groups() if group.open]
    if open_ones:
        row.situation = situation(max(open_ones, key=lambda group: (group.severity, group.incidents[0].said_at)))
    return row


def newest_phase(open_phases: Mapping[str, float]) -> tuple[str, float | None]:
    """What the trainer is at: the phase inside of the others, which is the youngest one."""
    if not open_phases:
        return "", None
    return min(open_phases.items(), key=lambda item: item[1])


def effective(spent: Mapping[str, float]) -> float | None:
    """The effective training time ratio; None while there is no time."""
    total = sum(spent.values())
    return spent.get("productive", 0.0) / total if total > 0 else None


def _age(at: float, now: float) -> float | None:
    return max(0.0, now - at) if at else None


def _eta(run: WatchedRun, now: float) -> float | None:
    return seconds_to_end(run.state, seconds_a_step(run.state.recent, run.state.attempt), now)


def _of_run(read: Callable[[WatchedRun], Any]) -> Callable[[Found], Any]:
    return lambda one: None if one.run is None else read(one.run)


ORDERS: Final[Mapping[str, Callable[[Found], Any]]] = {
    "urgency": lambda one: one.rank,
    "run": lambda one: one.run_id.casefold(),
    "project": lambda one: one.project.casefold() or None,
    "step": lambda one: one.run.state.current if one.run is not None else one.summary and one.summary.step,
    "heard": lambda one: one.heard or None,
    "reward": _of_run(lambda run: _finite(run.state.signals.get("reward"))),
    "goodput": _of_run(lambda run: effective(run.state.goodput.spent())),
    "eta": lambda one: None if one.run is None else _eta(one.run, one.heard),
    "situations": lambda one: (one.critical, one.warning) if one.critical or one.warning else None,
}
"""What the list can be sorted by."""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
