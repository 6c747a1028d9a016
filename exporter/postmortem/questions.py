"""What to do next, and what nobody knows yet: sentences for the people who read a post-mortem. Pure.

What to do comes from the detectors, which say it of every finding, and from how the recovery ended; what is open is
what the record does not answer.
"""

from __future__ import annotations

from exporter.postmortem.material import Material
from exporter.postmortem.moments import losses

MOST_ADVICE = 8


def next_steps(material: Material) -> list[str]:
    """The most pressing first; each once."""
    it = material.recovery
    found: list[str] = []
    if it.needs_a_person:
        found.append(f"Bring the run back by hand, then acknowledge: verl-sentinel recoveries acknowledge {it.id}")
    if it.holds_back:
        found.append(f"Give the attempt back to automatic recovery: verl-sentinel recoveries acknowledge {it.id}")
    if it.stage == "succeeded" and it.rung == "config":
        found.append("Take the changed settings over into the run's own configuration: they hold for this run alone.")
    if it.stage == "succeeded" and it.rung == "version":
        found.append("Pin the version that works, and compare the two on the same checkpoint before anyone upgrades.")
    if it.stage == "succeeded" and it.rung == "infra":
        found.append("Have the node or GPU that was left out looked at before it is used again.")
    found += _advice(material)
    if material.histograms:
        found.append("Look at the gradient histograms: which layer began, and was it a few values or all of them?")
    kept = list(dict.fromkeys(found))[:MOST_ADVICE]
    return kept or ["Nothing that is known of it asks for anything."]


def _advice(material: Material) -> list[str]:
    """Of the findings that led to it, each once with what it is for; what most of them say is first."""
    wanted = {str(one.get("id")) for one in material.recovery.incidents}
    said: dict[str, list[str]] = {}
    for finding in material.findings:
        if finding.id in wanted:
            for advice in finding.advice:
                said.setdefault(advice.rstrip("."), []).append(f"{finding.detector} on {finding.signal}")
    return [f"{advice} ({', '.join(of)})." for advice, of in sorted(said.items(), key=lambda one: -len(one[1]))]


def open_questions(material: Material) -> list[str]:
    """What the record leaves open."""
    it, lost = material.recovery, losses(material)
    changed = [one for one in it.changes if one.kind != "run" and not one.name.startswith("trainer.resume")]
    found: list[str] = []
    if it.stage == "succeeded" and not changed and it.rung == "checkpoint" and it.action == "rollback":
        found.append(
            "Nothing was changed but the weights. Would the same batches lead into the same failure, or was it chance?"
        )
    if it.stage == "succeeded" and changed:
        found.append("Which of the changes made the difference? They were made together.")
    for one in it.proofs:
        if not one.ok:
            found.append(f"Why did {one.name} not take effect?")
    if it.stage in ("failed", "aborted") and it.abort_overdue:
        found.append("Did the abort have its effect? The supervisor has not said so.")
    if it.stage == "failed" and not it.climbed_to:
        found.append("What does the next attempt need that no rung of the ladder gives?")
    refused = [one for one in it.candidates if not one.eligible]
    newer = [one for one in refused if it.planned_target_step is not None and one.step > it.planned_target_step]
    if newer:
        steps = ", ".join(str(one.step) for one in newer[:5])
        found.append(
            f"Were the checkpoints at step {steps} really spoilt? They were refused because of when they were."
        )
    if it.onset is None:
        found.append("Since when had it been failing? No finding gives an onset.")
    if lost.approval_seconds is not None and lost.down_seconds and lost.approval_seconds > 0.5 * lost.down_seconds:
        found.append("Most of the time went by waiting for a person. Has this kind of failure earned the mode auto?")
    if lost.start_seconds and lost.ours_seconds is not None and lost.start_seconds > 2.0 * lost.ours_seconds:
        found.append("Most of the time was the trainer's own start. Can it start faster?")
    if not material.steps:
        found.append("How did the signals run? No steps were remembered when this was written.")
    return found or ["None that the record shows."]
