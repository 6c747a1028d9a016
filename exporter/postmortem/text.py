"""The document: every section of a post-mortem, of its material alone. Pure; called by the process that writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exporter.postmortem.markdown import block, code, moment, number, seconds, sentence, table, value
from exporter.postmortem.material import Material
from exporter.postmortem.moments import losses, summary, timeline
from exporter.postmortem.questions import next_steps, open_questions

Section = Callable[[Material], str]

MOST_ROWS = 60
SHORT = 300
"""Characters of a sentence that is told in full elsewhere."""
RUN_WORDS = {
    "attempt": "attempt",
    "first_step": "first step",
    "verl_version": "verl version",
    "left_out": "left out",
    "skip_steps": "batches skipped",
}


def document(material: Material, pictures: Sequence[str], without: str = "") -> str:
    """The whole text. ``pictures``: names of the files beside it; ``without``: why there are none."""
    it = material.recovery
    sections: tuple[tuple[str, Section], ...] = (
        ("Summary", _summary),
        ("Timeline", _timeline),
        ("What it cost", _cost),
        ("Evidence", _evidence),
        ("Signals", lambda _: _signals(material, pictures, without)),
        ("What was considered", _considered),
        ("What changed", _changes),
        ("Who approved", _approvals),
        ("What ran", _ran),
        ("The climb", _climb),
        ("What to do next", _next),
        ("Open questions", _questions),
    )
    parts = [f"# Post-mortem: recovery {code(it.id)} of run {code(it.run_id)}", _head(material)]
    for title, section in sections:
        body = section(material)
        if body:
            parts.append(f"## {title}\n\n{body}")
    parts.append(f"Written by verl-sentinel at {moment(material.gathered_at)}. Times are by the exporter's clock.")
    return "\n\n".join(parts) + "\n"


def _head(material: Material) -> str:
    it, about = material.recovery, material.about
    facts = [
        ("stage", it.stage.replace("_", " ")),
        ("action", f"{it.action} on the rung {it.rung}"),
        ("mode", it.mode),
        ("policy rule", it.rule),
        ("project", about.project),
        ("experiment", about.experiment),
        ("trainer", f"{about.trainer} on verl {about.verl_version}" if about.trainer else ""),
        ("executor", about.executor),
    ]
    return "\n".join(f"- {name}: {sentence(text, 200)}" for name, text in facts if text)


def _summary(material: Material) -> str:
    return " ".join(sentence(one) for one in summary(material))


def _timeline(material: Material) -> str:
    moments, before = timeline(material), None
    rows = []
    for one in moments:
        rows.append((moment(one.at), "" if before is None else f"+{seconds(one.at - before)}", sentence(one.what)))
        before = one.at
    return table(("when", "after", "what"), rows) if rows else "No time of it is known."


def _cost(material: Material) -> str:
    lost = losses(material)
    rows: list[tuple[str, str]] = []
    if lost.steps is not None:
        rows.append(("steps done again", str(lost.steps)))
    for name, duration in (
        ("training that is done again", lost.again_seconds),
        ("from the last step before to the first step after", lost.down_seconds),
        ("of that, the trainer's own start", lost.start_seconds),
        ("of that, waiting for a person", lost.approval_seconds),
        ("alert to healthy step, without those two", lost.ours_seconds),
        ("lost altogether", lost.total_seconds),
    ):
        if duration is not None:
            rows.append((name, seconds(duration)))
    if not rows:
        return "It is not known: no steps of it are remembered."
    return table(("what", "how much"), rows)


def _evidence(material: Material) -> str:
    it = material.recovery
    parts = [sentence(it.reason)] if it.reason else []
    rows = [
        (
            sentence(one.get("detector", "")),
            sentence(one.get("signal", "")),
            sentence(one.get("severity", "")),
            number(one.get("onset")),
            number(one.get("score")),
            number(one.get("threshold")),
            number(one.get("confidence")),
            sentence(one.get("summary", "")),
        )
        for one in it.incidents[:MOST_ROWS]
    ]
    if rows:
        columns = ("detector", "signal", "severity", "since step", "score", "threshold", "confidence", "finding")
        parts.append(table(columns, rows))
    known = {str(one.get("id")) for one in it.incidents}
    others = [one for one in material.findings if one.id not in known][:MOST_ROWS]
    if others:
        parts.append("Also found on these attempts:")
        parts.append("\n".join(f"- attempt {one.attempt}, step {one.onset}: {sentence(one.summary)}" for one in others))
    if material.histograms:
        parts.append("Gradient histograms (on the trainer's node; `verl-sentinel-train gradients FILE` shows one):")
        written = [
            (str(one.step), number(one.norm), sentence(one.largest_layer), number(one.largest_norm),
             str(one.non_finite), code(one.file))
            for one in material.histograms
        ]  # fmt: skip
        heads = ("step", "norm", "largest layer", "its norm", "not finite", "file")
        parts.append(table(heads, written))
    return "\n\n".join(parts) or "None is in the record."


def _signals(material: Material, pictures: Sequence[str], without: str) -> str:
    if pictures:
        marks = (
            "Red is the failed attempt, blue the next one. Marks: the onset, the alert with the plan, and the "
            "checkpoint that was restored."
        )
        return "\n\n".join([*(f"![Signals around the failure and the recovery]({name})" for name in pictures), marks])
    return sentence(without)


def _considered(material: Material) -> str:
    it = material.recovery
    parts = []
    if it.stages:
        lines = []
        for one in it.stages:
            lines.append(f"- {one.stage}: {sentence(one.result, SHORT)}")
            lines += [f"  - not taken: {sentence(refused)}" for refused in one.refused[:MOST_ROWS]]
        parts.append("\n".join(lines))
    if it.considered:
        rows = [(one.rung, "taken" if one.taken else "passed over", sentence(one.reason)) for one in it.considered]
        parts.append(table(("rung", "", "why"), rows))
    if it.candidates:
        target = it.planned_target_step
        shown = [
            (
                str(one.step),
                str(one.attempt),
                "target" if one.step == target else "possible" if one.eligible else "refused",
                sentence(one.reason),
                code(one.path),
            )
            for one in it.candidates[:MOST_ROWS]
        ]
        parts.append(table(("checkpoint", "attempt", "", "why", "path"), shown))
        if it.target_step is not None and it.action == "restart" and (target is None or it.target_step > target):
            parts.append(f"The trainer saved step {it.target_step} as it was stopped, and went on from there.")
        elif it.target_step is not None and it.target_step != target:
            parts.append(f"The supervisor restored step {it.target_step}, for the target did not verify on its disk.")
    return "\n\n".join(parts) or "Nothing else was to be considered."


def _changes(material: Material) -> str:
    it = material.recovery
    rows = [
        (
            RUN_WORDS.get(one.name) or code(one.name),
            value(one.old) if one.known else "not reported",
            "taken out" if one.kind == "removed" else value(one.new),
        )
        for one in it.changes[:MOST_ROWS]
    ]
    parts = [table(("name", "before", "after"), rows)] if rows else ["Nothing."]
    if it.proofs:
        proofs = [
            (code(one.name), value(one.wanted), value(one.restored), value(one.found),
             "in effect" if one.ok else sentence(one.reason or "not in effect"))
            for one in it.proofs[:MOST_ROWS]
        ]  # fmt: skip
        parts.append("Read back where it acts:")
        parts.append(table(("setting", "wanted", "from the checkpoint", "found", ""), proofs))
    return "\n\n".join(parts)


def _approvals(material: Material) -> str:
    it = material.recovery
    if it.mode != "approve":
        return f"Nobody had to: the mode was {it.mode}."
    lines = [f"- {sentence(one.who, 200)}, {moment(one.at)}" for one in it.approvals]
    if not lines and it.resolved_by:
        lines = [f"- {sentence(it.resolved_by, 200)}"]
    needed = f"{it.approvals_needed} needed" + (f", of {sentence(', '.join(it.approvers))}" if it.approvers else "")
    return "\n".join([f"{len(it.approvals)} given, {needed}.", "", *(lines or ["- nobody"])])


def _ran(material: Material) -> str:
    parts = []
    rows = [(moment(one.at), sentence(one.kind), sentence(one.summary, SHORT)) for one in material.audit]
    if rows:
        parts.append(table(("when", "kind", "what"), rows))
    if material.recovery.output:
        parts.append("Output of what ran, and the last lines of an attempt that died:")
        parts.append(block(material.recovery.output))
    return "\n\n".join(parts) or "Nothing ran."


def _climb(material: Material) -> str:
    if len(material.chain) < 2:
        return ""
    rows = [
        (
            "**this one**" if one.id == material.recovery.id else code(one.id),
            one.rung,
            one.stage.replace("_", " "),
            sentence(one.outcome or one.reason),
        )
        for one in material.chain
    ]
    return table(("recovery", "rung", "stage", "how it ended"), rows)


def _next(material: Material) -> str:
    return "\n".join(f"{place}. {sentence(one)}" for place, one in enumerate(next_steps(material), start=1))


def _questions(material: Material) -> str:
    return "\n".join(f"- {sentence(one)}" for one in open_questions(material))
