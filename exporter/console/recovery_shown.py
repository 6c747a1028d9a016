"""A recovery as its page shows it: what it would do, how far it is, what may be decided. Used by
:mod:`exporter.console.recovery_page`; plain data, made of the record alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from exporter.console.languages import N_
from exporter.recovery.changes import RESUME_MODE, RESUME_PATH
from exporter.recovery.facts import Candidate
from exporter.recovery.record import Recovery
from exporter.recovery.timing import stage_seconds

STAGES: Final[Mapping[str, str]] = {
    "planned": N_("Planned"),
    "awaiting_approval": N_("Waits for approval"),
    "commanded": N_("Told to the supervisor"),
    "stopping": N_("Stopping"),
    "starting": N_("Starting"),
    "verifying": N_("Verifying"),
    "succeeded": N_("Succeeded"),
    "failed": N_("Failed"),
    "refused": N_("Refused"),
    "aborted": N_("Aborted"),
    "observed": N_("Only observed"),
}
STEPS: Final[Mapping[str, str]] = {
    "plan": N_("Plan"),
    "approval": N_("Approval"),
    "command": N_("Command"),
    "stop": N_("Stop"),
    "start": N_("Start"),
    "verify": N_("Verification"),
}
"""What a recovery goes through."""
MODES: Final[Mapping[str, str]] = {
    "observe": N_("observe: it is only written down"),
    "approve": N_("approve: a person decides"),
    "auto": N_("auto: it acts by itself"),
}
DIFFERENCES: Final[Mapping[str, str]] = {
    "attempt": N_("Attempt"),
    "first_step": N_("First step"),
    "verl_version": N_("verl version"),
    "left_out": N_("Left out"),
    "skip_steps": N_("Batches skipped"),
    RESUME_MODE: RESUME_MODE,
    RESUME_PATH: RESUME_PATH,
}
RUNGS: Final[Mapping[str, str]] = {
    "checkpoint": N_("checkpoint: go back to a sound one"),
    "config": N_("config: another configuration"),
    "version": N_("version: another verl"),
    "infra": N_("infra: leave a node or GPU out"),
    "person": N_("a person"),
}
"""Of the ladder, from the bottom."""
DONE: Final = ("succeeded", "failed", "refused", "aborted", "observed")

Decision = Literal["approve", "refuse", "abort", "acknowledge"]
DECISIONS: Final[Mapping[str, str]] = {
    "approve": N_("Approve"),
    "refuse": N_("Refuse"),
    "abort": N_("Abort"),
    "acknowledge": N_("Acknowledge"),
}

_STEP_OF_STAGE: Final = {
    "planned": "plan",
    "awaiting_approval": "approval",
    "commanded": "command",
    "stopping": "stop",
    "starting": "start",
    "verifying": "verify",
}


def may(recovery: Recovery) -> tuple[Decision, ...]:
    """What a person may decide now, what is most likely wanted first."""
    if recovery.stage == "awaiting_approval":
        return ("approve", "refuse")
    if recovery.active:
        return ("abort",)
    abort: tuple[Decision, ...] = ("abort",) if recovery.may_still_act else ()
    return ("acknowledge", *abort) if recovery.needs_a_person or recovery.holds_back else abort


@dataclass(frozen=True, slots=True)
class StepShown:
    """One entry of the timeline."""

    name: str
    state: Literal["done", "now", "broken", "todo", "left_out"]
    at: float | None = None
    seconds: float | None = None
    who: str = ""


def timeline(recovery: Recovery, now: float) -> list[StepShown]:
    """What it goes through, with times; the one in which it ended badly is ``broken``."""
    times, took = recovery.times, stage_seconds(recovery, now)
    began = {
        "plan": times.planned,
        "approval": times.planned if recovery.mode == "approve" else None,
        "command": times.commanded,
        "stop": times.stopping,
        "start": times.stopped if times.stopped is not None else times.starting,
        "verify": times.started,
    }
    names = [name for name in STEPS if name != "approval" or recovery.mode == "approve"]
    if recovery.action == "stop":
        names = [name for name in names if name not in ("start", "verify")]
    current = _STEP_OF_STAGE.get(recovery.stage)
    reached = [name for name in names if began[name] is not None]
    last = reached[-1] if reached else ""
    found = []
    for name in names:
        state: Literal["done", "now", "broken", "todo", "left_out"]
        if recovery.active and current in names:
            place = names.index(name) - names.index(current)
            state = "now" if place == 0 else "done" if place < 0 else "todo"
            if state == "done" and began[name] is None:
                state = "left_out"  # a trainer that had crashed is not stopped
        elif began[name] is None:
            state = "left_out"
        else:
            state = "broken" if name == last and recovery.stage in ("failed", "refused", "aborted") else "done"
        who = recovery.resolved_by if name == "approval" else ""
        found.append(StepShown(name, state, began[name], took.get(name), who))
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One checkpoint that was considered."""

    candidate: Candidate
    is_target: bool
    is_newer: bool


