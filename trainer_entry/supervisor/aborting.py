"""What an abort makes of a command: how it ends, and whether the run is held. Called by ``carrying``, which acts on it.

An abort changes nothing about the trainer. One that runs goes on, whichever attempt it is; one that is stopped stays
so until a person starts it, also when somebody's automation starts the supervisor again.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.protocol import Abort
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.commands import CommandRecord, State
from trainer_entry.supervisor.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class AbortEnd:
    """The end of the command. ``hold``: the trainer stays stopped without a person's word."""

    state: State
    detail: str
    hold: bool = False
    code: int = 0


def end_of(asked: Abort, record: CommandRecord, life: Lifecycle, *, under_way: bool) -> AbortEnd:
    """How the command ends, by what the trainer does at this moment."""
    who = asked.reason or "It was called off."
    if record.new_attempt:
        detail = f"{who} Attempt {record.new_attempt} had been started for it and is left as it is."
        return AbortEnd("succeeded", detail)
    if life.running:
        return AbortEnd("failed", f"{who} Attempt {life.number} goes on.", code=exitcodes.REFUSED)
    if not under_way and (asked.run_id, record.attempt) != (life.run.run_id, life.number):
        return AbortEnd("failed", f"{who} It was not for attempt {life.number}.", code=exitcodes.REFUSED)
    detail = f"{who} The trainer is stopped and stays so until a person starts it."
    return AbortEnd("failed", detail, hold=True, code=exitcodes.REFUSED)


def hold(life: Lifecycle, record: CommandRecord, detail: str) -> None:
    """Write down that only a person starts the run, and forget what this command was about to start."""
    target = life.run.next_start
    life.update(
        held=detail,
        held_not_after=record.limit,
        held_argv=life.run.argv,
        held_by_person=True,
        next_start=None if target is not None and target.command_id == record.id else target,
    )
