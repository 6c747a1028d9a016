"""What an attempt is started with: its words and variables, with the changes that are in force. Used by ``lifecycle``.

Also how what is asked for adds to what is in force, for the supervisor and for a resume that is recorded without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from exporter.protocol import Changes
from trainer_entry import checkpoints, settings
from trainer_entry.changes import ChangeError, is_empty, merged
from trainer_entry.changes.configuration import recorded
from trainer_entry.changes.machines import local_variables
from trainer_entry.changes.words import with_interpreter, with_settings
from trainer_entry.environments import VersionError, find, variables
from trainer_entry.supervisor.starting import Start
from trainer_entry.supervisor.state import RunRecord, StateDir, StateError


class CannotChange(StateError):
    """A change cannot be made here; nothing was started."""


@dataclass(frozen=True, slots=True)
class InForce:
    """All changes of a run, and the step whose data position their ``skip_steps`` count from."""

    changes: Changes
    skip_from: int | None


@dataclass(frozen=True, slots=True)
class Outfit:
    """Words and variables of one attempt; ``changes`` is what of the run's changes counts for it."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    changes: Changes


def changes_from(run: RunRecord, asked: Changes, step: int, *, forget: bool = False) -> InForce:
    """What is in force once ``asked`` is: it adds to what was, or replaces all of it. Raises CannotChange.

    Batches that are skipped after a step stay skipped when the run comes back to that very step.
    """
    try:
        changes = merged(Changes() if forget else run.changes, asked)
    except ChangeError as error:
        raise CannotChange(str(error)) from error
    if not forget and not asked.skip_steps and run.skip_from == step:
        changes = replace(changes, skip_steps=run.changes.skip_steps)
    return InForce(changes, step if changes.skip_steps else None)


def outfit(
    state: StateDir,
    run: RunRecord,
    start: Start,
    in_force: InForce,
    environ: Mapping[str, str],
    *,
    environments: Path,
    executor: str,
) -> Outfit:
    """Make the changes to the words and variables of a start. Raises CannotChange where one cannot be made."""
    changes = in_force.changes
    if changes.skip_steps and in_force.skip_from != _step_of(run, start):
        changes = replace(changes, skip_steps=0)
    clean = {name: value for name, value in environ.items() if name != settings.CHANGES}
    if is_empty(changes):
        return Outfit(start.argv, clean, changes)
    try:
        argv = with_settings(start.argv, changes)
        added = {settings.CHANGES: msgspec.json.encode(changes).decode()}
        if changes.verl_version:
            environment = find(environments, changes.verl_version)
            argv = with_interpreter(argv, environment.python)
            added |= variables(environment, clean)
        if executor == "local":
            config = recorded(state.path, run.attempt)
            added |= local_variables(changes, argv=argv, config=config, environ=clean)
    except (ChangeError, VersionError) as error:
        raise CannotChange(str(error)) from error
    return Outfit(tuple(argv), clean | added, changes)


def _step_of(run: RunRecord, start: Start) -> int | None:
    """The step the start resumes from; where verl chooses, the one that its tracker names."""
    return start.resume_step if start.resume_step is not None else checkpoints.tracker_step(run.checkpoint_dir)
