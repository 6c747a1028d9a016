"""What ``verl-sentinel policy explain`` prints. Called by :mod:`exporter.cli.policy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from exporter.cli.recovery_summary import print_changes
from exporter.cli.showing import clean, counted, lasting, show_rows

ANSWERS = {
    "planned": "a recovery would be planned",
    "person": "the ladder has ended: a person would be told",
    "active": "it would join the recovery under way",
    "stale": "nothing: it is of an attempt that is over",
    "no_trigger": "nothing: the policy lets it trigger nothing",
    "answered": "nothing: a recovery has answered it",
    "aborted": "nothing until a person has taken note",
    "agreement": "it would wait for signals that agree",
    "cooldown": "it would wait for the end of the cooldown",
    "budget": "it would be refused, and a person told",
}


def print_policy(answer: Mapping[str, Any]) -> None:
    """Print what holds for one run."""
    policy = answer["policy"]
    of = [f"run {answer['run_id'] or '(any)'}"]
    of += [f"{name} {answer[name]}" for name in ("project", "cohort") if answer[name]]
    _say(f"Policy of {', '.join(of)}")
    _say(f"  rule         {answer['rule'] or 'none: the policy as a whole'}")
    if answer["rules_passed_over"]:
        _say(f"  passed over  {', '.join(answer['rules_passed_over'])}")
    _say(f"  mode         {policy['mode']}")
    pause = policy["cooldown_seconds"]
    _say(f"  budget       {policy['budget_per_day']} recoveries in 24 hours, {pause:g} s between two")
    climb = f"{policy['climb_seconds']:g} s after one that did not hold"
    guard = policy["no_progress_steps"]
    again = f"; the same failure within {guard} steps of a success climbs" if guard else ""
    _say(f"  climbing     {climb}{again}")
    margins = "".join(f", {name} {steps}" for name, steps in policy["margins"].items())
    _say(f"  margin       {counted(policy['margin_steps'], 'step')} before the onset{margins}")
    _say(f"  success      {policy['success_steps']} healthy steps in a row past the checkpoint")
    if policy["skip_steps"]:
        _say(f"  data         up to {policy['skip_steps']} batches that led into the failure are left out")
    typer.echo("\nLadder")
    rows = [(it["rung"], it["mode"], _who(it), it["changes"]) for it in answer["ladder"]]
    end = "then the run is stopped" if policy["at_end"] == "stop" else "the run is left as it is"
    show_rows(("rung", "mode", "approval", "what it does"), [*rows, ("person", "", "", f"is told; {end}")])
    typer.echo("\nWhat may trigger")
    triggers = [
        (
            ", ".join(it["detectors"]) + (f" ({', '.join(it['signals'])})" if it["signals"] else ""),
            it["severity"],
            it["action"],
            str(it["agreement"] or policy["agreement"]),
            ", ".join(it["ladder"] or ()) or "as above",
        )
        for it in policy["triggers"]
    ]
    show_rows(("detectors", "from", "action", "signals that agree", "ladder"), triggers)


def _who(rung: Mapping[str, Any]) -> str:
    if not rung["approvals"]:
        return ""
    names = f" of {', '.join(rung['approvers'])}" if rung["approvers"] else ""
    return f"{rung['approvals']}{names}"


def print_trigger(answer: Mapping[str, Any]) -> None:
    """Print what one finding may trigger."""
    on = f" on {answer['signal']}" if answer["signal"] else ""
    _say(f"\nA finding of {answer['detector']}{on}, {answer['severity']}")
    if not answer["triggers"]:
        _say("  triggers nothing by this policy")
        return
    _say(f"  action       {answer['action']}")
    _say(f"  needs        {answer['agreement']} signals that agree, or a finding that is certain")
    _say(f"  margin       {counted(answer['margin_steps'], 'step')} before the onset")
    _say(f"  ladder       {', '.join(answer['ladder'])}")


def print_run(answer: Mapping[str, Any]) -> None:
    """Print the answer of ``GET /api/v1/recovery/policy``."""
    print_policy(answer["policy"])
    typer.echo("\nNow")
    if answer["active"]:
        _say(f"  recovery {answer['active']} is under way")
    cooling = answer["cooldown_seconds_left"]
    wait = f", {lasting(cooling)} of the cooldown left" if cooling > 0 else ""
    _say(f"  {answer['budget_left']} recoveries left in the budget{wait}")
    if not answer["findings"]:
        _say("  no finding is open, so there is nothing to decide")
    for it in answer["findings"]:
        _say(f"\n{it['detector']} on {it['signal']} ({it['severity']}): {ANSWERS.get(it['answer'], it['answer'])}")
        if it["answer"] != "planned":
            _say(f"  why          {it['reason']}")
        print_stages(it["stages"])
        if it["changes"]:
            print_changes(it["changes"], "would be" if it["answer"] == "planned" else "is to be")


def print_stages(stages: Iterable[Mapping[str, Any]]) -> None:
    """What each stage came to, and what it refused."""
    for stage in stages:
        _say(f"  {stage['stage']:<12} {stage['result']}")
        for refused in stage["refused"]:
            _say(f"  {'':<12} - {refused}")


def _say(text: str) -> None:
    first, *rest = text.split("\n")
    for line in (first, *rest):
        typer.echo(clean(line))
