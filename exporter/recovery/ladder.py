"""The ladder: which rungs a policy has, and which of them has something to do for this failure. Pure; called by
:mod:`exporter.recovery.plan` and :mod:`exporter.recovery.climbing`.

A rung is taken when it is not below where the failure stands already, the policy does more than observe it, and it
would make a difference: another checkpoint to go back to, a setting that changes, a version that ran healthy, a node to
leave out. What is passed over is kept with its reason. After the last one comes a person.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from exporter.protocol import Changes, Rung
from exporter.recovery.adjusting import healthy_attempts, new_config
from exporter.recovery.assessment import Assessment
from exporter.recovery.changes import OF_EVERY_ROLLBACK, Difference, changed_settings, left_out, other_version, skipped
from exporter.recovery.facts import AttemptFacts, Candidate, RunFacts
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import ConsideredRung, Recovery


@dataclass(frozen=True, slots=True)
class Step:
    """What one rung would do."""

    reason: str
    """Why it is taken or not."""
    changes: Changes | None = None
    """What the command would carry; None where the rung has nothing to do."""
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The rung that is taken; None where the ladder ends with a person."""

    considered: tuple[ConsideredRung, ...]
    rung: Rung | None = None
    step: Step | None = None


def choose(
    ladder: Sequence[Rung],
    above: int,
    facts: RunFacts,
    assessment: Assessment,
    policy: RecoveryPolicy,
    *,
    why_above: str = "",
    previous: Recovery | None = None,
) -> Choice:
    """The first rung at or behind ``above`` in the ladder that has something to do.

    ``why_above`` says what became of those before it, the newest of which is ``previous``. The assessment has a target.
    """
    considered: list[ConsideredRung] = []
    for index, rung in enumerate(ladder):
        if index < above:
            considered.append(ConsideredRung(rung=rung, taken=False, reason=why_above))
            continue
        step = look_at(rung, facts, assessment, policy)
        if step.changes is None and previous is not None and previous.rung == rung:
            step = _once_more(previous, facts, assessment, policy) or step
        if step.changes is None:
            considered.append(ConsideredRung(rung=rung, taken=False, reason=step.reason))
        elif policy.acts_on(tuple(ladder)) and policy.mode_of(rung) == "observe":
            reason = f"the policy only observes this rung; it would be taken: {step.reason}"
            considered.append(ConsideredRung(rung=rung, taken=False, reason=reason))
        else:
            considered.append(ConsideredRung(rung=rung, taken=True, reason=step.reason))
            return Choice(tuple(considered), rung, step)
    end = "no rung of the ladder is left that has something to do"
    considered.append(ConsideredRung(rung="person", taken=True, reason=end))
    return Choice(tuple(considered))


def look_at(rung: Rung, facts: RunFacts, assessment: Assessment, policy: RecoveryPolicy) -> Step:
    """What a rung would do now. Each keeps what earlier ones have changed."""
    target = assessment.target
    if target is None:
        return Step("no verified checkpoint from before the onset is known")
    base = in_force(facts)
    if rung == "checkpoint":
        step = Step(f"back to the checkpoint of step {target.step}", base)
    elif rung == "config":
        step = _config(facts, target, policy, base)
    elif rung == "version":
        step = _version(facts, policy, base)
    else:
        step = _infra(facts, policy, base)
    return _skipping(step, facts, assessment, target, policy)


def _once_more(previous: Recovery, facts: RunFacts, assessment: Assessment, policy: RecoveryPolicy) -> Step | None:
    """What the rung had changed for an attempt that died: by now it is in force, so that there is nothing to change,
    and yet it was not tried. None where it is not in force: an attempt that a person started has none of it."""
    target, base = assessment.target, in_force(facts)
    if target is None or previous.action != "rollback" or replace(previous.protocol_changes, skip_steps=0) != base:
        return None
    kept = tuple(it for it in previous.changes if it.name not in OF_EVERY_ROLLBACK)
    step = Step(f"once more what recovery {previous.id} had changed: its attempt did not live to show it", base, kept)
    return _skipping(step, facts, assessment, target, policy)


def in_force(facts: RunFacts) -> Changes:
    """What the failed attempt ran with beyond its own command line; batches are left out once, not again."""
    newest = _newest(facts)
    if newest is None or newest.changes is None:
        return Changes()
    return replace(newest.changes, skip_steps=0)


