"""``verl-sentinel runs``: list, show, export and forget. Mounted by :mod:`exporter.cli`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Annotated, Literal

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Url, answered, ask, quoted, stop
from exporter.cli.showing import ago, clean, show_json, show_rows

runs_app = typer.Typer(help="Runs: list (also without a command), show, export, forget.")

RunId = Annotated[str, typer.Argument(help="Id of the run.")]

EXPORT_TIMEOUT_SECONDS = 300.0
"""The exporter reads a run once in whole before it sends the first line."""
CHUNK_BYTES = 256 * 1024


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Runs: list (also without a command), show, export, forget."""
    command = context.invoked_subcommand
    if command is None:
        runs_list(url, as_json)
        return
    for name, option in (("url", "--url"), ("as_json", "--json")):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            stop(f"{option} comes after the command: verl-sentinel runs {command} … {option}.", 2)


@runs_app.command("list")
def runs_list(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all runs."""
    answer = ask(url, "/api/v1/runs", "runs")
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
        if output is None or (output.exists() and not output.is_file()):
            _write_through(body, output)
        else:
            _write_file(body, output)


def _write_through(body: IO[bytes], output: Path | None) -> None:
    """To stdout, a pipe or a device, as it comes."""
    try:
        out = sys.stdout.buffer if output is None else output.open("wb")
    except OSError as error:
        stop(f"{output} cannot be written: {error.strerror or error}.", 1)
    try:
        while chunk := body.read(CHUNK_BYTES):
            _write(out, chunk, str(output or "The output"))
        _flush(out, str(output or "The output"))
    finally:
        if output is not None:
            out.close()


def _write_file(body: IO[bytes], output: Path) -> None:
    """To a file that gets its name only when it is complete."""
    # A name of its own in the same folder, so that the last move is atomic, and two exports do not meet.
    part = output.with_name(f".{output.name[:200]}.{os.getpid()}.part")
    try:
        try:
            out = part.open("xb")
        except OSError as error:
            stop(f"{output} cannot be written: {error.strerror or error}.", 1)
        with out:
            while chunk := body.read(CHUNK_BYTES):
                _write(out, chunk, str(output))
            _flush(out, str(output))
        try:
            os.replace(part, output)
        except OSError as error:
            stop(f"{output} cannot be written: {error.strerror or error}.", 1)
    finally:
        part.unlink(missing_ok=True)


def _write(out: IO[bytes], chunk: bytes, name: str) -> None:
    try:
        out.write(chunk)
    except BrokenPipeError:
        _reader_left()
    except OSError as error:
        stop(f"{clean(name)} cannot be written: {error.strerror or error}.", 1)


def _flush(out: IO[bytes], name: str) -> None:
    try:
        out.flush()
        if out is not sys.stdout.buffer:
            os.fsync(out.fileno())
    except BrokenPipeError:
        _reader_left()
    except OSError as error:
        stop(f"{clean(name)} cannot be written: {error.strerror or error}.", 1)


def _reader_left() -> None:
    """Whoever read has enough (``| head``): end quietly, and let nothing be flushed to it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(141)


@runs_app.command("forget")
def runs_forget(
    run_id: RunId,
    url: Url = DEFAULT_URL,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a run that has ended, with its steps, incidents and counters, for good."""
    if not yes:
        if not sys.stdin.isatty():
            stop("Nobody can be asked here whether the run may be removed for good: say so with --yes.", 2)
        if not typer.confirm(f"Remove run {clean(run_id)} with all its steps and incidents for good?"):
            stop("Nothing was removed.", 1)
    ask(url, f"/api/v1/runs/{quoted(run_id)}", "forgotten", method="DELETE")
    typer.echo(f"Run {clean(run_id)} is forgotten.")
