"""``verl-sentinel runs``: list, show, export and forget. Mounted by :mod:`exporter.cli`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Url, Who, answered, ask, quoted, user
from exporter.cli.showing import ago, clean, show_json, show_rows
from exporter.cli.telling import stop, tell

runs_app = typer.Typer(help="Runs: list (also without a command), show, export, forget.")

RunId = Annotated[str, typer.Argument(help="Id of the run.")]

_T = TypeVar("_T")

EXPORT_TIMEOUT_SECONDS = 300.0
"""The exporter reads a run once in whole before it sends the first line."""
CHUNK_BYTES = 256 * 1024


Running = Annotated[bool, typer.Option("--running", help="List only runs that are running.")]
Project = Annotated[str, typer.Option("--project", help="List only runs of this project.")]


@runs_app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    running: Running = False,
    project: Project = "",
) -> None:
    """Runs: list (also without a command), show, export, forget."""
    command = context.invoked_subcommand
    if command is None:
        runs_list(url, as_json, running, project)
        return
    options = (("url", "--url"), ("as_json", "--json"), ("running", "--running"), ("project", "--project"))
    for name, option in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            stop(f"{option} comes after the command: verl-sentinel runs {command} … {option}.", 2)


@runs_app.command("list")
def runs_list(url: Url = DEFAULT_URL, as_json: AsJson = False, running: Running = False, project: Project = "") -> None:
    """List all runs, or some of them."""
    answer = ask(url, "/api/v1/runs", "runs")
    answer["runs"] = [
        run for run in answer["runs"] if (run["running"] or not running) and (run["project"] == project or not project)
    ]
    if as_json:
        show_json(answer)
        return
    rows = [
        (
            run["run_id"],
            run["trainer"] or "-",
            str(run["attempt"]),
            "running" if run["running"] else "ended",
            "-" if run["step"] is None else str(run["step"]),
            ago(run["last_push"] or run["first_seen"]),
            str(run["open_incidents"]),
        )
        for run in answer["runs"]
    ]
    show_rows(("run", "trainer", "attempt", "state", "step", "last push", "open incidents"), rows)


@runs_app.command("show")
def runs_show(
    run_id: RunId,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All checkpoints, incidents and settings, not only the newest.")
    ] = False,
) -> None:
    """Show what is known of one run."""
    answer = ask(url, f"/api/v1/runs/{quoted(run_id)}", "run")
    if as_json:
        show_json(answer)
        return
    from exporter.cli.run_summary import print_summary

    print_summary(answer, everything=everything)


@runs_app.command("export")
def runs_export(
    run_id: RunId,
    url: Url = DEFAULT_URL,
    form: Annotated[
        Literal["jsonl", "csv"], typer.Option("--format", help="verl's own file form (JSONL), or CSV.")
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, whole or not at all. Default: stdout.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Steps of this attempt only.")] = None,
    all_attempts: Annotated[
        bool,
        typer.Option("--all-attempts", help="Also steps that a later attempt took back; each says of which attempt."),
    ] = False,
) -> None:
    """Write the metrics of every step of a run, under verl's own keys."""
    wanted = f"format={form}"
    wanted += f"&attempt={attempt}" if attempt is not None else ""
    wanted += "&all_attempts=true" if all_attempts else ""
    path = f"/api/v1/runs/{quoted(run_id)}/steps?{wanted}"
    with answered(url, path, timeout=EXPORT_TIMEOUT_SECONDS) as body:
        if body.info().get_content_type() not in ("application/jsonl", "text/csv"):  # type: ignore[attr-defined]
            stop(f"What answers at {url} is not a verl-sentinel exporter. Is --url right?", 1)
        # All of an export without a step: nothing, or the heads of the columns.
        start = body.read(CHUNK_BYTES)
        if start.count(b"\n") < (2 if form == "csv" else 1):
            if attempt is not None:
                stop(f"Run {run_id} has no steps of attempt {attempt}: nothing was written.", 1)
            tell(f"Run {run_id} has no steps, or none that is kept.")
        pieces = chain([start], iter(lambda: body.read(CHUNK_BYTES), b""))
        if output is None or (output.exists() and not output.is_file()):
            _write_through(pieces, output)
        else:
            _write_file(pieces, output)


def _write_through(pieces: Iterable[bytes], output: Path | None) -> None:
    """To stdout, a pipe or a device, as it comes."""
    name = "The output" if output is None else str(output)
    with _opened(output or sys.stdout.fileno(), "wb", name) as out:
        _copy(pieces, out, name)


def _write_file(pieces: Iterable[bytes], output: Path) -> None:
    """To a file that gets its name only when it is complete."""
    # A name of its own in the same folder, so that the last move is atomic, and two exports do not meet.
    part = output.with_name(f".{output.name[:200]}.{os.getpid()}.part")
    try:
        with _opened(part, "xb", str(output)) as out:
            _copy(pieces, out, str(output))
            _or_stop(lambda: os.fsync(out.fileno()), str(output))
        _or_stop(lambda: os.replace(part, output), str(output))
    finally:
        part.unlink(missing_ok=True)


def _opened(where: Path | int, mode: str, name: str) -> io.FileIO:
    # Unbuffered: what cannot be written fails here, and not once more when the file is closed.
    return _or_stop(lambda: io.FileIO(where, mode, closefd=not isinstance(where, int)), name)


def _copy(pieces: Iterable[bytes], out: io.FileIO, name: str) -> None:
    for chunk in pieces:
        rest = memoryview(chunk)
        while rest:
            rest = rest[_or_stop(partial(out.write, rest), name) :]


def _or_stop(write: Callable[[], _T], name: str) -> _T:
    """Do something with the output; ends the program with a sentence where it fails."""
    try:
        return write()
    except BrokenPipeError:  # whoever read has enough (``| head``)
        raise typer.Exit(141) from None
    except OSError as error:
        stop(f"{name} cannot be written: {error.strerror or error}.", 1)


@runs_app.command("forget")
def runs_forget(
    run_id: RunId,
    url: Url = DEFAULT_URL,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    who: Who = "",
) -> None:
    """Remove a run that has ended, with its steps, incidents and counters, for good."""
    if not yes:
        if not sys.stdin.isatty():
            stop("Nobody can be asked here whether the run may be removed for good: say so with --yes.", 2)
        if not typer.confirm(f"Remove run {clean(run_id)} with all its steps and incidents for good?"):
            stop("Nothing was removed.", 1)
    ask(url, f"/api/v1/runs/{quoted(run_id)}?who={quoted(who or user())}", "forgotten", method="DELETE")
    typer.echo(f"Run {clean(run_id)} is forgotten.")