def choices(recovery: Recovery) -> list[Choice]:
    target = recovery.planned_target_step
    return [Choice(it, it.step == target, target is not None and it.step > target) for it in recovery.candidates]


def only_resumes(recovery: Recovery) -> bool:
    """Nothing but where it goes on is different in the next attempt."""
    mine = (RESUME_MODE, RESUME_PATH, "attempt", "first_step")
    return all(one.name in mine for one in recovery.changes)


def left_behind(recovery: Recovery) -> Sequence[int]:
    """Steps of the checkpoints that nothing resumes from any more after this recovery; the oldest first."""
    return sorted(choice.candidate.step for choice in choices(recovery) if choice.is_newer)


def trained_again(recovery: Recovery, step: int | None) -> tuple[int, int] | None:
    """First and last of the steps that are done once more; None where there are none, or where it is not known.

    ``step`` is where the failed attempt is by now, None where it is over.
    """
    target, at = recovery.planned_target_step, recovery.planned_at_step
    if target is None or at is None:
        return None
    last = at if step is None else max(at, step)
    return (target + 1, last) if last > target else None


def plan_of(recovery: Recovery) -> str:
    """What an approval would be for, in a few characters that a form can bring along."""
    return hashlib.sha256(msgspec.json.encode(recovery.what_is_done)).hexdigest()[:16]


def moved(
    recovery: Recovery, decision: str, stage: str, target: str, plan: str
) -> Literal["", "stage", "target", "plan"]:
    """Whether the recovery is another than the page showed on which somebody decided.

    ``target`` is the planned step as text, empty where there was none; ``plan`` is of :func:`plan_of`. Who aborts wants
    an end of it, however far it has come while the question was read: a supervisor goes from stage to stage within
    seconds.
    """
    if recovery.stage != stage and not (decision == "abort" and "abort" in may(recovery)):
        return "stage"
    planned = "" if recovery.planned_target_step is None else str(recovery.planned_target_step)
    if planned != target:
        return "target"
    return "plan" if decision == "approve" and plan != plan_of(recovery) else ""


def decided_already(recovery: Recovery, decision: str, who: str) -> bool:
    """The same person has just said the same: the second of two clicks."""
    if decision == "approve":
        return recovery.times.approved is not None and recovery.resolved_by == who
    if decision == "refuse":
        return recovery.stage == "refused" and recovery.resolved_by == who
    if decision == "abort":
        return recovery.aborted_by == who
    return recovery.acknowledged_by == who


def sure(confidence: float) -> float:
    """Rounded down to a hundredth, as in a situation's headline: only what is certain has a confidence of 100 %.

    >>> sure(0.9996), sure(1.0)
    (0.99, 1.0)
    """
    return math.floor(confidence * 100) / 100 if math.isfinite(confidence) else confidence
