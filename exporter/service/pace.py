"""How fast a run goes and when it will be done. Called by exposition and the console.

What counts is the time from step to step, for validation and checkpoints take their part of it; but steps that waited
in a sender's spool arrive at once, so the trainer's own duration of a step is the least that one is taken to last.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from exporter.service.recent import RecentSteps
from exporter.service.state import RunState

STEPS: Final = 20
"""Steps back that the pace is taken over."""
FEWEST: Final = 3
"""Steps below which there is none: the first of an attempt is slow."""


def seconds_a_step(recent: RecentSteps, attempt: int) -> float | None:
    """Seconds from step to step of late; None while too few are known.

    >>> recent = RecentSteps()
    >>> for step in range(1, 6):
    ...     recent.append(step, 1, 1000.0 + 12.0 * step, {"step_time": 10.0})
    >>> seconds_a_step(recent, 1), seconds_a_step(recent, 2)
    (12.0, None)
    """
    rows = recent.newest(STEPS + 1, "step_time")
    newest = rows[0] if rows else None
    oldest, durations = newest, []
    for row in rows[1:]:
        if row.attempt != attempt or oldest is None or row.step >= oldest.step:
            break
        durations.append(oldest.value)
        oldest = row
    if newest is None or oldest is None or newest.attempt != attempt or newest.step - oldest.step < FEWEST:
        return None
    told = [seconds for seconds in durations if seconds is not None and 0.0 <= seconds < float("inf")]
    between = (newest.at - oldest.at) / (newest.step - oldest.step)
    return max(between, median(told) if told else 0.0, 0.0)


def seconds_to_end(state: RunState, a_step: float | None, now: float) -> float | None:
    """Seconds to the last step that is planned; None where that, or the pace, is not known, or the run has ended.

    ``a_step``: of :func:`seconds_a_step`, which changes once a step. What the step in progress has taken so far is
    taken off, up to what a step takes.
    """
    planned, current = state.setup.total_steps, state.current
    if planned is None or current is None or a_step is None or not state.running:
        return None
    left = (planned - current) * a_step - min(max(0.0, now - state.recent.newest_at()), a_step)
    return max(0.0, left)
