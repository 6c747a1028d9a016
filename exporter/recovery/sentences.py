"""Kind and sentence of an audit line: what a change of a recovery's record means for a person. Called by the engine.

The numbers are in the line's data; here is what happened, in the words of somebody who tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporter.recovery.record import Recovery


def kind(old: Recovery, new: Recovery) -> str:
    """What happened: what a person decided, what was reported on a recovery that is over, else its stage."""
    if new.acknowledged_by and new.acknowledged_by != old.acknowledged_by:
        return "acknowledged"
    if len(new.approvals) > len(old.approvals) or (new.stage == "commanded" and new.resolved_by != old.resolved_by):
        return "approved"
    if len(new.proofs) and new.proofs != old.proofs and new.stage == old.stage:
        return "setting_proved" if new.proofs[-1].ok else "setting_not_applied"
    if old.stage == new.stage == "aborted":
        return "abort_overdue" if new.abort_overdue and not old.abort_overdue else "abort_reported"
    if old.stage == new.stage == "failed":
        return "late_report"
    return new.stage


def summary(old: Recovery, new: Recovery, changed: Mapping[str, Any]) -> str:
    """``changed``: of :func:`exporter.recovery.record.difference`."""
    if new.acknowledged_by and new.acknowledged_by != old.acknowledged_by:
        return f"{new.acknowledged_by} acknowledged it."
    if "outcome" in changed:
        return new.outcome
    if new.stage == "aborted" and new.abort_answered != old.abort_answered:
        return "The supervisor has answered the abort."
    times = changed.get("times", {})
    if len(new.approvals) > len(old.approvals) and new.stage == old.stage:
        left = new.approvals_needed - len(new.approvals)
        return f"{new.approvals[-1].who} approved it; {left} more approval{'' if left == 1 else 's'} needed."
    if new.proofs and new.proofs != old.proofs and new.stage == old.stage:
        it = new.proofs[-1]
        return f"{it.name} = {it.wanted} is {'in effect' if it.ok else f'not in effect: {it.reason}'}."
    if new.stage == "awaiting_approval" and (old.stage != new.stage or len(new.approvals) < len(old.approvals)):
        who = ", ".join(one.who for one in old.approvals)
        ask = f"{who} approved the one before, and it has to be approved again." if who else "It has to be approved."
        return f"The plan is another{_moved(old, new)}. {ask}"
    if new.stage != old.stage:
        return _entered(old, new)
    stage = new.stage.replace("_", " ")
    if moved := _moved(old, new):
        return f"Still {stage}{moved}."
    if "first_healthy_step" in times:
        return f"Step {new.first_healthy_step} is the first healthy step past the checkpoint."
    if new.progress != old.progress:
        return _progressed(new)
    if "command_delivered" in times:
        return "The command was handed to the supervisor."
    if new.healthy_steps < old.healthy_steps or new.unhealthy_steps > old.unhealthy_steps:
        return f"Step {new.last_step} is not healthy; healthy steps are counted anew."
    if new.new_attempt != old.new_attempt:
        return f"Attempt {new.new_attempt} was started."
    names = sorted({*changed, *times} - {"times"})
    return f"Still {stage}; new: {', '.join(names)}."


def _moved(old: Recovery, new: Recovery) -> str:
    """Where the target has moved to, behind the beginning of a sentence; empty where it has not moved."""
    if new.planned_target_step == old.planned_target_step:
        return ""
    target = "and none is left" if new.planned_target_step is None else f"to step {new.planned_target_step}"
    return f"; the target moved back from step {old.planned_target_step} {target}"


def _entered(old: Recovery, new: Recovery) -> str:
    if new.stage == "commanded" and new.resolved_by:
        return f"{new.resolved_by} approved it."
    if new.stage == "commanded" and old.stage == "planned":
        return "The wait before the climb is over."
    if new.stage == "stopping":
        return "The supervisor stops the trainer."
    if new.stage == "starting":
        gone = new.times.stopped is not None and old.times.stopped is None
        return "The trainer is stopped." if gone else _progressed(new)
    if new.stage == "verifying":
        which = "The new attempt" if new.new_attempt is None else f"Attempt {new.new_attempt}"
        return f"{which} was started{_where(new)}."
    return f"From {old.stage.replace('_', ' ')} to {new.stage.replace('_', ' ')}."


def _progressed(new: Recovery) -> str:
    return {
        "accepted": "The supervisor has taken the command.",
        "stopping": "The supervisor stops the trainer.",
        "stopped": "The trainer is stopped.",
        "starting": f"The supervisor starts the new attempt{_where(new)}.",
        "started": "The supervisor says that the new attempt runs.",
        "succeeded": "The supervisor has carried out the command.",
        "failed": "The supervisor could not carry out the command.",
    }[new.progress]


def _where(new: Recovery) -> str:
    return "" if new.target_step is None else f" from step {new.target_step}"
