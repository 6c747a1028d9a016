"""``verl-sentinel follow``. Mounted by :mod:`exporter.cli`; the work is :mod:`exporter.follow`'s."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from exporter.cli.asking import DEFAULT_URL, Url, bearer, check_url, opener
from exporter.cli.telling import stop, tell

PATIENCE_SECONDS = 30.0
"""How long ``--once`` waits for an exporter that takes nothing."""


def follow(
    file: Annotated[Path, typer.Argument(help="verl's file log (JSONL) or console log; .gz with --once.")],
    url: Url = DEFAULT_URL,
    run_id: Annotated[
        str,
        typer.Option("--run-id", envvar="VERL_SENTINEL_RUN_ID", help="Id of the run. Default: from the path."),
    ] = "",
    project: Annotated[str, typer.Option("--project", help="Default: the name of the file's folder.")] = "",
    experiment: Annotated[str, typer.Option("--experiment", help="Default: the file's name.")] = "",
    cohort: Annotated[
        str, typer.Option("--cohort", envvar="VERL_SENTINEL_COHORT", help="What the run is compared within.")
    ] = "",
    kind: Annotated[Literal["auto", "jsonl", "console"], typer.Option("--kind", help="What the file holds.")] = "auto",
    from_start: Annotated[
        bool, typer.Option("--from-start/--from-end", help="Whether steps that are there already are pushed.")
    ] = True,
    once: Annotated[bool, typer.Option("--once", help="Push what is there, say that the run is over, end.")] = False,
    last_step: Annotated[
        int, typer.Option("--last-step", min=0, help="The run is over with this step. A console log tells by itself.")
    ] = 0,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Where attempts are counted. Default: the user's state folder.")
    ] = None,
) -> None:
    """Push what verl logs into a file, so that a run that nobody instrumented can be watched."""
    import signal
    import time

    from exporter.cli.ending import Ending
    from exporter.follow.delivery import Delivery
    from exporter.follow.follower import Follower, Wanted
    from exporter.follow.naming import run_named
    from exporter.follow.place import PlaceFile, PlaceUnusable, default_folder
    from exporter.follow.shipping import GiveUp, Shipping
    from exporter.follow.tail import FileUnreadable, Packed, Tail

    check_url(url)
    path = Path(os.path.abspath(file))
    packed = path.suffix == ".gz"
    if packed and not once:
        stop(f"{path} is packed, so it does not grow: give --once with it.", 2)
    run = run_named(path, run_id=run_id, project=project, experiment=experiment, cohort=cohort)
    ended = Ending(signal.SIGTERM, signal.SIGINT)
    try:
        places = PlaceFile(state_dir or default_folder(), url, run.run_id)
    except PlaceUnusable as error:
        stop(str(error), 1)
    tail = Packed(path) if packed else Tail(path)
    shipping = Shipping(
        Delivery(url, opener(url), bearer),
        run,
        config={"follow.file": str(path)},
        clock=time.monotonic,
        unix=time.time,
        say=tell,
        patience=PATIENCE_SECONDS if once else None,
    )
    wanted = Wanted(kind=kind, from_end=not from_start, once=once, last_step=last_step)
    follower = Follower(tail, shipping, places, wanted, clock=time.monotonic, unix=time.time, stop=ended, say=tell)
    tell(f"Following {path} as run {run.run_id}, for {url}.")
    try:
        tell(follower.run())
    except (GiveUp, FileUnreadable, PlaceUnusable) as error:
        stop(str(error), 1)
    finally:
        tail.close()
        places.close()
