"""The record of commands, so that each is carried out once: whoever asks again, and whoever was killed in between.

One file a command in ``commands/`` of the state directory. Called by the supervisor.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal

import msgspec

from exporter.protocol import Action, Asked, Changes, Command, Rung
from trainer_entry.supervisor.state import StateDir, read_record, write_record

State = Literal["accepted", "stopping", "stopped", "starting", "started", "succeeded", "failed"]
FINAL: tuple[State, ...] = ("succeeded", "failed")

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One command and how far it is. ``by_hand`` where the rollback script was run by a person, step by step.

    ``new_attempt`` is the attempt that was started for it, 0 before that. ``held_path`` is the checkpoint that is kept
    from being deleted for it.
    """

    id: str
    action: Action
    attempt: int
    state: State
    by_hand: bool = False
    rung: Rung = "checkpoint"
    changes: Changes = Changes()
    reason: str = ""
    not_after_step: int | None = None
    asked_step: int | None = None
    detail: str = ""
    target_step: int | None = None
    target_path: str = ""
    held_path: str = ""
    new_attempt: int = 0
    accepted_at: float = 0.0
    code: int = 0
    """Exit code for whoever asked at the command line; 0 unless it failed."""

    @property
    def final(self) -> bool:
        """True when nothing more will be done for it."""
        return self.state in FINAL

    @property
    def limit(self) -> int | None:
        """The newest step that it allows."""
        steps = [step for step in (self.not_after_step, self.asked_step) if step is not None]
        return min(steps) if steps else None


def accepted(asked: Asked, now: float) -> CommandRecord:
    """The record of a command that is taken; or of one that was called off before, which then is never carried out."""
    command = asked if isinstance(asked, Command) else None
    return CommandRecord(
        id=asked.id,
        action=asked.action,
        attempt=asked.attempt,
        state="accepted",
        rung=command.rung if command else "checkpoint",
        changes=command.changes if command else Changes(),
        reason=asked.reason,
        not_after_step=command.not_after_step if command else None,
        asked_step=command.target_step if command else None,
        accepted_at=now,
    )


class CommandBook:
    """All commands of a run that were ever accepted."""

    def __init__(self, state: StateDir) -> None:
        self._directory = state.path / "commands"

    def get(self, command_id: str) -> CommandRecord | None:
        """The record of a command, or None for one that is new. Raises StateError."""
        return read_record(self._path(command_id), CommandRecord)

    def put(self, record: CommandRecord) -> None:
        """Write a command down; on disk when this returns. Raises StateError."""
        write_record(self._path(record.id), record)

    def unfinished(self) -> list[CommandRecord]:
        """Commands that a killed supervisor left half done, oldest first."""
        records = [read_record(path, CommandRecord) for path in self._directory.glob("*.json")]
        return sorted((r for r in records if r is not None and not r.final), key=lambda r: r.accepted_at)

    def _path(self, command_id: str) -> Path:
        # The id comes from outside: it names a file only where it is plainly a name, and is hashed otherwise.
        plain = _PLAIN.fullmatch(command_id) is not None
        name = command_id if plain else "sha256-" + hashlib.sha256(command_id.encode()).hexdigest()
        return self._directory / f"{name}.json"