def _newest(facts: RunFacts) -> AttemptFacts | None:
    return next((one for one in reversed(facts.attempts) if one.number == facts.attempt), None)


def _config(facts: RunFacts, target: Candidate, policy: RecoveryPolicy, base: Changes) -> Step:
    found = new_config(facts, target, policy)
    if not found:
        return Step(found.reason)
    settings = {key: value for key, value in base.settings.items() if key not in found.removed}
    removed = [key for key in base.removed if key not in found.settings]
    removed += [key for key in found.removed if key not in removed]
    changes = replace(base, settings={**settings, **found.settings}, removed=removed)
    return Step(found.reason, changes, changed_settings(facts, found.settings, found.removed))


def _version(facts: RunFacts, policy: RecoveryPolicy, base: Changes) -> Step:
    now = facts.verl_version
    if policy.version.source == "pinned":
        wanted, why = policy.version.version, f"verl {policy.version.version}, which the policy pins"
    elif not now:
        return Step("the verl version of the failed attempt is not known")
    else:
        known = (one for one in healthy_attempts(facts, policy) if one.verl_version not in ("", now))
        healthy = next(known, None)
        if healthy is None:
            return Step(
                f"no other version than verl {now} has run healthy for {policy.healthy_steps} steps in this run"
            )
        wanted = healthy.verl_version
        why = f"verl {wanted}, on which attempt {healthy.number} logged {healthy.healthy_steps} healthy steps"
    if wanted == now:
        return Step(f"the failed attempt ran on verl {now} already")
    return Step(why, replace(base, verl_version=wanted), (other_version(now, wanted),))


def _infra(facts: RunFacts, policy: RecoveryPolicy, base: Changes) -> Step:
    newest = _newest(facts)
    executor = (newest.executor if newest is not None else "") or "local"
    if executor not in policy.infra.executors:
        return Step(
            f"the run's processes are held by the {executor} executor, with which the policy leaves nothing out"
        )
    out_already = {(one.node, one.gpu) for one in base.exclude} | {
        (one.node, "") for one in base.exclude if not one.gpu
    }
    found = [
        one
        for one in facts.nodes_at_fault
        if (one.node, one.gpu) not in out_already and (one.node, "") not in out_already
    ]
    if not found:
        return Step("no node or GPU is known to be at fault")
    nodes = {one.node for one in found}
    if len(nodes) > policy.infra.most:
        return Step(f"{len(nodes)} nodes are at fault, and the policy leaves out at most {policy.infra.most} together")
    changes = replace(base, exclude=[*base.exclude, *found])
    names = ", ".join(f"{one.node}{f' GPU {one.gpu}' if one.gpu else ''} ({one.reason})" for one in found)
    return Step(f"without {names}", changes, tuple(left_out(one) for one in found))


def _skipped_since(facts: RunFacts, target_step: int) -> int:
    """Batches that the attempts from there to the failure have left out already: their place in the data is further."""
    batches, begun = 0, math.inf
    for one in reversed(facts.attempts):
        if one.resume_step is None or one.resume_step < target_step:
            break
        # One that began no earlier was given up: nothing of it is in the checkpoint that the later one began from.
        if one.resume_step < begun:
            batches += one.changes.skip_steps if one.changes is not None else 0
            begun = one.resume_step
    return batches


def _skipping(step: Step, facts: RunFacts, assessment: Assessment, target: Candidate, policy: RecoveryPolicy) -> Step:
    """Leave out the batches between the target and the step in which the failure was found, where it is of training.

    All of them or none: those that led into the failure are the last ones.
    """
    batches = facts.step - target.step + _skipped_since(facts, target.step)
    if step.changes is None or policy.skip_steps < 1 or batches < 1 or not assessment.spoilt:
        return step
    if batches > policy.skip_steps:
        why = f"no batches are skipped: {batches} lie between, and the policy skips at most {policy.skip_steps}"
        return Step(f"{step.reason}; {why}", step.changes, step.differences)
    changes = replace(step.changes, skip_steps=batches)
    reason = f"{step.reason}; without the {batches} batch{'' if batches == 1 else 'es'} that led into the failure"
    return Step(reason, changes, (*step.differences, skipped(batches)))
