"""``verl-sentinel``: run the exporter, and look at one that runs. The heavy parts are imported by the command that
needs them, so that ``--help`` and a question to a running exporter do not wait for them."""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

COMMANDS = ("serve", "runs", "incidents", "acknowledge", "recoveries", "audit")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Watch verl training runs."
)
recoveries_app = typer.Typer(no_args_is_help=True, help="Recoveries: list, show, approve, refuse, acknowledge.")
app.add_typer(recoveries_app, name="recoveries")

Url = Annotated[str, typer.Option("--url", envvar="VERL_SENTINEL_URL", help="Base URL of the exporter.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the exporter's answer as it is.")]
Who = Annotated[str, typer.Option("--who", help="Who decides; goes into the audit log. Default: your user name.")]
RecoveryId = Annotated[str, typer.Argument(help="Id of the recovery.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000)]

DEFAULT_URL = "http://127.0.0.1:9464"
TIMEOUT_SECONDS = 10.0
WIDE = 100_000
"""Columns of what is not a terminal: a line for each row."""
LEAST_PROSE = 30
"""Columns for sentences, also where a narrow terminal then folds the lines by itself."""


def main() -> None:
    """Entry point of the program."""
    app(prog_name="verl-sentinel")


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("--config", help="Configuration file (YAML).")] = None,
    listen: Annotated[str | None, typer.Option("--listen", help="Address and port; overrides the file.")] = None,
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Data folder; overrides the file.")] = None,
) -> None:
    """Run the exporter until SIGTERM or Ctrl-C."""
    import logging

    from exporter.app import serve as run
    from exporter.config import ConfigError, load

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        run(load(config, listen=listen, data_dir=data_dir))
    except ConfigError as error:
        stop(str(error), 2)


