"""Carry a command out, once: the exporter's, or one that an operator gives as a whole.

A rollback or a restart runs the script of its rung (``rules/rollback/{checkpoint,config,version,infra}.sh``), which
chooses the target and comes back through the control socket with ``stop`` and ``resume``. The command is final when the
script has ended, so what an operator changed in the script is what happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from exporter.protocol import Abort, Command
from trainer_entry.changes import ChangeError, checked
from trainer_entry.supervisor import aborting, exitcodes
from trainer_entry.supervisor.acting import Acts
from trainer_entry.supervisor.commands import CommandBook, CommandRecord, accepted
from trainer_entry.supervisor.control import Conversation
from trainer_entry.supervisor.desk import Desk
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.options import Options
from trainer_entry.supervisor.overrides import TrainerCommand
from trainer_entry.supervisor.reporting import Reporter
from trainer_entry.supervisor.requesting import Requests
from trainer_entry.supervisor.script import ScriptEnded, ScriptRun
from trainer_entry.supervisor.state import StateDir, StateError
from trainer_entry.supervisor.stopping import Hurry, clean_seconds


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
        self._life = life
        self._options = options
        self._instance = instance
        self._script_ended = script_ended
        self._say = say
        self._desk = Desk(life, book, reporter, say)
        self._acts = Acts(self._desk, life, command, hurry)
        self._requests = Requests(self, self._desk, self._acts, life, options)
        self._script: ScriptRun | None = None
        self._announced = self._run_again = ""
        self._go_on_at: float | None = None
        """The command under way was left half done, and the exporter may still say by then that it was called off."""
        self.finished: int | None = None

    @property
    def busy(self) -> bool:
        """True while a command of the exporter's, or a rollback that was asked for, is under way."""
        return self._desk.active is not None

    @property
    def expects_resume(self) -> bool:
        """True while a script that a person runs has stopped the trainer and has not started it again."""
        return self._requests.expects_resume

    @property
    def active_id(self) -> str:
        """The command under way, or an empty string."""
        return self._desk.active.id if self._desk.active else ""

    def take(self, command: Command) -> None:
        """The exporter's command; it sends it again until it knows of the end, so the same one is only reported on."""
        desk, life = self._desk, self._life
        known = desk.book.get(command.id)
        if known is not None and known.final:
            desk.report(known)
            return
        if desk.active is not None:
            if desk.active.id == command.id and self._go_on_at is not None:
                self._go_on()  # it is still wanted
            return  # it, or another: the exporter sends it again, and it is judged when this one is done
        if known is not None and known.new_attempt:  # its end could not be written down, on a full disk say
            desk.progress(known, "succeeded", f"Attempt {known.new_attempt} was started for it.")
            return
        record = accepted(command, time.time())
        if command.run_id != life.run.run_id:
            desk.fail(record, f"It is for run {command.run_id}; this is {life.run.run_id}.", exitcodes.REFUSED)
        elif command.attempt != life.number:
            was = "over" if command.attempt < life.number else "not known"
            detail = f"It is for attempt {command.attempt}, which is {was}; this is attempt {life.number}."
            desk.fail(record, detail, exitcodes.REFUSED)
        elif refused := _refused(command):
            desk.fail(record, refused, exitcodes.CANNOT_CHANGE)
        else:
            if command.id != self._announced:  # it comes again every second where it cannot be written down
                self._announced = command.id
                rung = "" if command.action == "stop" else f" on the {record.rung} rung"
                self._say(f"command {record.id}: {record.action}{rung} ({record.reason or 'no reason given'})")
            self.begin(record)

    def request(self, conversation: Conversation) -> None:
        """An operator's request, or a step of the script."""
        asked = conversation.request
        if asked.instance and asked.instance != self._instance:
            self._desk.refuse(conversation, "It is from the script of an earlier supervisor, which has ended.")
        else:
            self._requests.take(conversation)

    def script_ended(self, ended: ScriptEnded) -> None:
        """The end of the script decides on the command."""
        desk, record = self._desk, self._desk.active
        self._script = None
        if record is None or record.id != ended.command_id:
            return
        desk.active = None
        if ended.signal and not record.new_attempt and self._run_again != record.id:
            # It may be run again: what it had done is on record, and is not done twice.
            self._run_again = record.id
            self._say(f"the rollback script, or what it ran, was killed by signal {ended.signal}; it is run once more")
            self.begin(replace(record, attempt=self._life.number))
            return
        if record.new_attempt and (ended.code == 0 or ended.signal):
            detail = f"Attempt {record.new_attempt} started from step {record.target_step}."
            desk.progress(record, "succeeded", detail, output=ended.lines)
            return
        if ended.code == exitcodes.NO_CHECKPOINT:
            detail = "No verified checkpoint that may be restored is left; the trainer stays stopped."
            self._life.update(held=detail, held_not_after=record.limit, held_argv=self._life.run.argv)
        elif ended.code == 0:
            detail = "The rollback script ended without starting the trainer."
        else:
            detail = f"The rollback script ended with code {ended.code}: {ended.last_line or 'it said nothing'}"
        desk.fail(record, detail, ended.code or exitcodes.NOT_STARTED, output=ended.lines)

    def abort(self, asked: Abort) -> None:
        """A person has called a command off: nothing further is done for it, and what was done is left as it is.

        A stop that had begun is finished by now: this is heard between two steps of a command, never within one.
        """
        desk = self._desk
        active = desk.active if self.active_id == asked.id else None
        if active is not None:
            self._let_go()
        record = active or desk.book.get(asked.id) or accepted(asked, time.time())
        if record.final:
            desk.report(record)
            return
        end = aborting.end_of(asked, record, self._life, under_way=active is not None)
        # Whoever is killed between these hears of the abort again; the command is over only when the run is held.
        if end.hold:
            aborting.hold(self._life, record, end.detail)
        self._say(f"command {record.id} is called off: {end.detail}")
        desk.progress(record, end.state, end.detail, code=end.code)

    def give_up(self, why: str) -> None:
        """Give up the command under way, because the supervisor ends or an operator stops the run."""
        record = self._desk.active
        self._let_go()
        if record is not None:
            self._desk.fail(record, f"It was given up: {why}.", exitcodes.REFUSED)

    def _let_go(self) -> None:
        """Nothing is under way any more; what the script still asks for is refused, for its command is over."""
        if self._script is not None:
            self._script.kill()
        self._script = self._desk.active = self._go_on_at = None

    def go_on_when_due(self) -> None:
        """Called in every turn: the exporter had its time to say that a command left half done was called off."""
        if self._go_on_at is not None and time.monotonic() >= self._go_on_at:
            self._go_on()

    def _go_on(self) -> None:
        record = self._desk.active
        assert record is not None
        self._say(f"going on with command {record.id}, which was {record.state} when the supervisor was killed")
        self.begin(replace(record, attempt=self._life.number, new_attempt=0, state="accepted"))
        self._go_on_at = None

    def take_up_unfinished(self) -> bool:
        """Finish what a killed supervisor left half done; True if something is under way now."""
        desk, life = self._desk, self._life
        for record in desk.book.unfinished():
            attempt = life.attempt
            started = attempt is not None and attempt.request.command_id == record.id and attempt.record() is not None
            target = life.run.next_start
            if started or record.new_attempt:
                number = record.new_attempt or life.number
                detail = f"Attempt {number} was started for it."
                desk.progress(replace(record, new_attempt=number), "succeeded", detail)
            elif record.by_hand:
                desk.fail(record, "The supervisor was killed meanwhile; run the script again.", exitcodes.REFUSED)
            elif target is not None and target.command_id != record.id:
                detail = f"Meanwhile a person recorded that the run goes on from step {target.step}."
                desk.fail(record, detail, exitcodes.REFUSED)
            elif desk.active is None:
                desk.active = record
                self._go_on_at = time.monotonic() + self._options.word_seconds
            else:
                desk.fail(record, f"Command {desk.active.id} was under way too.", exitcodes.REFUSED)
        return desk.active is not None or self.finished is not None

    def start_recorded(self) -> None:
        """Start from the target that was recorded while no supervisor lived. Raises one of ``START_FAULTS``."""
        target = self._life.run.next_start
        assert target is not None
        self._acts.start(target, "recorded while no supervisor ran", "content")
        self._say(f"attempt {self._life.number} started from step {target.step}, as was recorded")

    def begin(self, record: CommandRecord) -> None:
        """Carry a command out from its beginning."""
        desk = self._desk
        desk.progress(record, "accepted", record.reason)  # on disk before it is under way
        desk.active = record
        if record.action == "stop":
            self.stop_for_good(record)
            return
        try:
            self._script = ScriptRun(
                self._options.scripts,
                self._state,
                record,
                self._instance,
                environments=self._options.environments,
                limit_seconds=self._options.script_seconds,
                say=self._say,
                ended=self._script_ended,
            )
        except StateError as error:
            desk.active = None
            desk.fail(record, str(error), exitcodes.NOT_STARTED)

    def stop_for_good(self, record: CommandRecord) -> None:
        """Stop the run, and the supervisor with it."""
        desk, limits = self._desk, self._options.limits
        try:
            self._acts.stop(record, clean_seconds(limits, for_rollback=False, reason=record.reason), save=True)
        except StateError as error:
            desk.active = None
            desk.fail(record, str(error), exitcodes.NOT_STOPPED)
            return
        desk.active = None
        desk.progress(desk.book.get(record.id) or record, "succeeded", "The run is stopped.")
        self.finished = exitcodes.OK


def _refused(command: Command) -> str:
    """Why the changes of a command cannot be made at all; empty when they can be tried."""
    try:
        checked(command.changes)
    except ChangeError as error:
        return str(error)
    return ""
