"""Leaves what a verification by hand found for the exporter: whoever is connected to it next sends it on."""

from __future__ import annotations

import argparse
import contextlib
import time

from exporter.protocol import CheckpointChecked
from trainer_entry.checkpoints import Verification
from trainer_entry.checkpoints.problems import Code
from trainer_entry.settings import default_state_dir
from trainer_entry.supervisor.command import state_of
from trainer_entry.supervisor.overrides import OverrideError
from trainer_entry.supervisor.state import StateDir

_NO_VERDICT: tuple[Code, ...] = (
    *("abandoned", "being_hashed", "being_written", "foreign_name", "no_manifest", "not_tried", "retention", "too_new"),
    *("unfinished", "world_size"),
)
"""Problems that say nothing of what was saved."""


def tell(parsed: argparse.Namespace, result: Verification) -> None:
    """Report a verdict in the run's state directory: the one that was named, or that of the run in the manifest.

    Where there is none, or it cannot be written to, nobody is told; the person at the terminal is anyway.
    """
    if result.problem in _NO_VERDICT or result.depth == "sizes":
        return
    state = _state(parsed, result)
    if state is None or not state.path.is_dir():
        return
    from trainer_entry.checkpoints.tiers.jobs import Workplace

    with contextlib.suppress(OSError):
        Workplace(state.path).report(
            CheckpointChecked(
                time=time.time(),
                step=result.step,
                depth=result.depth,
                ok=result.ok,
                seconds=result.seconds,
                reason=result.reason[:1000],
            )
        )


def _state(parsed: argparse.Namespace, result: Verification) -> StateDir | None:
    try:
        return state_of(parsed)
    except OverrideError:
        run_id = result.manifest.run_id if result.manifest is not None else ""
        if not run_id or "/" in run_id or run_id.startswith("."):
            return None
        return StateDir(default_state_dir(run_id))
