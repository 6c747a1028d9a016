"""What an operator, or a step of the rollback script, asks of the supervisor. Called by ``carrying``.

A request under the id of a known command belongs to it: the same again has the effect of once. One without a command
makes a record of its own, so that it is kept and reported like the exporter's.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from trainer_entry.changes import ChangeError, checked, describe
from trainer_entry.checkpoints import step_of
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.acting import START_FAULTS, Acts
from trainer_entry.supervisor.commands import CommandRecord
from trainer_entry.supervisor.control import ControlAnswer, ControlRequest, Conversation
from trainer_entry.supervisor.desk import Desk, final_answer
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.options import Options
from trainer_entry.supervisor.outfit import CannotChange
from trainer_entry.supervisor.state import ResumeTarget, StateError
from trainer_entry.supervisor.stopping import clean_seconds


class Carrier(Protocol):
    """What carries whole commands out (:class:`trainer_entry.supervisor.carrying.Carrying`)."""

    def begin(self, record: CommandRecord) -> None:
        """Carry a command out from its beginning."""

    def stop_for_good(self, record: CommandRecord) -> None:
        """Stop the run, and the supervisor with it."""

    def give_up(self, why: str) -> None:
        """Give up the command under way."""


class Requests:
    """Answers one conversation at a time, in the supervisor's loop."""

    def __init__(self, carrier: Carrier, desk: Desk, acts: Acts, life: Lifecycle, options: Options) -> None:
        self._carrier = carrier
        self._desk = desk
        self._acts = acts
        self._life = life
        self._options = options
        self.expects_resume = False
        """A person's script has stopped the trainer, and is to start it again in a moment."""

    def take(self, conversation: Conversation) -> None:
        """Do what is asked, or say why not."""
        asked = conversation.request
        try:
            checked(asked.changes)
        except ChangeError as error:
            self._desk.refuse(conversation, str(error), exitcodes.CANNOT_CHANGE)
            return
        if asked.op == "rollback":
            self._rollback(conversation)
        elif asked.op == "stop" and asked.for_rollback:
            self._stop_for_rollback(conversation)
        elif asked.op == "stop":
            self._stop(conversation)
        elif asked.op == "resume":
            self._resume(conversation)

    def _rollback(self, conversation: Conversation) -> None:
        desk, asked = self._desk, conversation.request
        known = desk.book.get(asked.request_id) if asked.request_id else None
        if known is not None and known.final:
            conversation.answer(final_answer(known))
            return
        if desk.active is not None and desk.active.id != asked.request_id:
            desk.refuse(conversation, f"Command {desk.active.id} is under way; try again when it is done.")
            return
        record = known or self._record(asked, by_hand=False)
        desk.listen(record.id, conversation)
        if desk.active is None:
            self._carrier.begin(record)

    def _stop(self, conversation: Conversation) -> None:
        desk = self._desk
        if desk.active is not None:
            self._carrier.give_up("an operator stopped the run")
        record = self._record(conversation.request, by_hand=True)
        desk.active = record
        desk.listen(record.id, conversation)
        desk.progress(record, "accepted", record.reason)
        self._carrier.stop_for_good(record)

    def _stop_for_rollback(self, conversation: Conversation) -> None:
        desk, asked = self._desk, conversation.request
        active = desk.active
        if active is not None and active.id != asked.request_id:
            desk.refuse(conversation, f"Command {active.id} is under way; try again when it is done.")
            return
        known = active or (desk.book.get(asked.request_id) if asked.request_id else None)
        if asked.instance and (known is None or known.final):
            desk.refuse(conversation, "Its command is over; nothing is stopped.")
            return
        if known is not None and known.new_attempt:
            detail = f"Attempt {known.new_attempt} was already started for command {known.id}; nothing is stopped."
            conversation.answer(ControlAnswer(detail=detail, state="started", final=True))
            return
        if active is None and known is not None and known.attempt != self._life.number:
            desk.refuse(conversation, f"Attempt {self._life.number} was started meanwhile; nothing is done.")
            return
        record = known or self._record(asked, by_hand=True)
        clean = clean_seconds(
            self._options.limits, for_rollback=not asked.save_first, reason=asked.reason or record.reason
        )
        try:
            if step_of(asked.target) is not None and Path(asked.target).is_absolute():
                # Whether it can be held or not, the trainer is stopped: it trains on what is spoilt.
                record = desk.hold(record, asked.target)
            # What our own script prints is shown anyway, this answer included.
            record, well = self._acts.stop(record, clean, save=asked.save_first, tell=not asked.instance)
        except StateError as error:
            conversation.answer(ControlAnswer(detail=str(error), final=True, code=exitcodes.NOT_STOPPED))
            return
        self.expects_resume = not asked.instance
        code = exitcodes.NOT_SAVED if asked.save_first and not well else exitcodes.OK
        conversation.answer(ControlAnswer(detail=record.detail, state="stopped", final=True, code=code))

    def _resume(self, conversation: Conversation) -> None:
        desk, asked, life = self._desk, conversation.request, self._life
        active = desk.active
        if active is not None and active.id != asked.request_id:
            desk.refuse(conversation, f"Command {active.id} is under way; try again when it is done.")
            return
        known = active or (desk.book.get(asked.request_id) if asked.request_id else None)
        if asked.instance and (known is None or known.final):
            desk.refuse(conversation, "Its command is over; nothing is started.")
            return
        record = known or self._record(asked, by_hand=True)
        if record.new_attempt:
            detail = f"Attempt {record.new_attempt} was already started for command {record.id}."
            conversation.answer(ControlAnswer(detail=detail, state="started", final=True))
            return
        if record.attempt != life.number:
            desk.refuse(conversation, f"Attempt {life.number} was started meanwhile; nothing is done.")
            return
        if life.running:
            desk.refuse(conversation, f"Attempt {life.number} is running; stop it first.", exitcodes.NOT_STOPPED)
            return
        step = step_of(asked.target)
        if step is None or not Path(asked.target).is_absolute():
            detail = f"The target {asked.target!r} is not the absolute path of a global_step_N directory."
            desk.refuse(conversation, detail, exitcodes.USAGE)
            return
        self._start(conversation, record, ResumeTarget(step=step, path=asked.target, command_id=record.id))

    def _start(self, conversation: Conversation, record: CommandRecord, target: ResumeTarget) -> None:
        desk, asked, life = self._desk, conversation.request, self._life
        record = desk.hold(replace(record, target_step=target.step, target_path=target.path), target.path)
        if not record.held_path and not Path(target.path).is_dir():
            detail = f"{target.path} was deleted since it was chosen; another is to be chosen."
            self._not_started(conversation, record, detail, exitcodes.NOT_STARTED)  # the script then chooses anew
            return
        changed = f" with {describe(asked.changes)}" if describe(asked.changes) else ""
        record = desk.progress(record, "starting", f"Starting from step {target.step}{changed}.")
        try:
            self._acts.start(target, asked.reason or record.reason, asked.depth, asked)
        except START_FAULTS as error:
            code = exitcodes.CANNOT_CHANGE if isinstance(error, CannotChange) else exitcodes.NOT_STARTED
            self._not_started(conversation, record, str(error), code)
            return
        self.expects_resume = False
        record = replace(record, new_attempt=life.number)
        detail = f"Attempt {life.number} started from step {target.step}{changed}."
        record = desk.progress(record, "started", detail)
        if record.by_hand:
            desk.progress(record, "succeeded", detail)
        conversation.answer(ControlAnswer(detail=detail, state="started", final=True))

    def _not_started(self, conversation: Conversation, record: CommandRecord, detail: str, code: int) -> None:
        conversation.answer(ControlAnswer(detail=detail, final=True, code=code))
        record = replace(record, attempt=self._life.number)  # a start that failed counts as an attempt, but not ours
        if record.by_hand:
            self._desk.fail(record, detail, code)
        else:
            self._desk.progress(record, "stopped", detail)

    def _record(self, asked: ControlRequest, *, by_hand: bool) -> CommandRecord:
        stop = asked.op == "stop" and not asked.for_rollback
        return CommandRecord(
            id=asked.request_id or f"hand-{time.time_ns():x}",
            action="stop" if stop else "restart" if asked.save_first else "rollback",
            attempt=self._life.number,
            state="accepted",
            by_hand=by_hand,
            rung=asked.rung,
            changes=asked.changes,
            reason=asked.reason,
            not_after_step=asked.not_after_step,
            asked_step=asked.target_step,
            accepted_at=time.time(),
        )
