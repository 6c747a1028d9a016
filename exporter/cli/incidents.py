"""``verl-sentinel incidents`` and ``acknowledge``. Mounted by :mod:`exporter.cli`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Url, Who, ask, user
from exporter.cli.showing import ago, clean, show_json, show_rows

COLUMNS = ("incident", "severity", "state", "onset", "opened", "summary")
MOST_ADVICE = 3


def incidents(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Resolved ones too.")] = False,
) -> None:
    """List incidents, the newest first, with what belongs together under one headline."""
    answer = ask(url, "/api/v1/incidents", "incidents")
    if as_json:
        show_json(answer)
        return
    shown = {it["id"]: it for it in answer["incidents"] if everything or it["state"] != "resolved"}
    situations = [it for it in answer.get("situations", ()) if everything or it["state"] != "resolved"]
    for situation in situations:
        found = [shown.pop(one["incident"], None) for one in situation["findings"]]
        _show(situation, [it for it in found if it is not None], everything)
    if shown or not situations:
        show_rows(COLUMNS, _rows(shown.values()))


def _show(situation: Mapping[str, Any], found: Iterable[Mapping[str, Any]], everything: bool) -> None:
    """One situation: its headline, why, what to try, and its findings in the order in which they came."""
    where = f"Run {clean(situation['run_id'])}, attempt {situation['attempt']}, {situation['state']}"
    typer.echo(f"{where}, {ago(situation['opened_at'])}")
    typer.echo(f"  {clean(situation['headline'])}")
    if situation["cause"]:
        typer.echo(f"  likely cause: {clean(situation['cause'])}")
    for advice in situation["advice"] if everything else situation["advice"][:MOST_ADVICE]:
        typer.echo(f"  try: {clean(advice)}")
    show_rows(COLUMNS, _rows(found))
    typer.echo("")


def _rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (it["id"], it["severity"], it["state"], str(it["onset"]), ago(it["opened_at"]), it["summary"]) for it in found
    ]


def acknowledge(
    incident_id: Annotated[str, typer.Argument(help="Id of the incident.")],
    url: Url = DEFAULT_URL,
    who: Who = "",
    together: Annotated[
        bool, typer.Option("--together", help="Also every other open incident of its situation.")
    ] = False,
) -> None:
    """Say that a person has seen an incident."""
    for one in [incident_id, *(_others(url, incident_id) if together else ())]:
        answer = ask(url, "/api/v1/incidents/acknowledge", "state", {"id": one, "who": who or user()})
        typer.echo(f"Incident {clean(answer['id'])} is {answer['state']}.")


def _others(url: str, incident_id: str) -> list[str]:
    """The incidents that belong together with this one and that nobody has acknowledged."""
    situations = ask(url, "/api/v1/incidents", "situations")["situations"]
    theirs = (s["findings"] for s in situations if any(one["incident"] == incident_id for one in s["findings"]))
    return [one["incident"] for one in next(theirs, ()) if one["state"] == "opened" and one["incident"] != incident_id]
