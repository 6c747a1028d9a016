"""Carry a command out, once: the exporter's, an operator's, or the steps of the rollback script.

A rollback runs the script ``rules/rollback/checkpoint.sh``, which chooses the target and comes back through the control
socket with ``stop`` and ``resume``. The command is final when the script has ended, so what an operator changed in the
script is what happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from exporter.protocol import Abort, Command, CommandProgress
from trainer_entry.checkpoints import CheckpointError, step_of
from trainer_entry.supervisor import aborting, exitcodes, starting
from trainer_entry.supervisor.commands import CommandBook, CommandRecord, State, accepted
from trainer_entry.supervisor.control import ControlAnswer, ControlRequest, Conversation
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.options import Options
from trainer_entry.supervisor.overrides import OverrideError, TrainerCommand
from trainer_entry.supervisor.reporting import Reporter
from trainer_entry.supervisor.script import ScriptEnded, ScriptRun
from trainer_entry.supervisor.starting import NothingToStartFrom
from trainer_entry.supervisor.state import ResumeTarget, StateDir, StateError
from trainer_entry.supervisor.stopping import Hurry, clean_seconds

_FAULTS = (StateError, CheckpointError, NothingToStartFrom, OverrideError)


class Carrying:
    """At most one command at a time. ``finished`` is the supervisor's exit code once the run is over by command."""

    def __init__(
        self,
        state: StateDir,
        life: Lifecycle,
        *,
        command: TrainerCommand,
        book: CommandBook,
        reporter: Reporter,
        options: Options,
        instance: str,
        hurry: Hurry,
        script_ended: Callable[[ScriptEnded], None],
        say: Callable[[str], None],
    ) -> None:
        self._state = state
        self._command = command
        self._book = book
        self._life = life
        self._reporter = reporter
        self._options = options
        self._instance = instance
        self._hurry = hurry
        self._script_ended = script_ended
        self._say = say
        self._active: CommandRecord | None = None
        self._script: ScriptRun | None = None
        self._go_on_at: float | None = None
        """The command under way was left half done, and the exporter may still say by then that it was called off."""
        self._listeners: dict[str, list[Conversation]] = {}
        self.finished: int | None = None

    @property
    def busy(self) -> bool:
        """True while a command of the exporter's, or a rollback that was asked for, is under way."""
        return self._active is not None

    @property
    def active_id(self) -> str:
        """The command under way, or an empty string."""
        return self._active.id if self._active else ""

    def take(self, command: Command) -> None:
        """The exporter's command; it sends it again until it knows of the end, so the same one is only reported on."""
        known = self._book.get(command.id)
        if known is not None and known.final:
            self._report(known)
            return
        if self._active is not None:
            if self._active.id == command.id and self._go_on_at is not None:
                self._go_on()  # it is still wanted
            return  # it, or another: the exporter sends it again, and it is judged when this one is done
        if known is not None and known.new_attempt:  # its end could not be written down, on a full disk say
            self._progress(known, "succeeded", f"Attempt {known.new_attempt} was started for it.")
            return
        record = accepted(command, time.time())
        if command.run_id != self._life.run.run_id:
            self._fail(record, f"It is for run {command.run_id}; this is {self._life.run.run_id}.", exitcodes.REFUSED)
        elif command.attempt != self._life.number:
            was = "over" if command.attempt < self._life.number else "not known"
            detail = f"It is for attempt {command.attempt}, which is {was}; this is attempt {self._life.number}."
            self._fail(record, detail, exitcodes.REFUSED)
        else:
            self._say(f"command {record.id}: {record.action} ({record.reason or 'no reason given'})")
            self._begin(record)

    def request(self, conversation: Conversation) -> None:
        """An operator's request, or a step of the script."""
        asked = conversation.request
        if asked.instance and asked.instance != self._instance:
            self._refuse(conversation, "It is from the script of an earlier supervisor, which has ended.")
        elif asked.op == "rollback":
            self._request_rollback(conversation)
        elif asked.op == "stop":
            self._request_stop(conversation)
        elif asked.op == "resume":
            self._request_resume(conversation)

    def script_ended(self, ended: ScriptEnded) -> None:
        """The end of the script decides on the command."""
        record, self._script = self._active, None
        if record is None or record.id != ended.command_id:
            return
        self._active = None
        if ended.code == 0 and record.new_attempt:
            self._progress(record, "succeeded", f"Attempt {record.new_attempt} started from step {record.target_step}.")
            return
        if ended.code == exitcodes.NO_CHECKPOINT:
            detail = "No verified checkpoint that may be restored is left; the trainer stays stopped."
            self._life.update(held=detail, held_not_after=record.limit, held_argv=self._life.run.argv)
        elif ended.code == 0:
            detail = "The rollback script ended without starting the trainer."
        else:
            detail = f"The rollback script ended with code {ended.code}: {ended.last_line or 'it said nothing'}"
        self._fail(record, detail, ended.code or exitcodes.NOT_STARTED)

    def abort(self, asked: Abort) -> None:
        """A person has called a command off: nothing further is done for it, and what was done is left as it is.

        A stop that had begun is finished by now: this is heard between two steps of a command, never within one.
        """
        active = self._active if self.active_id == asked.id else None
        if active is not None:
            self._let_go()
        record = active or self._book.get(asked.id) or accepted(asked, time.time())
        if record.final:
            self._report(record)
            return
        end = aborting.end_of(asked, record, self._life, under_way=active is not None)
        # Whoever is killed between these hears of the abort again; the command is over only when the run is held.
        if end.hold:
            aborting.hold(self._life, record, end.detail)
        self._say(f"command {record.id} is called off: {end.detail}")
        self._progress(record, end.state, end.detail, code=end.code)

    def give_up(self, why: str) -> None:
        """Give up the command under way, because the supervisor ends or an operator stops the run."""
        record = self._active
        self._let_go()
        if record is not None:
            self._fail(record, f"It was given up: {why}.", exitcodes.REFUSED)

    def _let_go(self) -> None:
        """Nothing is under way any more; what the script still asks for is refused, for its command is over."""
        if self._script is not None:
            self._script.kill()
        self._script = self._active = self._go_on_at = None

    def go_on_when_due(self) -> None:
        """Called in every turn: the exporter had its time to say that a command left half done was called off."""
        if self._go_on_at is not None and time.monotonic() >= self._go_on_at:
            self._go_on()

    def _go_on(self) -> None:
        record = self._active
        assert record is not None
        self._say(f"going on with command {record.id}, which was {record.state} when the supervisor was killed")
        self._begin(replace(record, attempt=self._life.number, new_attempt=0, state="accepted"))
        self._go_on_at = None

    def take_up_unfinished(self) -> bool:
        """Finish what a killed supervisor left half done; True if something is under way now."""
        for record in self._book.unfinished():
            attempt = self._life.attempt
            started = attempt is not None and attempt.request.command_id == record.id and attempt.record() is not None
            target = self._life.run.next_start
            if started or record.new_attempt:
                number = record.new_attempt or self._life.number
                self._progress(
                    replace(record, new_attempt=number), "succeeded", f"Attempt {number} was started for it."
                )
            elif record.by_hand:
                self._fail(record, "The supervisor was killed meanwhile; run the script again.", exitcodes.REFUSED)
            elif target is not None and target.command_id != record.id:
                detail = f"Meanwhile a person recorded that the run goes on from step {target.step}."
                self._fail(record, detail, exitcodes.REFUSED)
            elif self._active is None:
                self._active = record
                self._go_on_at = time.monotonic() + self._options.word_seconds
            else:
                self._fail(record, f"Command {self._active.id} was under way too.", exitcodes.REFUSED)
        return self._active is not None or self.finished is not None

    def start_recorded(self) -> None:
        """Start from the target that was recorded while no supervisor lived. Raises what :func:`start_from` raises."""
        target = self._life.run.next_start
        assert target is not None
        self._start(target, "recorded while no supervisor ran", "content")
        self._say(f"attempt {self._life.number} started from step {target.step}, as was recorded")

    def _begin(self, record: CommandRecord) -> None:
        self._progress(record, "accepted", record.reason)  # on disk before it is under way
        self._active = record
        if record.action == "stop":
            self._stop_for_good(record)
            return
        try:
            self._script = ScriptRun(
                self._options.script,
                self._state,
                record,
                self._instance,
                limit_seconds=self._options.script_seconds,
                say=self._say,
                ended=self._script_ended,
            )
        except StateError as error:
            self._active = None
            self._fail(record, str(error), exitcodes.NOT_STARTED)

    def _stop_for_good(self, record: CommandRecord) -> None:
        limits = self._options.limits
        try:
            self._stop(record, clean_seconds(limits, for_rollback=False, reason=record.reason), save=True)
        except StateError as error:
            self._active = None
            self._fail(record, str(error), exitcodes.NOT_STOPPED)
            return
        self._active = None
        self._progress(self._book.get(record.id) or record, "succeeded", "The run is stopped.")
        self.finished = exitcodes.OK

    def _stop(self, record: CommandRecord, clean: float, *, save: bool, tell: bool = True) -> CommandRecord:
        record = self._progress(record, "stopping", record.reason)
        stopped = self._life.stop(clean=clean, save=save, hurry=self._hurry)
        detail = f"The trainer is stopped ({stopped.stage}, {stopped.seconds:.1f} s)."
        if tell:
            self._say(detail)
        return self._progress(record, "stopped", detail)

    def _start(self, target: ResumeTarget, reason: str, depth: str) -> None:
        root = self._life.run.checkpoint_dir
        start = starting.start_from(self._command, root, target, reason, "sizes" if depth == "sizes" else "content")
        self._life.start(start, command_id=target.command_id)

    def _request_rollback(self, conversation: Conversation) -> None:
        asked = conversation.request
        known = self._book.get(asked.request_id) if asked.request_id else None
        if known is not None and known.final:
            conversation.answer(_final(known))
            return
        if self._active is not None and self._active.id != asked.request_id:
            self._refuse(conversation, f"Command {self._active.id} is under way; try again when it is done.")
            return
        record = known or self._by_hand(asked, by_hand=False)
        self._listeners.setdefault(record.id, []).append(conversation)
        if self._active is None:
            self._begin(record)

    def _request_stop(self, conversation: Conversation) -> None:
        asked = conversation.request
        active = self._active
        if not asked.for_rollback:
            if active is not None:
                self.give_up("an operator stopped the run")
            record = self._by_hand(asked, by_hand=True)
            self._active = record
            self._listeners.setdefault(record.id, []).append(conversation)
            self._progress(record, "accepted", record.reason)
            self._stop_for_good(record)
            return
        if active is not None and active.id != asked.request_id:
            self._refuse(conversation, f"Command {active.id} is under way; try again when it is done.")
            return
        known = active or (self._book.get(asked.request_id) if asked.request_id else None)
        if asked.instance and (known is None or known.final):
            self._refuse(conversation, "Its command is over; nothing is stopped.")
            return
        if known is not None and known.new_attempt:
            detail = f"Attempt {known.new_attempt} was already started for command {known.id}; nothing is stopped."
            conversation.answer(ControlAnswer(detail=detail, state="started", final=True))
            return
        if active is None and known is not None and known.attempt != self._life.number:
            self._refuse(conversation, f"Attempt {self._life.number} was started meanwhile; nothing is done.")
            return
        record = known or self._by_hand(asked, by_hand=True)
        limits = self._options.limits
        try:
            clean = clean_seconds(limits, for_rollback=True, reason=asked.reason or record.reason)
            # What our own script prints is shown anyway, this answer included.
            record = self._stop(record, clean, save=False, tell=not asked.instance)
        except StateError as error:
            conversation.answer(ControlAnswer(detail=str(error), final=True, code=exitcodes.NOT_STOPPED))
            return
        conversation.answer(ControlAnswer(detail=record.detail, state="stopped", final=True))

    def _request_resume(self, conversation: Conversation) -> None:
        asked = conversation.request
        active = self._active
        if active is not None and active.id != asked.request_id:
            self._refuse(conversation, f"Command {active.id} is under way; try again when it is done.")
            return
        known = active or (self._book.get(asked.request_id) if asked.request_id else None)
        if asked.instance and (known is None or known.final):
            self._refuse(conversation, "Its command is over; nothing is started.")
            return
        record = known or self._by_hand(asked, by_hand=True)
        if record.new_attempt:
            detail = f"Attempt {record.new_attempt} was already started for command {record.id}."
            conversation.answer(ControlAnswer(detail=detail, state="started", final=True))
            return
        if record.attempt != self._life.number:
            self._refuse(conversation, f"Attempt {self._life.number} was started meanwhile; nothing is done.")
            return
        if self._life.running:
            detail = f"Attempt {self._life.number} is running; stop it first."
            conversation.answer(ControlAnswer(detail=detail, final=True, code=exitcodes.NOT_STOPPED))
            return
        step = step_of(asked.target)
        if step is None or not Path(asked.target).is_absolute():
            detail = f"The target {asked.target!r} is not the absolute path of a global_step_N directory."
            conversation.answer(ControlAnswer(detail=detail, final=True, code=exitcodes.USAGE))
            return
        target = ResumeTarget(step=step, path=asked.target, command_id=record.id)
        record = replace(record, target_step=step, target_path=asked.target)
        record = self._progress(record, "starting", f"Starting from step {step}.")
        try:
            self._start(target, asked.reason or record.reason, asked.depth)
        except _FAULTS as error:
            conversation.answer(ControlAnswer(detail=str(error), final=True, code=exitcodes.NOT_STARTED))
            record = replace(
                record, attempt=self._life.number
            )  # a start that failed counts as an attempt, but not ours
            if record.by_hand:
                self._fail(record, str(error), exitcodes.NOT_STARTED)
            else:
                self._progress(record, "stopped", str(error))
            return
        record = replace(record, new_attempt=self._life.number)
        detail = f"Attempt {self._life.number} started from step {step}."
        record = self._progress(record, "started", detail)
        if record.by_hand:
            self._progress(record, "succeeded", detail)
        conversation.answer(ControlAnswer(detail=detail, state="started", final=True))

    def _by_hand(self, asked: ControlRequest, *, by_hand: bool) -> CommandRecord:
        return CommandRecord(
            id=asked.request_id or f"hand-{time.time_ns():x}",
            action="stop" if asked.op == "stop" and not asked.for_rollback else "rollback",
            attempt=self._life.number,
            state="accepted",
            by_hand=by_hand,
            reason=asked.reason,
            not_after_step=asked.not_after_step,
            asked_step=asked.target_step,
            accepted_at=time.time(),
        )

    def _refuse(self, conversation: Conversation, detail: str) -> None:
        conversation.answer(ControlAnswer(detail=detail, final=True, code=exitcodes.REFUSED))

    def _progress(self, record: CommandRecord, state: State, detail: str, *, code: int = 0) -> CommandRecord:
        record = replace(record, state=state, detail=detail, code=code)
        self._book.put(record)
        if self._active is not None and self._active.id == record.id:
            self._active = record
        self._report(record)
        listeners = self._listeners.pop(record.id, []) if record.final else self._listeners.get(record.id, [])
        for conversation in listeners:
            conversation.answer(_final(record) if record.final else ControlAnswer(detail=detail, state=state))
        return record

    def _fail(self, record: CommandRecord, detail: str, code: int) -> None:
        self._say(f"command {record.id} failed: {detail}")
        self._progress(record, "failed", detail, code=code)

    def _report(self, record: CommandRecord) -> None:
        self._reporter.report(
            max(1, self._life.number),
            CommandProgress(
                time=time.time(),
                command_id=record.id,
                state=record.state,
                detail=record.detail,
                target_step=record.target_step,
                target_path=record.target_path,
                running=self._life.running,
            ),
        )


def _final(record: CommandRecord) -> ControlAnswer:
    return ControlAnswer(detail=record.detail, state=record.state, final=True, code=record.code)
