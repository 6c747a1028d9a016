"""``verl-sentinel notify``: whether messages arrive. Mounted by :mod:`exporter.cli.program`."""

from __future__ import annotations

from typing import Annotated

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Url, answered, user
from exporter.cli.showing import clean, show_json
from exporter.cli.telling import stop

notify_app = typer.Typer(no_args_is_help=True, help="Messages to the targets of the exporter's section notify.")

LONGEST_DELIVERY_SECONDS = 130.0
"""The exporter waits for a target for up to two minutes, by its configuration."""


@notify_app.callback()
def notify() -> None:
    """Messages to the targets of the exporter's section notify."""


@notify_app.command("test")
def notify_test(
    target: Annotated[str, typer.Option("--target", help="Only to this one; otherwise to all.")] = "",
    url: Url = DEFAULT_URL,
    who: Annotated[str, typer.Option("--who", help="Who asks; stands in the message. Default: your user name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Have the exporter send a test message, and say which targets took it."""
    import json

    asked = {"who": who or user(), "target": target}
    with answered(url, "/api/v1/notify/test", asked, timeout=LONGEST_DELIVERY_SECONDS) as response:
        answer = json.load(response)
    if not isinstance(answer, dict) or "targets" not in answer:
        stop(f"What answers at {url} is not a verl-sentinel exporter. Is --url right?", 1)
    if as_json:
        show_json(answer)
        return
    for one in answer["targets"]:
        typer.echo(f"Target {clean(one['target'])} took the message.")
