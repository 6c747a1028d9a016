"""Which run, and which folder of checkpoints, a command is about. Used by all commands on checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from exporter.protocol import Scalar
from trainer_entry.checkpoints.world_size import asked_world_size
from trainer_entry.supervisor import offline
from trainer_entry.supervisor.command import state_of
from trainer_entry.supervisor.overrides import OverrideError
from trainer_entry.supervisor.state import RunRecord, StateError


def root_of(parsed: argparse.Namespace) -> Path:
    """The folder that holds the ``global_step_N`` directories. Raises StateError."""
    given: Path | None = parsed.checkpoint_dir
    return given if given is not None else offline.checkpoint_root(state_of(parsed))


def record_of(parsed: argparse.Namespace) -> RunRecord | None:
    """The run's record; None where only a folder was named, or there is none."""
    try:
        return offline.recorded_run(state_of(parsed))
    except (StateError, OverrideError):
        return None


def ranks_of(
    parsed: argparse.Namespace, settings: Mapping[str, Scalar] | None = None, *, forget: bool = False
) -> int | None:
    """Ranks that would resume: as asked, or as the run's own words and changes say; None where nothing says it.

    ``settings`` are changed besides; with ``forget`` the run's changes do not count.
    """
    if parsed.world_size is not None:
        return int(parsed.world_size)
    run = record_of(parsed)
    if run is None:
        return None
    kept = {} if forget else run.changes.settings
    return asked_world_size(run.argv, {**kept, **(settings or {})})
