"""Third stage of a decision: what the run's earlier recoveries allow, and where the ladder stands for this failure.
Pure; called by :mod:`exporter.recovery.plan` and :mod:`exporter.recovery.climbing`.

An *episode* is one failure and all recoveries from it. It goes on while the one before has failed and nobody has taken
note, or when the same failure comes back within ``no_progress_steps`` after one has succeeded. Within an episode the
ladder is only climbed; a rung is tried again only where it was not disproved (the new attempt died, or the supervisor
could not carry it out), and not more often than the policy says. An acknowledgement, an attempt that a person has
started, and progress each end an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exporter.coupling import Place, hang_together, place
from exporter.protocol import Rung
from exporter.recovery.facts import OpenIncident, RunFacts
from exporter.recovery.policy import DAY_SECONDS, RecoveryPolicy
from exporter.recovery.record import DISPROVED, Recovery, StageResult
from exporter.recovery.rung_settings import RUNGS


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the ladder stands."""

    above: int
    """Index in the ladder of the first rung that may be taken."""
    why: str = ""
    """What became of those before it, for a person."""
    previous: Recovery | None = None
    """The newest recovery of the episode; None where this failure begins one."""
    came_back: bool = False
    """The previous one had succeeded, and the same failure is back."""

    @property
    def episode(self) -> str:
        return "" if self.previous is None else self.previous.episode or self.previous.id

    def result(self, spent: int, policy: RecoveryPolicy) -> StageResult:
        """What goes into the record."""
        budget = f"{spent} of {policy.budget_per_day} recoveries of 24 hours are used"
        if self.previous is None:
            return StageResult(stage="history", result=f"This failure begins an episode; {budget}.")
        said = f"It goes on with the episode of recovery {self.episode}: {self.why}; {budget}."
        return StageResult(stage="history", result=said)


def standing(
    evidence: Sequence[OpenIncident],
    facts: RunFacts,
    history: Sequence[Recovery],
    ladder: Sequence[Rung],
    policy: RecoveryPolicy,
) -> Standing:
    """Whether the failure goes on with an episode, and at which rung. ``history``: newest first."""
    previous = next((one for one in history if counts(one, policy) and _was_tried(one)), None)
    if previous is None or facts.attempt > previous.newest_attempt:
        return Standing(0)
    if previous.stage == "succeeded":
        if not _came_back(previous, evidence, facts, policy):
            return Standing(0)
        why = f"recovery {previous.id} had succeeded on the {previous.rung} rung, and the same failure is back"
        return Standing(next_rung(previous, history, ladder), why, previous, came_back=True)
    if previous.acknowledged_by:
        return Standing(0)
    if previous.failed_by == "ladder":
        why = f"its ladder had ended with recovery {previous.id}"
        return Standing(len(ladder), why, previous)
    again = previous.failed_by not in DISPROVED and tries(previous, history) < policy.tries_per_rung
    why = f"recovery {previous.id} failed on the {previous.rung} rung"
    return Standing(next_rung(previous, history, ladder, again=again), why, previous)


def next_rung(previous: Recovery, history: Sequence[Recovery], ladder: Sequence[Rung], *, again: bool = False) -> int:
    """Index of the first rung behind all that were tried in the episode; with ``again``, the newest of them may be
    tried once more. A rung that this ladder does not have counts where it stands in the whole one."""
    episode = previous.episode or previous.id
    tried = {one.rung for one in history if (one.episode or one.id) == episode and _was_tried(one)} | {previous.rung}
    if again:
        tried.discard(previous.rung)
    highest = max((RUNGS.index(rung) for rung in tried if rung not in ladder), default=-1)
    passed = [i for i, rung in enumerate(ladder) if rung in tried or RUNGS.index(rung) <= highest]
    return max(passed, default=-1) + 1


def _was_tried(recovery: Recovery) -> bool:
    """Whether it says where the ladder stands: what was refused or only observed does not, nor what was called off."""
    return recovery.stage in ("succeeded", "failed") or recovery.failed_by == "ladder"


def tries(recovery: Recovery, history: Sequence[Recovery]) -> int:
    """How often its rung was tried in its episode."""
    episode = recovery.episode or recovery.id
    return sum(
        one.rung == recovery.rung and _was_tried(one) and one.failed_by != "ladder"
        for one in history
        if (one.episode or one.id) == episode
    )


def _came_back(previous: Recovery, evidence: Sequence[OpenIncident], facts: RunFacts, policy: RecoveryPolicy) -> bool:
    """Whether the failure is the one that the previous recovery was from, and near enough behind its end."""
    if previous.action == "stop" or not policy.no_progress_steps or facts.attempt != previous.new_attempt:
        return False
    proved = previous.last_step or previous.resumed_from or 0
    before = [place(data["detector"], data["signal"]) for data in previous.incidents]
    return any(
        one.onset - proved <= policy.no_progress_steps
        and any(_one_failure(place(one.detector, one.signal), other) for other in before)
        for one in evidence
    )


_OF_TRAINING: Final = ("configuration", "optimisation", "length")


def _one_failure(one: Place, other: Place) -> bool:
    """Whether two findings may be of one failure that came twice.

    A collapse of the training shows in other signals the second time: first in the KL, then in the reward. A full
    memory, a slow step and a process that died are each a failure of their own.
    """
    if one.kind in _OF_TRAINING and other.kind in _OF_TRAINING:
        return hang_together(one.kind, other.kind)
    return one[:2] == other[:2]


def cooldown_left(history: Sequence[Recovery], policy: RecoveryPolicy, now: float) -> tuple[Recovery, float] | None:
    """The recovery whose end is too near, and the seconds that are left."""
    for recovery in history:
        if not counts(recovery, policy):
            continue
        # An end that lies further ahead than the cooldown is long was written before the clock was set back.
        if recovery.times.finished is not None and abs(now - recovery.times.finished) < policy.cooldown_seconds:
            return recovery, recovery.times.finished + policy.cooldown_seconds - now
    return None


def spent_times(history: Sequence[Recovery], policy: RecoveryPolicy) -> tuple[float, ...]:
    """When each recovery of a run was taken from its budget."""
    return tuple(at for recovery in history if counts(recovery, policy) and (at := spent_at(recovery)) is not None)


def spent_today(history: Sequence[Recovery], policy: RecoveryPolicy, now: float) -> int:
    """Recoveries of the last 24 hours."""
    return _spent_in_a_day(spent_times(history, policy), now)


def budget_left(spent: Sequence[float], policy: RecoveryPolicy, now: float) -> int:
    """Recoveries that the budget still allows; ``spent``: of :func:`spent_times`.

    >>> budget_left((1000.0, 90_000.0), RecoveryPolicy(budget_per_day=3), now=100_000.0)
    2
    """
    return max(0, policy.budget_per_day - _spent_in_a_day(spent, now))


def _spent_in_a_day(spent: Sequence[float], now: float) -> int:
    return sum(now - at < DAY_SECONDS for at in spent)


def counts(recovery: Recovery, policy: RecoveryPolicy) -> bool:
    """Whether the recovery stands in the way of another: what was only observed does not once the mode is another."""
    return recovery.mode != "observe" or not policy.acts


def spent_at(recovery: Recovery) -> float | None:
    """When the recovery took one from the budget, None if it never did (refused, or still waiting for approval)."""
    if recovery.stage == "aborted" and recovery.times.command_delivered is None:
        return None  # nothing was done
    return recovery.times.planned if recovery.stage == "observed" else recovery.times.commanded
