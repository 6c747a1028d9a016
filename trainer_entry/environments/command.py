"""``verl-sentinel-train environments list|build|register|check``. Called by :mod:`trainer_entry.cli`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from trainer_entry.environments.building import build, register
from trainer_entry.environments.checking import check, trainer_module
from trainer_entry.environments.places import environments, find
from trainer_entry.supervisor import exitcodes, offline
from trainer_entry.supervisor.keeping import environments_of
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.state import StateDir


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    group = commands.add_parser(
        "environments", help="verl versions beside the current one, each in an environment of its own"
    ).add_subparsers(required=True, metavar="WHAT")

    listing = group.add_parser("list", help="which there are, and whether they are complete")
    listing.add_argument("--json", action="store_true", help="as one JSON array")
    listing.set_defaults(act=_list)

    building = group.add_parser("build", help="build one over the packages of this interpreter, if it is not complete")
    building.add_argument("version", help="of verl, such as 0.9.0")
    building.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="PATH",
        help="a wheel, a folder of wheels or with verl, a source tree",
    )
    building.add_argument(
        "--with", dest="extra", action="append", default=[], metavar="PACKAGE", help="one more package it needs"
    )
    building.add_argument("--state-dir", type=Path, help="for that run: where it has its environments")
    building.set_defaults(act=_build)

    registering = group.add_parser("register", help="have a ready environment used for a version")
    registering.add_argument("version")
    registering.add_argument("path", type=Path, help="its folder, or its interpreter")
    registering.set_defaults(act=_register)

    checking = group.add_parser("check", help="whether the trainer, our plugin and a checkpoint work in one")
    checking.add_argument("version")
    checking.add_argument("--checkpoint", type=Path, metavar="DIR", help="a global_step_N that must load there")
    checking.add_argument("--state-dir", type=Path, help="the run whose trainer is to be started in it")
    checking.add_argument("--trainer-module", help="the module that must import there (default: as the run says)")
    checking.set_defaults(act=_check)

    for parser in (listing, building, registering, checking):
        parser.add_argument(
            "--environments-dir", type=Path, metavar="DIR", help="where they lie (default: user's cache)"
        )


def directory_of(parsed: argparse.Namespace) -> Path:
    """The folder of environments that the options, the environment or the run name."""
    state = getattr(parsed, "state_dir", None)
    run = StateDir(state).read_run() if state is not None else None
    return environments_of(parsed, run.kept if run is not None else None)


def _list(parsed: argparse.Namespace) -> int:
    found = environments(directory_of(parsed))
    if parsed.json:
        print(
            json.dumps(
                [
                    {
                        "path": str(place),
                        "complete": made is not None,
                        "verl_version": made.verl_version if made else "",
                        "python": made.python if made else "",
                        "source": made.source if made else "",
                    }
                    for place, made in found
                ]
            )
        )
        return exitcodes.OK
    for place, made in found:
        print(f"{made.verl_version}\tcomplete\t{made.python}" if made else f"{place.name[5:]}\thalf-built\t{place}")
    if not found:
        print(f"There are no environments in {directory_of(parsed)}.")
    return exitcodes.OK


def _build(parsed: argparse.Namespace) -> int:
    made = build(directory_of(parsed), parsed.version, source=parsed.source, extra=tuple(parsed.extra), say=say)
    print(made.python)
    return exitcodes.OK


def _register(parsed: argparse.Namespace) -> int:
    print(register(directory_of(parsed), parsed.version, parsed.path).python)
    return exitcodes.OK


def _check(parsed: argparse.Namespace) -> int:
    made = find(directory_of(parsed), parsed.version)
    module = parsed.trainer_module
    if not module:
        run = offline.recorded_run(StateDir(parsed.state_dir)) if parsed.state_dir else None
        module = trainer_module(run.argv if run else [])
    check(made, trainer_module=module, checkpoint=parsed.checkpoint, environ=os.environ, say=say)
    print(made.python)
    return exitcodes.OK
