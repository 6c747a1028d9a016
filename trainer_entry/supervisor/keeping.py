"""What a run was started with beyond the trainer's words, kept for the next supervisor that is told nothing of it.

A supervisor that a script starts at night is given the state directory and little else, in the shell of whoever is on
call. It is to stop the trainer as patiently, run the same scripts and push with the same identity as the one before.
Kept in ``run.json`` by :mod:`trainer_entry.supervisor.command`, read also by what acts without a supervisor. Of the
environment only our own variables are kept, and no secret: a token by the path of its file. The policy of the tiers is
kept beside the copies (``trainer_entry.checkpoints.tiers.jobs.RunNote``).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from trainer_entry import settings
from trainer_entry.environments.places import DIRECTORY, default_directory
from trainer_entry.supervisor.script import script_of, shipped_scripts
from trainer_entry.supervisor.state import Kept, StateError
from trainer_entry.supervisor.stopping import StopLimits

_PATHS = (settings.TOKEN_FILE, settings.CA_FILE)
_PLAIN = (settings.COHORT, settings.GPU_SECONDS, settings.MEMORY_LIMIT)
_TIMES = tuple(name for name in Kept.__struct_fields__ if name.endswith("_seconds"))


def kept(parsed: argparse.Namespace, stored: Kept, environ: Mapping[str, str]) -> Kept:
    """What is in force from now on: what is given replaces what is stored, one by one."""
    found: dict[str, object] = {name: getattr(parsed, name) for name in _TIMES if getattr(parsed, name) is not None}
    if parsed.rollback_scripts is not None:
        found["rollback_scripts"] = os.path.abspath(parsed.rollback_scripts)
    if parsed.environments_dir is not None or environ.get(DIRECTORY):
        found["environments"] = os.path.abspath(parsed.environments_dir or environ[DIRECTORY])
    own = {name: environ[name] for name in _PLAIN if environ.get(name)}
    own |= {name: os.path.abspath(environ[name].strip()) for name in _PATHS if environ.get(name, "").strip()}
    found["environ"] = {**stored.environ, **own}
    found["token_given"] = stored.token_given or bool(environ.get(settings.TOKEN))
    return msgspec.structs.replace(stored, **found)


def limits_of(run: Kept) -> StopLimits:
    """How long a stop of this run may take."""
    usual = StopLimits()
    return StopLimits(
        clean_seconds=_or(run.clean_stop_seconds, usual.clean_seconds),
        rollback_clean_seconds=_or(run.rollback_clean_seconds, usual.rollback_clean_seconds),
        term_seconds=_or(run.term_seconds, usual.term_seconds),
        kill_seconds=_or(run.kill_seconds, usual.kill_seconds),
    )


def scripts_of(run: Kept, *, given: bool, say: Callable[[str], None]) -> Path:
    """The folder of rollback scripts. One that is kept and gone is no reason to leave the run down: the shipped ones.

    Raises StateError for one that was ``given`` just now.
    """
    scripts = Path(run.rollback_scripts) if run.rollback_scripts else shipped_scripts()
    if scripts.is_dir() and script_of("checkpoint", scripts).is_file():
        return scripts
    if given or not run.rollback_scripts:
        raise StateError(f"There are no rollback scripts in {scripts}; give their folder with --rollback-scripts.")
    say(f"the folder of rollback scripts {scripts} is gone; the shipped scripts are used")
    return shipped_scripts()


def environments_of(parsed: argparse.Namespace, run: Kept | None) -> Path:
    """The folder of environments: as an option or the environment names it, as the run keeps it, else the usual one."""
    given: Path | None = parsed.environments_dir
    if given is not None:
        return Path(os.path.abspath(given))
    if run is not None and run.environments and not os.environ.get(DIRECTORY):
        return Path(run.environments)
    return default_directory()


def environment_for(run: Kept, environ: Mapping[str, str]) -> dict[str, str]:
    """For a supervisor that is started from another shell: that shell's variables, but of ours only the run's own.

    The token of the shell is handed on where the run keeps no file of one: without any the exporter would refuse it.
    """
    theirs = set(settings.VARIABLES)
    if settings.TOKEN_FILE not in run.environ:
        theirs -= {settings.TOKEN, settings.TOKEN_FILE}
    return {name: value for name, value in environ.items() if name not in theirs} | run.environ


def _or(value: float | None, usual: float) -> float:
    return usual if value is None else value
