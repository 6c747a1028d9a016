"""What ``verl-sentinel recoveries show`` prints of one recovery. Called by :mod:`exporter.cli.recoveries`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from exporter.cli.showing import clean, lasting, moment, show_rows

LABEL_WIDTH = 12
MOMENTS = (
    ("alert_received", "alert received"),
    ("planned", "planned"),
    ("approved", "approved"),
    ("commanded", "commanded"),
    ("accepted", "taken by the supervisor"),
    ("stopping", "stopping"),
    ("stopped", "stopped"),
    ("starting", "starting"),
    ("started", "started"),
    ("first_healthy_step", "first healthy step"),
    ("finished", "ended"),
    ("abort_answered", "abort answered"),
)
RUN_WORDS = {
    "attempt": "attempt",
    "first_step": "first step",
    "verl_version": "verl",
    "left_out": "left out",
    "skip_steps": "batches left out",
}
WAITING = ("planned", "awaiting_approval", "commanded", "stopping", "starting")


def print_recovery(answer: Mapping[str, Any]) -> None:
    """Print the answer of ``GET /api/v1/recoveries/{id}``."""
    typer.echo(f"Recovery {clean(answer['id'])} of run {clean(answer['run_id'])}")
    for label, text in _facts(answer):
        if text:
            typer.echo(f"  {label:<{LABEL_WIDTH}} {clean(text)}")
    typer.echo("\nEvidence")
    for it in answer["incidents"]:
        numbers = f"{_number(it['score'])} against {_number(it['threshold'])}, confidence {_number(it['confidence'])}"
        since = f"since step {it['onset']}, {numbers}"
        typer.echo(clean(f"  {it['detector']} on {it['signal']}: {it['summary']} ({since})"))
    if answer["changes"]:
        print_changes(answer["changes"], "will be" if answer["stage"] in WAITING else "was to be")
    if len(answer["considered"]) > 1:
        typer.echo("\nLadder")
        rows = [(it["rung"], "taken" if it["taken"] else "no", it["reason"]) for it in answer["considered"]]
        show_rows(("rung", "taken", "why"), rows)
    if answer["proofs"]:
        typer.echo("\nSettings in effect")
        proofs = [
            (it["name"], _value(it["wanted"]), _value(it["found"]), "yes" if it["ok"] else it["reason"] or "no")
            for it in answer["proofs"]
        ]
        show_rows(("name", "wanted", "found", "in effect"), proofs)
    if answer["candidates"]:
        target = answer["planned_target_step"]
        typer.echo("\nCheckpoints considered")
        rows = [
            (
                str(it["step"]),
                "target" if it["step"] == target else "possible" if it["eligible"] else "no",
                it["reason"],
            )
            for it in answer["candidates"]
        ]
        show_rows(("step", "taken", "why"), rows)
    if answer["stages"]:
        typer.echo("\nHow it was decided")
        for stage in answer["stages"]:
            typer.echo(clean(f"  {stage['stage']:<{LABEL_WIDTH}} {stage['result']}"))
            for refused in stage["refused"]:
                typer.echo(clean(f"  {'':<{LABEL_WIDTH}} - {refused}"))
    if answer["output"]:
        typer.echo("\nWhat was reported")
        for line in answer["output"]:
            typer.echo(clean(f"  {line}"))
    typer.echo("\nTimes")
    before = None
    for name, word in MOMENTS:
        at = answer["times"][name]
        if at is not None:
            took = "" if before is None else f"  +{lasting(at - before)}"
            typer.echo(f"  {moment(at)}  {word}{took}")
            before = at


def _facts(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    target, restored = answer["planned_target_step"], answer["target_step"]
    back = f"step {target}, {answer['planned_target_path']}" if target is not None else "no checkpoint"
    taken = "" if restored in (None, target) else f"step {restored}, {answer['target_path']}"
    healthy = f"{answer['healthy_steps']} past the checkpoint, in a row" if answer["new_attempt"] else ""
    return [
        ("stage", answer["stage"].replace("_", " ")),
        ("outcome", answer["outcome"]),
        ("mode", answer["mode"]),
        ("action", answer["action"]),
        ("rung", answer["rung"] if answer["action"] != "stop" else ""),
        ("rule", answer["rule"]),
        ("climbed from", answer["climbed_from"]),
        ("climbed to", answer["climbed_to"]),
        ("attempt", f"{answer['attempt']}{'' if not answer['new_attempt'] else ' to ' + str(answer['new_attempt'])}"),
        ("reason", answer["reason"]),
        ("back to", back if answer["action"] == "rollback" else ""),
        ("restored", taken),
        ("healthy steps", healthy),
        ("decided by", answer["resolved_by"]),
        ("approvals", _approvals(answer) if answer["stage"] == "awaiting_approval" else ""),
        ("aborted by", answer["aborted_by"]),
        ("acknowledged", answer["acknowledged_by"]),
    ]


def print_changes(changes: Sequence[Mapping[str, Any]], when: str) -> None:
    """Print old and new values; ``when``: as in "will be"."""
    typer.echo(f"\nWhat {when} different")
    rows = [
        (
            RUN_WORDS.get(it["name"], it["name"]),
            _old(it),
            "(taken out)" if it["kind"] == "removed" else _value(it["new"]),
        )
        for it in changes
    ]
    show_rows(("name", "now", "next attempt"), rows)


def _approvals(answer: Mapping[str, Any]) -> str:
    had = ", ".join(it["who"] for it in answer["approvals"]) or "none"
    of = f" of {', '.join(answer['approvers'])}" if answer["approvers"] else ""
    return f"{answer['approvals_needed']}{of} needed; so far {had}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _old(difference: Mapping[str, Any]) -> str:
    return _value(difference["old"]) if difference["known"] else "not reported"


def _new(difference: Mapping[str, Any]) -> str:
    return "(taken out)" if difference["kind"] == "removed" else _value(difference["new"])


def _value(value: Any) -> str:
    """As a configuration file has it.

    >>> _value(None), _value(True), _value("auto")
    ('null', 'true', 'auto')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
