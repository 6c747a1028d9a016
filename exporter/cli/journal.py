"""``verl-sentinel journal``: look at, and mend, the journal of an exporter that is stopped. Mounted by the CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter.cli.telling import stop

journal_app = typer.Typer(no_args_is_help=True, help="The journal of an exporter that is stopped: check, repair.")

DataDir = Annotated[Path, typer.Argument(help="Data folder of the exporter (data_dir).")]


@journal_app.command("check")
def journal_check(data_dir: DataDir) -> None:
    """Read all of the journal and say what is wrong with it; exit code 1 where something is."""
    from exporter.service.journal import FILE_NAME
    from exporter.service.repair import problems
    from exporter.service.stored import JournalUnavailable

    try:
        found = problems(data_dir / FILE_NAME)
    except JournalUnavailable as error:
        stop(str(error), 2)
    for sentence in found:
        typer.echo(sentence)
    if found:
        raise typer.Exit(1)
    typer.echo(f"The journal in {data_dir} is as it was written.")


@journal_app.command("repair")
def journal_repair(data_dir: DataDir) -> None:
    """Make a new journal of all that can be read; the damaged file is kept beside it under another name."""
    import time

    from exporter.app.lifecycle import take_folder
    from exporter.config import ConfigError
    from exporter.service.journal import FILE_NAME
    from exporter.service.repair import problems, salvage
    from exporter.service.stored import JournalUnavailable

    path = data_dir / FILE_NAME
    if not path.is_file():
        stop(f"There is no journal at {path}.", 2)
    try:
        with take_folder(data_dir):
            if not problems(path):
                typer.echo(f"The journal in {data_dir} is as it was written: nothing to do.")
                return
            typer.echo(f"Repaired: {salvage(path, int(time.time())).sentence}.")
    except (JournalUnavailable, ConfigError) as error:
        stop(str(error), 2)
