"""What ``verl-sentinel runs show`` prints of one run. Called by :mod:`exporter.cli.runs`.

Everything in the answer came from a sender: it is printed as text, with no character that a terminal would obey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import typer

from exporter.cli.showing import ago, clean, counted, lasting, moment, show_rows

NEWEST = 5
"""Checkpoints, resolved incidents and attempts that are shown where not all are asked for."""
LABEL_WIDTH = 12


def print_summary(answer: Mapping[str, Any], *, everything: bool) -> None:
    """Print the answer of ``GET /api/v1/runs/{run}``."""
    run = answer["run"]
    typer.echo(f"Run {clean(run['run_id'])}")
    for label, text in _facts(answer):
        if text:
            typer.echo(f"  {label:<{LABEL_WIDTH}} {clean(text)}")
    _attempts(answer["attempts"], everything)
    _checkpoints(answer["checkpoints"], everything)
    _incidents(answer["incidents"], everything)
    _signals(run)
    _goodput(answer.get("goodput"))
    _config(answer["config"], everything)


def _facts(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    run, rollouts = answer["run"], answer["rollouts"]
    trainer = run["trainer"] + (f", verl {run['verl_version']}" if run["verl_version"] else "")
    step = "no step yet" if run["step"] is None else f"step {run['step']}"
    state = "running" if run["running"] else "ended" + (f" {ago(run['ended_at'])}" if run["ended_at"] else "")
    code = run["exit_code"]
    phases = sorted(run["open_phases"].items(), key=lambda item: -item[1])
    counted = ("succeeded", "failed", "cancelled", "in_flight")
    requests = ", ".join(f"{rollouts.get(name, 0)} {name.replace('_', ' ')}" for name in counted)
    hooks = ", ".join(f"{name} ({reason})" for name, reason in answer["hooks_missing"].items())
    return [
        ("project", run["project"]),
        ("experiment", run["experiment"]),
        ("cohort", run.get("cohort", "")),
        ("trainer", trainer.removeprefix(", ")),
        ("state", f"{state}, attempt {run['attempt']}, {step}"),
        ("steps", _steps(run)),
        ("exit", run["exit_summary"] or ("" if code is None else f"with code {code}")),
        ("first seen", moment(run["first_seen"])),
        ("last push", ago(run["last_push"]) if run["last_push"] else "none yet"),
        ("supervisor", "" if run["supervisor_heard"] is None else f"heard {ago(run['supervisor_heard'])}"),
        ("open phases", ", ".join(f"{name} for {lasting(seconds)}" for name, seconds in phases)),
        ("rollouts", requests if any(rollouts.get(name, 0) for name in counted) else ""),
        ("GPUs", f"{len(answer['gpus'])} reported" if answer["gpus"] else ""),
        ("not hooked", hooks),
    ]


def _steps(run: Mapping[str, Any]) -> str:
    """A trainer that was started again by hand has the attempt's number, so starts are counted and not attempts."""
    now, total = run["steps_this_attempt"], run["steps_total"]
    if now == total:
        return str(total)
    return f"{now} since the trainer was last started, {total} over all its starts (those done again count again)"


def _attempts(attempts: list[dict[str, Any]], everything: bool) -> None:
    # Numbers may be missing: of what a new exporter never saw, and of what came only after a later attempt had begun.
    missing = attempts[-1]["number"] - len(attempts) if attempts else 0
    if len(attempts) < 2 and not missing and not everything:
        return
    _heading("Attempts", len(attempts), everything)
    rows = [
        (str(it["number"]), "not told" if it["resume_step"] is None else str(it["resume_step"]))
        for it in _newest(attempts, everything)
    ]
    show_rows(("attempt", "resumed from step"), rows)
    if missing:
        are, them = ("is", "it") if missing == 1 else ("are", "them")
        typer.echo(
            f"{counted(missing, 'earlier attempt')} {are} not listed: this exporter heard nothing of {them} before a "
            f"later one began, or no longer keeps {them}."
        )


def _checkpoints(checkpoints: list[dict[str, Any]], everything: bool) -> None:
    if not checkpoints:
        return
    _heading("Checkpoints", len(checkpoints), everything)
    rows = [
        (
            str(it["step"]),
            str(it["attempt"]),
            "yes" if it["verified"] else "no",
            ago(it["saved_at"]),
            it["path"],
            it["reason"],
        )
        for it in _newest(checkpoints, everything)
    ]
    show_rows(("step", "attempt", "verified", "saved", "path", "why not"), rows)


def _incidents(incidents: list[dict[str, Any]], everything: bool) -> None:
    resolved = [it for it in incidents if it["state"] == "resolved"]
    shown = [it for it in incidents if it["state"] != "resolved"]
    shown += resolved if everything else resolved[:NEWEST]
    if not shown:
        typer.echo("\nIncidents: none.")
        return
    hidden = len(incidents) - len(shown)
    typer.echo(f"\nIncidents{_with_all(hidden)}")
    rows = [
        (it["id"], it["severity"], it["state"], str(it["onset"]), ago(it["opened_at"]), it["summary"]) for it in shown
    ]
    show_rows(("incident", "severity", "state", "onset", "opened", "summary"), rows)


def _signals(run: Mapping[str, Any]) -> None:
    if not run["signals"]:
        return
    from exporter.signals import SIGNALS

    typer.echo("\nNewest signals")
    rows = [
        (name, shown_number(value), SIGNALS[name].unit if name in SIGNALS else "")
        for name, value in run["signals"].items()
    ]
    show_rows(("signal", "value", "unit"), rows)


def _goodput(goodput: Mapping[str, float] | None) -> None:
    if not goodput or not sum(goodput.values()):
        return
    whole = sum(goodput.values())
    typer.echo("\nWhere the time went")
    rows = [(name, f"{seconds / whole:.1%}", lasting(seconds)) for name, seconds in goodput.items()]
    show_rows(("time", "share", "how much"), rows)


def _config(config: Mapping[str, Any], everything: bool) -> None:
    if not config:
        return
    count = counted(len(config), "setting")
    if not everything:
        typer.echo(f"\nConfiguration: {count} (--all shows it).")
        return
    typer.echo(f"\nConfiguration: {count}")
    show_rows(("setting", "value"), [(key, str(value)) for key, value in config.items()])


def _heading(name: str, count: int, everything: bool) -> None:
    typer.echo(f"\n{name}{_with_all(0 if everything else count - NEWEST)}")


def _with_all(hidden: int) -> str:
    return f" ({counted(hidden, 'older one')} with --all)" if hidden > 0 else ""


def _newest(items: list[dict[str, Any]], everything: bool) -> list[dict[str, Any]]:
    return items[::-1] if everything else items[: -NEWEST - 1 : -1]


def shown_number(value: Any) -> str:
    """A number in few characters, and what is not finite as the API spells it.

    >>> shown_number(0.000123456), shown_number(1234567.0), shown_number("NaN"), shown_number(3.0)
    ('0.000123456', '1.23457e+06', 'NaN', '3')
    """
    number = float(value)
    if not math.isfinite(number):
        return str(value)
    return f"{number:.6g}"
