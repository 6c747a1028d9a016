"""Stop and start the trainer for a command, and tell each stage. Used by ``carrying`` and ``requesting``."""

from __future__ import annotations

from trainer_entry.checkpoints import CheckpointError
from trainer_entry.supervisor import starting
from trainer_entry.supervisor.commands import CommandRecord
from trainer_entry.supervisor.control import ControlRequest
from trainer_entry.supervisor.desk import Desk
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.outfit import changes_from
from trainer_entry.supervisor.overrides import OverrideError, TrainerCommand
from trainer_entry.supervisor.starting import NothingToStartFrom
from trainer_entry.supervisor.state import ResumeTarget, StateError
from trainer_entry.supervisor.stopping import Hurry

START_FAULTS = (StateError, CheckpointError, NothingToStartFrom, OverrideError)


class Acts:
    """The two things that are done to the trainer."""

    def __init__(self, desk: Desk, life: Lifecycle, command: TrainerCommand, hurry: Hurry) -> None:
        self._desk = desk
        self._life = life
        self._command = command
        self._hurry = hurry

    def stop(self, record: CommandRecord, clean: float, *, save: bool, tell: bool = True) -> tuple[CommandRecord, bool]:
        """Stop the trainer for the command; True with it when it ended by itself, with exit code 0.

        Raises StateError when processes of it are left.
        """
        record = self._desk.progress(record, "stopping", record.reason)
        stopped = self._life.stop(clean=clean, save=save, hurry=self._hurry)
        detail = f"The trainer is stopped ({stopped.stage}, {stopped.seconds:.1f} s)."
        if tell:
            self._desk.say(detail)
        return self._desk.progress(record, "stopped", detail), self._life.ended_well

    def start(self, target: ResumeTarget, reason: str, depth: str, asked: ControlRequest | None = None) -> None:
        """Start from the target, with what is in force and what ``asked`` changes. Raises one of ``START_FAULTS``."""
        run = self._life.run
        changes = None
        if asked is not None:
            changes = changes_from(run, asked.changes, target.step, forget=asked.forget_changes)
        start = starting.start_from(
            self._command,
            run.checkpoint_dir,
            target,
            reason,
            "sizes" if depth == "sizes" else "content",
            (changes.changes if changes is not None else run.changes).settings,
        )
        self._life.start(start, command_id=target.command_id, changes=changes)
