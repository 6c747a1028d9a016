"""The series of one run's recoveries. Called by the series of the run at every scrape."""

from __future__ import annotations

from typing import Protocol

from exporter.recovery.record import ACTIVE
from exporter.recovery.timing import stage_seconds
from exporter.service.exposition import families as f
from exporter.service.exposition.families import Family
from exporter.service.recoveries import RecoveryView


class Put(Protocol):
    """Adds a series of the run; ``values`` of its labels besides ``run``."""

    def __call__(self, family: Family, value: float, *values: str) -> None: ...


def put_recovery(put: Put, recovery: RecoveryView, now: float) -> None:
    """Most runs have had none: of those there are the three flags and the budget."""
    state = recovery.state
    put(f.RECOVERY_FAILED, int(state.failed))
    put(f.RECOVERY_AWAITING, int(state.awaiting_approval))
    put(f.RECOVERY_IN_PROGRESS, int(state.in_progress))
    put(f.RECOVERY_BUDGET, recovery.budget_left(now))
    for outcome, count in state.outcomes.items():
        if outcome not in ACTIVE:
            put(f.RECOVERIES, count, outcome)
    if state.last is not None:
        for stage, seconds in stage_seconds(state.last, now).items():
            put(f.RECOVERY_STAGE, seconds, stage)
        target = state.last.resumed_from
        if target is not None:
            put(f.RECOVERY_TARGET, target)
        put(f.RECOVERY_RUNG, 1, state.last.rung)
        put(f.RECOVERY_CLIMBED, int(bool(state.last.climbed_from)))