@app.command()
def runs(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all runs."""
    answer = ask(url, "/api/v1/runs", "runs")
    rows = [
        (
            run["run_id"],
            run["trainer"],
            str(run["attempt"]),
            "running" if run["running"] else "ended",
            "-" if run["step"] is None else str(run["step"]),
            ago(run["last_push"]),
            str(run["open_incidents"]),
        )
        for run in answer["runs"]
    ]
    show(answer, as_json, ("run", "trainer", "attempt", "state", "step", "last push", "open incidents"), rows)


@app.command()
def incidents(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Resolved ones too.")] = False,
) -> None:
    """List incidents, the newest first."""
    answer = ask(url, "/api/v1/incidents", "incidents")
    rows = [
        (it["id"], it["severity"], it["state"], str(it["onset"]), ago(it["opened_at"]), it["summary"])
        for it in answer["incidents"]
        if everything or it["state"] != "resolved"
    ]
    show(answer, as_json, ("incident", "severity", "state", "onset", "opened", "summary"), rows)


@app.command()
def acknowledge(
    incident_id: Annotated[str, typer.Argument(help="Id of the incident.")], url: Url = DEFAULT_URL, who: Who = ""
) -> None:
    """Say that a person has seen an incident."""
    answer = ask(url, "/api/v1/incidents/acknowledge", "state", {"id": incident_id, "who": who or user()})
    typer.echo(f"Incident {answer['id']} is {answer['state']}.")


@app.command()
def audit(url: Url = DEFAULT_URL, as_json: AsJson = False, limit: Limit = 100) -> None:
    """Show the audit log, the newest first."""
    answer = ask(url, f"/api/v1/audit?limit={limit}", "audit")
    rows = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["at"])), line["run_id"], line["kind"], line["summary"])
        for line in answer["audit"]
    ]
    show(answer, as_json, ("time", "run", "kind", "what"), rows)


@recoveries_app.command("list")
def recoveries_list(url: Url = DEFAULT_URL, as_json: AsJson = False, limit: Limit = 100) -> None:
    """List recoveries, the newest first."""
    answer = ask(url, f"/api/v1/recoveries?limit={limit}", "recoveries")
    rows = [
        (it["id"], it["run_id"], str(it["attempt"]), it["action"], it["stage"], it["outcome"] or it["reason"])
        for it in answer["recoveries"]
    ]
    show(answer, as_json, ("recovery", "run", "attempt", "action", "stage", "why"), rows)


@recoveries_app.command("show")
def recoveries_show(recovery_id: RecoveryId, url: Url = DEFAULT_URL) -> None:
    """Show one recovery with its evidence, as JSON."""
    typer.echo(json.dumps(ask(url, f"/api/v1/recoveries/{quoted(recovery_id)}", "stage"), indent=2))


@recoveries_app.command("approve")
def recoveries_approve(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Let a recovery that waits for approval go ahead."""
    decide(url, recovery_id, "approve", who)


@recoveries_app.command("refuse")
def recoveries_refuse(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Call off a recovery that waits for approval."""
    decide(url, recovery_id, "refuse", who)


@recoveries_app.command("acknowledge")
def recoveries_acknowledge(recovery_id: RecoveryId, url: Url = DEFAULT_URL, who: Who = "") -> None:
    """Take note that a recovery has failed; its alert ends."""
    decide(url, recovery_id, "acknowledge", who)


def decide(url: str, recovery_id: str, decision: str, who: str) -> None:
    answer = ask(url, f"/api/v1/recoveries/{quoted(recovery_id)}/{decision}", "stage", {"who": who or user()})
    typer.echo(f"Recovery {answer['id']} of run {answer['run_id']} is {answer['stage'].replace('_', ' ')}.")


def user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        stop("This user has no name on this machine: say who decides with --who.", 2)


def ask(url: str, path: str, part: str, content: dict[str, Any] | None = None) -> Any:
    """GET, or POST ``content`` as JSON; ends the program with a sentence where that fails.

    ``part`` is a name that the exporter's answer has: without it, something else answers at that address.
    """
    if not url.startswith(("http://", "https://")):
        stop(f"--url is {url!r}: an address that starts with http:// or https:// is expected.", 2)
    request = urllib.request.Request(url.rstrip("/") + path, headers={"Accept": "application/json"})
    if content is not None:
        request.data = json.dumps(content).encode()
        request.add_header("Content-Type", "application/json")
    token = operator_token()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with opener(url).open(request, timeout=TIMEOUT_SECONDS) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        try:
            reason = json.load(error)["reason"]
        except (ValueError, KeyError, TypeError):
            reason = f"it answered {error.code} {error.reason}."
        stop(f"The exporter at {url} refused: {reason}", 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error).strip() or type(error).__name__
        stop(f"The exporter at {url} cannot be asked: {reason}. Is it running, and is --url right?", 1)
    if not isinstance(answer, dict) or part not in answer:
        stop(f"What answers at {url} is not a verl-sentinel exporter. Is --url right?", 1)
    return answer


def opener(url: str) -> urllib.request.OpenerDirector:
    """Through the user's proxy, if there is one, but never to this machine itself: the proxy is another one."""
    host = urllib.parse.urlsplit(url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))


def operator_token() -> str:
    """From ``VERL_SENTINEL_TOKEN``, or the file that ``VERL_SENTINEL_TOKEN_FILE`` names; empty where neither is set."""
    file = os.environ.get("VERL_SENTINEL_TOKEN_FILE")
    if os.environ.get("VERL_SENTINEL_TOKEN") or not file:
        token, origin = os.environ.get("VERL_SENTINEL_TOKEN", "").strip(), "VERL_SENTINEL_TOKEN"
    else:
        origin = f"The token file {file} (VERL_SENTINEL_TOKEN_FILE)"
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            stop(f"{origin} cannot be read: {error}.", 2)
    if not re.fullmatch(r"[\x21-\x7e]*", token):
        stop(f"{origin} holds a token with spaces, line ends or characters outside ASCII.", 2)
    return token


def show(answer: Any, as_json: bool, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # The last column is prose and gives way. The others hold ids that are to be copied: they are never cut off.
    table, whole = Table(box=None, pad_edge=False), 0
    for index, column in enumerate(columns[:-1]):
        width = max([len(column), *(len(row[index]) for row in rows)])
        table.add_column(column, no_wrap=True, min_width=width)
        whole += width + 2
    table.add_column(columns[-1])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as text: what senders named is no markup
    console = Console()
    to_a_program = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = WIDE if to_a_program else max(console.width, whole + LEAST_PROSE)
    console.print(table if rows else "None.")


def ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


def stop(sentence: str, code: int) -> NoReturn:
    typer.echo(f"verl-sentinel: {sentence}", err=True)
    raise typer.Exit(code)
