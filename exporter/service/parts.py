"""One part of a step as it was sent, read once, and the totals of the run that it is added to. Called by the watch.

verl logs most steps in one part; SFT logs a step and its validation in two. Totals (steps, durations, phases, goodput)
count a step once for each process that logged it, with its first part, in whatever order the parts come.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from exporter.protocol import Step, numbers
from exporter.service.goodput import note
from exporter.service.sequences import Sequences
from exporter.service.state import RunState, SenderState
from exporter.signals import Plan, plan_of


@dataclass(slots=True)
class Part:
    """A part of a step, read."""

    step: int
    metrics: dict[str, float]
    plan: Plan
    signals: dict[str, float]
    training: bool
    """It is of a training step; validation before training, or alone, is none."""
    first: bool
    """No part of this training step was known of its sender."""
    said: float
    """When it was logged, by the sender's clock; 0 where it does not say."""
    between: float
    """Seconds since the sender's part before it, by the sender's clock; 0 where that is not known."""


def read(sent: Step, sender: SenderState, trainer: str) -> Part:
    """Read a part, and note that its sender has logged it."""
    metrics = numbers(sent.metrics)
    plan = plan_of(metrics, trainer)
    training = sent.step > 0 and plan.training
    if training and sender.logged is None:
        sender.logged = Sequences()
    first = training and sender.logged is not None and note(sender.logged, sent.step)
    said = sent.time if 0.0 < sent.time < inf else 0.0
    before, sender.said = sender.said, said
    between = max(0.0, said - before) if said and before else 0.0
    return Part(sent.step, metrics, plan, plan.signals(metrics, floats=True), training, first, said, between)


def count_new(state: RunState, part: Part, at: float) -> None:
    """Add the first part of a step that is newer than the current one."""
    if not part.training:
        state.goodput.part(at, said=part.said)
        if part.plan.phases:
            state.phase_times.logged(part.plan.phases, part.metrics)
        return
    state.steps_this_attempt += 1
    _count(state, part)
    signals = part.signals
    state.goodput.step(
        part.step,
        at,
        said=part.said,
        seconds=signals.get("step_time"),
        pause=signals.get("checkpoint_time", 0.0) + signals.get("validation_time", 0.0),
        validated="val_reward" in signals or "val_loss" in signals,
    )


def count_late(state: RunState, part: Part) -> None:
    """Add a part of a step that is older than the current one, or of an attempt that is over."""
    state.late_steps += 1
    if part.first:
        _count(state, part)
        state.goodput.late(part.step, part.signals.get("step_time"), part.between)


def _count(state: RunState, part: Part) -> None:
    state.steps_total += 1
    if "step_time" in part.signals:
        state.durations.observe(part.signals["step_time"])
    state.phase_times.logged(part.plan.phases, part.metrics)
