"""``verl-sentinel postmortem``. Mounted by :mod:`exporter.cli`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from exporter.cli.asking import DEFAULT_URL, Url, answered, quoted
from exporter.cli.telling import stop

_PICTURE = re.compile(r"^!\[[^\]]*\]\(([A-Za-z0-9_-]+\.png)\)$", re.M)
MOST_BYTES = 64 * 1024 * 1024


def postmortem(
    recovery_id: Annotated[str, typer.Argument(help="Id of the recovery.")],
    url: Url = DEFAULT_URL,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the text and its pictures into this folder instead.")
    ] = None,
) -> None:
    """Print the post-mortem of a recovery that has ended, as Markdown."""
    path = f"/api/v1/recoveries/{quoted(recovery_id)}/postmortem"
    with answered(url, path) as response:
        body = response.read(MOST_BYTES)
    if out is None:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        return
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        stop(f"What answers at {url} is not a verl-sentinel exporter. Is --url right?", 1)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "postmortem.md").write_bytes(body)
        for name in dict.fromkeys(_PICTURE.findall(text)):
            with answered(url, f"{path}/{quoted(name)}") as response:
                (out / name).write_bytes(response.read(MOST_BYTES))
    except OSError as error:
        stop(f"{out} cannot be written: {error.strerror or error}.", 1)
    typer.echo(f"Written to {out / 'postmortem.md'}.")
