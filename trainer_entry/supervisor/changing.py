"""``verl-sentinel-train changes``, and the options of ``resume`` and ``rollback`` that change something.

Called by :mod:`trainer_entry.cli`, and through it by the rollback scripts: before the trainer is stopped, to show what
would change and refuse what cannot be changed, and again for the start.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from exporter.protocol import Changes, Scalar
from trainer_entry import environments
from trainer_entry.changes import ChangeError, changes_of, checked, describe, is_empty, merged
from trainer_entry.changes.configuration import difference, merged_with, recorded, shown
from trainer_entry.changes.machines import local_variables
from trainer_entry.changes.sources import from_git, from_manifest
from trainer_entry.changes.words import with_settings
from trainer_entry.checkpoints import newest_verified
from trainer_entry.supervisor import exitcodes, offline
from trainer_entry.supervisor.command import state_of
from trainer_entry.supervisor.keeping import environments_of
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.state import RunRecord, StateDir


def add_options(parser: argparse.ArgumentParser, *, files: bool = True) -> None:
    """The options that say what is to be changed. ``files``: also those that compare configurations."""
    group = parser.add_argument_group("changes", "what the next attempts have that the run's command line does not say")
    add = group.add_argument
    add("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="a setting of the trainer")
    add("--remove", dest="removed", action="append", default=[], metavar="KEY", help="take a setting out")
    if files:
        add("--from-manifest", action="store_true", help="the settings under which the target was saved")
        add(
            "--from-git",
            nargs=3,
            metavar=("REPO", "BRANCH", "FILE"),
            help="the settings in a file (YAML, JSON or key=value lines) at the tip of a branch",
        )
    add("--verl-version", default="", metavar="X.Y.Z", help="run on that version, in its environment")
    add("--exclude", action="append", default=[], metavar="NODE[/GPU]", help="leave out a machine, or a GPU of it")
    add("--skip-steps", type=int, default=0, metavar="N", help="leave out so many batches after the target, once")
    add("--forget-changes", action="store_true", help="drop what earlier rungs have changed")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``verl-sentinel-train changes``."""
    parser = commands.add_parser(
        "changes",
        help="what is changed for later attempts; with options: what a resume with them would change",
        epilog="Exit codes: 0 done, 2 unusable command line, 6 the run cannot be read, 9 it cannot be changed so.",
    )
    parser.add_argument("--state-dir", type=Path, help="the run's state (default: by its id, in the user's cache)")
    parser.add_argument("--run-id", help="the run's identity")
    parser.add_argument("--target", type=Path, metavar="DIR", help="the global_step_N that the run would start from")
    parser.add_argument("--environments-dir", type=Path, metavar="DIR", help="where other verl versions lie")
    parser.add_argument("--json", action="store_true", help="what would be in force, as one JSON object")
    add_options(parser)
    parser.set_defaults(act=show)


def asked_changes(parsed: argparse.Namespace, state: StateDir, target: Path | None) -> Changes:
    """What the options ask for. Raises ChangeError, StateError."""
    asked = changes_of(
        parsed.settings,
        parsed.removed,
        parsed.verl_version,
        parsed.exclude,
        parsed.skip_steps,
        getattr(parsed, "reason", ""),
    )
    by_manifest, by_git = getattr(parsed, "from_manifest", False), getattr(parsed, "from_git", None)
    if not by_manifest and not by_git:
        return asked
    if by_manifest and by_git is not None:
        raise ChangeError("Give --from-manifest or --from-git, not both.")
    run = offline.recorded_run(state)
    now = configuration_now(state, run, Changes() if parsed.forget_changes else run.changes)
    if not now:
        raise ChangeError(
            f"It is not known which configuration the run has: no attempt in {state.path} recorded one, and no "
            "manifest holds one. Give the settings with --set."
        )
    wanted = from_manifest(_manifest_of(target)) if by_git is None else from_git(*by_git)
    found = difference(now, wanted, whole=by_manifest)
    for key, reason in found.left_out.items():
        say(f"{key} differs and is left as it is: {reason}")
    return checked(merged_with(asked, found))


def configuration_now(state: StateDir, run: RunRecord, in_force: Changes) -> dict[str, Scalar]:
    """The flat configuration that the run has now: as its latest attempt recorded it, or its newest checkpoint."""
    found = recorded(state.path, run.attempt)
    if not found:
        chosen = newest_verified(run.checkpoint_dir, depth="sizes").chosen
        if chosen is not None:
            try:
                found = from_manifest(Path(chosen.path))
            except ChangeError:
                return {}
    return {key: value for key, value in {**found, **in_force.settings}.items() if key not in in_force.removed}


def show(parsed: argparse.Namespace) -> int:
    """Print what is in force, or what would be changed; refuse what cannot be."""
    state = state_of(parsed)
    run = offline.recorded_run(state)
    base = Changes() if parsed.forget_changes else run.changes
    try:
        asked = asked_changes(parsed, state, parsed.target)
        after = merged(base, asked)
        _possible(parsed, state, run, after)
    except (ChangeError, environments.VersionError) as error:
        say(str(error))
        return exitcodes.CANNOT_CHANGE
    if parsed.json:
        print(msgspec.json.encode(after).decode())
        return exitcodes.OK
    if is_empty(asked) and not parsed.forget_changes:
        wants = parsed.from_git or parsed.from_manifest
        if wants:
            say("the two configurations are the same; there is nothing to change")
            return exitcodes.CANNOT_CHANGE
        print(f"In force: {describe(run.changes) or 'nothing is changed'}.")
        return exitcodes.OK
    if parsed.forget_changes and not is_empty(run.changes):
        print(f"forgotten: {describe(run.changes)}")
    for line in _lines(configuration_now(state, run, run.changes), asked):
        print(line)
    return exitcodes.OK


def _lines(now: dict[str, Scalar], asked: Changes) -> list[str]:
    lines = shown(now, asked)
    if asked.verl_version:
        lines.append(f"verl: -> {asked.verl_version}, in an environment of its own")
    lines += [
        f"left out: GPU {each.gpu} of {each.node}" if each.gpu else f"left out: {each.node}" for each in asked.exclude
    ]
    if asked.skip_steps:
        lines.append(f"skipped: {asked.skip_steps} batches after the target")
    return lines


def _possible(parsed: argparse.Namespace, state: StateDir, run: RunRecord, after: Changes) -> None:
    """Raises ChangeError or VersionError for what could not be made at a start."""
    argv: Sequence[str] = with_settings(run.argv, after)
    if after.verl_version:
        environments.find(environments_of(parsed, run.kept), after.verl_version)
    if run.executor == "local":
        local_variables(after, argv=argv, config=recorded(state.path, run.attempt), environ=os.environ)


def _manifest_of(target: Path | None) -> Path:
    if target is None:
        raise ChangeError("--from-manifest needs the --target whose manifest is meant.")
    return Path(os.path.abspath(target))
