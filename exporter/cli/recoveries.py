"""``verl-sentinel recoveries`` and ``audit``. Mounted by :mod:`exporter.cli`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Limit, Url, Who, ask, quoted, user
from exporter.cli.recovery_summary import print_recovery
from exporter.cli.showing import clean, counted, moment, show_json, show_rows

recoveries_app = typer.Typer(no_args_is_help=True, help="Recoveries: list, show, approve, refuse, abort, acknowledge.")

RecoveryId = Annotated[str, typer.Argument(help="Id of the recovery.")]


def audit(url: Url = DEFAULT_URL, as_json: AsJson = False, limit: Limit = 100) -> None:
    """Show the audit log, the newest first."""
    answer = ask(url, f"/api/v1/audit?limit={limit}", "audit")
    if as_json:
        show_json(answer)
        return
    rows = [(moment(line["at"]), line["run_id"], line["kind"], line["summary"]) for line in answer["audit"]]
    show_rows(("time", "run", "kind", "what"), rows)


@recoveries_app.command("list")
def recoveries_list(url: Url = DEFAULT_URL, as_json: AsJson = False, limit: Limit = 100) -> None:
    """List recoveries, the newest first."""
    answer = ask(url, f"/api/v1/recoveries?limit={limit}", "recoveries")
    if as_json:
        show_json(answer)
        return
    rows = [
        (it["id"], it["run_id"], str(it["attempt"]), _what(it), it["stage"], it["outcome"] or it["reason"])
        for it in answer["recoveries"]
    ]
    show_rows(("recovery", "run", "attempt", "what", "stage", "why"), rows)


@recoveries_app.command("show")
def recoveries_show(recovery_id: RecoveryId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one recovery: evidence, what will be different, checkpoints considered, times."""
    answer = ask(url, f"/api/v1/recoveries/{quoted(recovery_id)}", "stage")
    if as_json:
        show_json(answer)
    else:
        print_recovery(answer)


@recoveries_app.command("approve")
def recoveries_approve(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Let a recovery that waits for approval go ahead, once as many have approved as the policy asks for."""
    _decide(url, recovery_id, "approve", who)


@recoveries_app.command("refuse")
def recoveries_refuse(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Call off a recovery that waits for approval."""
    _decide(url, recovery_id, "refuse", who)


@recoveries_app.command("abort")
def recoveries_abort(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Stop acting on a recovery that is under way. The trainer is left as it is: running, or stopped."""
    _decide(url, recovery_id, "abort", who)


@recoveries_app.command("acknowledge")
def recoveries_acknowledge(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Take note that a recovery has failed, and its alert ends; an aborted one no longer holds others back."""
    _decide(url, recovery_id, "acknowledge", who)


def _what(recovery: Mapping[str, Any]) -> str:
    """Action and rung, and an arrow where it climbed."""
    if recovery["action"] != "rollback":
        return str(recovery["action"])
    return f"{'↑ ' if recovery['climbed_from'] else ''}{recovery['rung']}"


def _decide(url: str, recovery_id: str, decision: str, who: str) -> None:
    answer = ask(url, f"/api/v1/recoveries/{quoted(recovery_id)}/{decision}", "stage", {"who": who or user()})
    stage = answer["stage"].replace("_", " ")
    said = f"Recovery {answer['id']} of run {answer['run_id']} is {stage}."
    if decision == "approve" and answer["stage"] == "awaiting_approval":
        left = answer["approvals_needed"] - len(answer["approvals"])
        said = f"{said} {counted(left, 'more approval')} needed."
    typer.echo(clean(f"{said} {answer['outcome']}" if decision == "abort" else said))
