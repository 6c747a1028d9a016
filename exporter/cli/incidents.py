"""``verl-sentinel incidents`` and ``acknowledge``. Mounted by :mod:`exporter.cli`."""

from __future__ import annotations

from typing import Annotated

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Url, Who, ask, user
from exporter.cli.showing import ago, clean, show_json, show_rows


def incidents(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Resolved ones too.")] = False,
) -> None:
    """List incidents, the newest first."""
    answer = ask(url, "/api/v1/incidents", "incidents")
    if as_json:
        show_json(answer)
        return
    rows = [
        (it["id"], it["severity"], it["state"], str(it["onset"]), ago(it["opened_at"]), it["summary"])
        for it in answer["incidents"]
        if everything or it["state"] != "resolved"
    ]
    show_rows(("incident", "severity", "state", "onset", "opened", "summary"), rows)


def acknowledge(
    incident_id: Annotated[str, typer.Argument(help="Id of the incident.")], url: Url = DEFAULT_URL, who: Who = ""
) -> None:
    """Say that a person has seen an incident."""
    answer = ask(url, "/api/v1/incidents/acknowledge", "state", {"id": incident_id, "who": who or user()})
    typer.echo(f"Incident {clean(answer['id'])} is {answer['state']}.")
