"""What ``verl-sentinel-train run`` was told, for the supervisor and its parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer_entry.supervisor.hand import LOCAL, Hand
from trainer_entry.supervisor.stopping import StopLimits


@dataclass(frozen=True, slots=True)
class Options:
    """Times in seconds. ``scripts`` has a rollback script for each rung that is not the shipped one; ``follow`` shows
    the trainer's output; ``environments`` is where other verl versions lie.
    """

    limits: StopLimits
    scripts: Path
    environments: Path
    wait_for_command_seconds: float
    """How long to wait for a command, or an operator, after the trainer crashed or a rollback found no target."""
    script_seconds: float = 3600.0
    """A rollback script that hangs is killed after this; hashing a very large checkpoint must fit in it."""
    word_seconds: float = 0.0
    """How long to wait for the exporter's word before going on with what a killed supervisor left half done."""
    copies_seconds: float = 3600.0
    """How long the end of a run waits for the last copies of checkpoints, an archive say."""
    follow: bool = True
    hand: Hand = LOCAL
