"""All commands of ``verl-sentinel`` but the parsing of ``replay``. Called by :mod:`exporter.cli`.

The heavy parts are imported by the command that needs them, so that ``--help`` and a question to a running exporter do
not wait for them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from exporter.cli.check import check
from exporter.cli.detectors import detectors
from exporter.cli.export import export
from exporter.cli.following import follow
from exporter.cli.incidents import acknowledge, incidents
from exporter.cli.journal import journal_app
from exporter.cli.notify import notify_app
from exporter.cli.policy import policy_app
from exporter.cli.postmortem import postmortem
from exporter.cli.recoveries import audit, recoveries_app
from exporter.cli.runs import runs_app
from exporter.cli.telling import stop

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Watch verl training runs."
)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"verl-sentinel {version('verl-sentinel')}")
        except PackageNotFoundError:
            stop("This copy is not installed as a package, so its version is not known.", 1)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Watch verl training runs."""


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
    from exporter.console import console

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        run(load(config, listen=listen, data_dir=data_dir), rooms=(console,))
    except ConfigError as error:
        stop(str(error), 2)


app.add_typer(runs_app, name="runs")
app.command()(incidents)
app.command()(acknowledge)
app.add_typer(recoveries_app, name="recoveries")
app.add_typer(policy_app, name="policy")
app.add_typer(notify_app, name="notify")
app.add_typer(journal_app, name="journal")
app.command()(audit)
app.command()(postmortem)
app.command()(follow)
app.command()(detectors)
app.command()(check)
app.command()(export)


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def replay(context: typer.Context) -> None:
    """Say of past runs what would have been said, and when."""
    from exporter.cli.replay import main as replay_main

    raise typer.Exit(replay_main(context.args))


COMMANDS = tuple(
    command.name or (command.callback.__name__ if command.callback else "") for command in app.registered_commands
) + tuple(str(group.name) for group in app.registered_groups)
"""Names of all commands: what does not start with one of them is for ``serve``, where the program is the module."""
