"""Who may approve a recovery, and when enough people have. Pure; called by the engine."""

from __future__ import annotations

import unicodedata

from msgspec.structs import replace

from exporter.recovery import progress as stages
from exporter.recovery.record import Approval, Recovery


class WrongStage(ValueError):
    """An operator asked for what the recovery's stage, or its policy, does not allow; the message is a sentence."""


def approved(recovery: Recovery, who: str, now: float) -> Recovery:
    """The record with one more approval, and commanded where it is the last that was needed.

    Raises :class:`WrongStage` for somebody whom the policy does not name, or who has approved it before.
    """
    if recovery.approvers and who not in recovery.approvers:
        names = ", ".join(recovery.approvers)
        raise WrongStage(
            f"Recovery {recovery.id} is on the {recovery.rung} rung, and {who} may not approve that: it is for {names}."
        )
    if any(_same_person(one.who, who) for one in recovery.approvals):
        missing = recovery.approvals_needed - len(recovery.approvals)
        raise WrongStage(f"{who} has approved recovery {recovery.id} before; it waits for {missing} more, of others.")
    approvals = (*recovery.approvals, Approval(who=who, at=now))
    new = replace(recovery, approvals=approvals)
    if len(approvals) < recovery.approvals_needed:
        return new
    everybody = ", ".join(one.who for one in approvals)
    new = stages.at_times(replace(new, resolved_by=everybody), approved=now, commanded=now)
    return stages.to_stage(new, "commanded", now)


def asked_anew(old: Recovery, new: Recovery, now: float) -> Recovery:
    """The record whose plan was made anew. What people had approved was the plan before: they are asked again."""
    if new.mode != "approve" or new.what_is_done == old.what_is_done:
        return new
    times = replace(new.times, approved=None, commanded=None)
    waits = replace(new, approvals=(), resolved_by="", not_before=0.0, times=times)
    return stages.to_stage(waits, "awaiting_approval", now)


def _same_person(one: str, other: str) -> bool:
    """Whether two names are of one person, who may write it with a capital at one time and without at another."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
