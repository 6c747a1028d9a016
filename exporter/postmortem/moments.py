"""When what happened, and what it cost: the timeline of a recovery with its durations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from exporter.postmortem.markdown import seconds
from exporter.postmortem.material import Material, Step
from exporter.recovery.record import Recovery


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline. Unix seconds of the exporter's clock."""

    at: float
    what: str
    """Markdown is made of it by the caller."""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Losses:
    """What the failure and the recovery cost; None where it is not known."""

    steps: int | None = None
    """Done before, and to be done again."""
    again_seconds: float | None = None
    """What those had taken."""
    down_seconds: float | None = None
    """From the last step of the failed attempt to the first of the next."""
    start_seconds: float | None = None
    """Of that: from the start of the trainer's process to its first step, its own start."""
    ours_seconds: float | None = None
    """From the alert to the first healthy step, without the trainer's own start and without a person's time."""
    approval_seconds: float | None = None
    """That a person took."""

    @property
    def total_seconds(self) -> float | None:
        if self.down_seconds is None:
            return None
        return self.down_seconds + (self.again_seconds or 0.0)


def timeline(material: Material) -> list[Moment]:
    """What is known, in the order in which it happened."""
    it, times = material.recovery, material.recovery.times
    found = [
        Moment(one.at, f"Step {one.step} of attempt {one.attempt}: the onset", one.step)
        for one in _at_step(material, it.attempt, it.onset)
    ]
    named: tuple[tuple[float | None, str], ...] = (
        (times.alert_received, "The alert arrived"),
        (times.planned, f"The recovery was planned ({it.mode})"),
        (times.commanded if times.approved is None else None, "It was ready to be carried out"),
        (times.command_delivered, "The supervisor was handed the command"),
        (times.accepted, "The supervisor took it"),
        (times.stopping, "The trainer was told to stop"),
        (times.stopped, "The trainer was gone"),
        (times.starting, "The supervisor began to start the next attempt"),
        (times.started, "The trainer's process was started"),
        (times.abort_answered, "The supervisor answered the abort"),
    )
    found += [Moment(at, what) for at, what in named if at is not None]
    found += [Moment(one.at, f"{one.who} approved it") for one in it.approvals]
    if not it.approvals and times.approved is not None:
        found.append(Moment(times.approved, f"{it.resolved_by or 'Somebody'} approved it"))
    found += [
        Moment(one.at, f"{one.name} was read back: {'in effect' if one.ok else 'not in effect'}") for one in it.proofs
    ]
    first = first_step(material)
    if first is not None:
        what = f"Step {first.step} of attempt {first.attempt}: the first of the new one"
        found.append(Moment(first.at, what, first.step))
    if times.first_healthy_step is not None:
        step = it.first_healthy_step
        found.append(Moment(times.first_healthy_step, f"Step {step}: the first healthy one past the checkpoint", step))
    if times.finished is not None:
        found.append(Moment(times.finished, f"The recovery ended: {it.stage.replace('_', ' ')}"))
    return sorted(found, key=lambda one: one.at)  # what is of one moment stays in the order of its causes


def losses(material: Material) -> Losses:
    """As far as steps were remembered and times are known."""
    it, times = material.recovery, material.recovery.times
    first, last = first_step(material), last_step(material)
    start = first.at - times.started if first is not None and times.started is not None else None
    approval = times.approved - times.planned if times.approved is not None and times.planned is not None else None
    steps, again = None, None
    if it.resumed_from is not None and it.planned_at_step is not None:
        steps = max(0, it.planned_at_step - it.resumed_from)
        lost = [one for one in material.steps if one.attempt == it.attempt and one.step > it.resumed_from]
        usual = _usual_seconds(material, it.attempt)
        again = steps * usual if usual is not None and lost else None
    alert = times.alert_received if times.alert_received is not None else times.planned
    healthy = times.first_healthy_step
    ours = None
    if alert is not None and healthy is not None:
        ours = max(0.0, healthy - alert - max(0.0, start or 0.0) - max(0.0, approval or 0.0))
    return Losses(
        steps=steps,
        again_seconds=again,
        down_seconds=first.at - last.at if first is not None and last is not None else None,
        start_seconds=start if start is None or start >= 0.0 else None,
        ours_seconds=ours,
        approval_seconds=approval,
    )


def first_step(material: Material) -> Step | None:
    """The first that the new attempt logged, where it is remembered."""
    new = material.recovery.new_attempt
    return next((one for one in material.steps if new is not None and one.attempt == new), None)


def last_step(material: Material) -> Step | None:
    """The last that the failed attempt logged."""
    return next((one for one in reversed(material.steps) if one.attempt == material.recovery.attempt), None)


def _at_step(material: Material, attempt: int, step: int | None) -> list[Step]:
    return [one for one in material.steps if one.attempt == attempt and one.step == step][:1]


def _usual_seconds(material: Material, attempt: int) -> float | None:
    """Seconds from one step to the next in an attempt, the median."""
    of_it = [one for one in material.steps if one.attempt == attempt]
    gaps = [after.at - before.at for before, after in pairwise(of_it) if after.step == before.step + 1]
    return median(gaps) if gaps else None


def summary(material: Material) -> list[str]:
    """What happened, what was done, what it cost: three sentences, which may hold names from outside."""
    it = material.recovery
    since = "" if it.onset is None else f" at step {it.onset}"
    worst = next((str(one.get("summary", "")) for one in it.incidents), "").rstrip(".") or it.reason.rstrip(".")
    others = len(it.incidents) - 1
    more = "" if others < 1 else f" ({others} further finding{'' if others == 1 else 's'})"
    happened = f"Attempt {it.attempt} of run {it.run_id} failed{since}: {worst}{more}."
    return [happened, _done(it), _cost(material)]


def _done(it: Recovery) -> str:
    if it.stage == "observed":
        return "Nothing was done: the policy only observes."
    if it.stage == "refused":
        return f"Nothing was done: {it.outcome or 'it was refused.'}"
    back = "It was to go back, and there was nothing to go back to"
    how = {
        "rollback": back if it.resumed_from is None else f"It went back to step {it.resumed_from}",
        "restart": "It was stopped with a checkpoint saved first, and started again",
        "stop": "It was stopped",
    }[it.action]
    ended = f" and {it.stage}" if it.stage in ("succeeded", "failed") else f"; it was {it.stage}"
    outcome = f": {it.outcome.rstrip('.')}" if it.outcome else ""
    return f"{how} on the rung {it.rung}{ended}{outcome}."


def _cost(material: Material) -> str:
    it, lost = material.recovery, losses(material)
    parts = []
    if lost.steps is not None:
        parts.append(f"{lost.steps} step{'' if lost.steps == 1 else 's'} had to be done again")
    if lost.down_seconds is not None:
        parts.append(f"no step was logged for {seconds(lost.down_seconds)}")
    if lost.start_seconds is not None:
        parts.append(f"{seconds(lost.start_seconds)} of that was the trainer's own start")
    if not parts:
        return "What it cost is not known: the steps were not remembered, or no new attempt logged any."
    sentence = ", ".join(parts)
    followed = " A further recovery followed." if it.climbed_to else ""
    return f"{sentence[0].upper()}{sentence[1:]}.{followed}"
