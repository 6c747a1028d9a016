"""The supervisor's loop: one inbox for the exporter's commands and an operator's requests; one thing at a time.

Called by ``verl-sentinel-train run``. What it decides is here; how processes are started and stopped is in
:mod:`trainer_entry.supervisor.lifecycle`, and how a command is carried out in :mod:`trainer_entry.supervisor.carrying`.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from exporter.protocol import Abort, Asked, Command
from trainer_entry.changes import describe as described
from trainer_entry.checkpoints import CheckpointError
from trainer_entry.checkpoints.tiers.after_run import finish_copies, pass_on
from trainer_entry.checkpoints.tiers.jobs import Report, Workplace
from trainer_entry.supervisor import exitcodes, starting
from trainer_entry.supervisor.carrying import Carrying
from trainer_entry.supervisor.commands import CommandBook
from trainer_entry.supervisor.control import ControlAnswer, ControlServer, Conversation
from trainer_entry.supervisor.lifecycle import Lifecycle, describe
from trainer_entry.supervisor.options import Options
from trainer_entry.supervisor.overrides import OverrideError, TrainerCommand
from trainer_entry.supervisor.reporting import Reporter
from trainer_entry.supervisor.script import ScriptEnded
from trainer_entry.supervisor.starting import NothingToStartFrom
from trainer_entry.supervisor.state import ExitRecord, RunRecord, StateDir, StateError
from trainer_entry.supervisor.stopping import Hurry

TICK_SECONDS = 0.1
FLUSH_SECONDS = 3.0
RESUME_SECONDS = 900.0
"""How long a script by hand may take from its stop to its resume, also where nobody else would send a command."""
REPORTS_SECONDS = 1.0

Item = Asked | Conversation | ScriptEnded


class Supervisor:
    """One run, from here to its end. ``connect`` makes the reporter, given where commands go; call :meth:`run` once."""

    def __init__(
        self,
        state: StateDir,
        run: RunRecord,
        *,
        command: TrainerCommand,
        options: Options,
        connect: Callable[[int, Callable[[Asked], None]], Reporter],
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._state = state
        self._command = command
        self._options = options
        self._say = say
        self._inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._hurry = Hurry()
        self._signal: signal.Signals | None = None
        self._done: int | None = None
        self._waiting_until: float | None = None
        self._said = ""
        self._reports_at = float("-inf")
        self._reporter = connect(max(1, run.attempt), self._inbox.put)
        self._life = Lifecycle(
            state,
            run,
            self._reporter,
            options.limits,
            environ,
            environments=options.environments,
            hand=options.hand,
            follow=options.follow,
            say=say,
        )
        self._carrying = Carrying(
            state,
            self._life,
            command=command,
            book=CommandBook(state),
            reporter=self._reporter,
            options=options,
            instance=secrets.token_hex(8),
            hurry=self._hurry,
            script_ended=self._inbox.put,
            say=say,
        )

    def run(self) -> int:
        """Supervise until the run ends; returns the process's exit code. The caller holds the state directory's lock.

        Raises StateError, NothingToStartFrom, CheckpointError and OverrideError for what keeps it from starting.
        """
        server = ControlServer(self._state, self._take)
        previous = self._catch_signals()
        try:
            self._begin()
            while self._done is None:
                self._turn()
            return self._done
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._carrying.give_up("the supervisor ended")
            self._life.close()
            server.close()
            self._reporter.close(FLUSH_SECONDS)

    def _begin(self) -> None:
        """Take over what an earlier supervisor left, or make the first start."""
        adopted = self._life.adopt()
        if adopted and self._life.attempt is not None and self._life.attempt.exit() is None:
            self._say(f"took over attempt {self._life.number}, which is running")
        ended = self._life.watch()
        if self._carrying.take_up_unfinished():
            return
        if self._life.running:
            return
        told = self._life.run.told_to_stop >= self._life.number
        if ended is not None and not told and self._life.run.next_start is None:
            self._after_end(ended)
            return
        if self._life.run.next_start is not None:
            self._carrying.start_recorded()
        else:
            self._plain_start()

    def _plain_start(self) -> None:
        run = self._life.run
        if run.held:
            start = starting.held_start(
                self._command,
                run.checkpoint_dir,
                run.held,
                run.held_not_after,
                run.held_argv,
                by_person=run.held_by_person,
                changed=run.changes.settings,
            )
        else:
            start = starting.plain_start(self._command, run.checkpoint_dir, run.changes.settings)
        if start.note:
            self._say(start.note)
        self._life.start(start)
        self._say(f"attempt {self._life.number} of run {run.run_id} started; its state is in {self._state.path}")

    def _turn(self) -> None:
        if self._signal is not None:
            self._stop_for_signal(self._signal)
            return
        with contextlib.suppress(queue.Empty):
            self._handle(self._inbox.get(timeout=TICK_SECONDS))
        try:
            if self._done is None and (ended := self._life.watch()) is not None:
                self._after_end(ended)
            self._carrying.go_on_when_due()
        except StateError as error:  # a full disk, say: the trainer goes on, and so do we
            self._say_once(str(error))
        if not self._life.running:
            self._pass_on_reports()
        if (code := self._carrying.finished) is not None:
            self._done = code
        elif self._life.running or self._carrying.busy:
            self._waiting_until = None
        elif self._done is None:
            self._wait()

    def _wait(self) -> None:
        """The trainer is down and nothing is under way: wait for a command, but not for ever."""
        seconds = self._options.wait_for_command_seconds
        if self._carrying.expects_resume:
            seconds = max(seconds, RESUME_SECONDS)
        if self._waiting_until is None:
            self._waiting_until = time.monotonic() + seconds
            self._say(f"waiting up to {seconds:g} s for a command; verl-sentinel-train status|resume|stop tell more")
        if time.monotonic() >= self._waiting_until:
            self._say(f"no command came within {seconds:g} s; the run stays stopped")
            self._done = exitcodes.RUN_HELD if self._life.run.held else self._trainer_code()

    def _trainer_code(self) -> int:
        ended = self._life.ended
        return exitcodes.of_trainer(ended.exit_code, ended.signal) if ended else exitcodes.RUN_NOT_STARTED

    def _after_end(self, ended: ExitRecord) -> None:
        self._say(f"attempt {ended.attempt} {describe(ended)}")
        if self._carrying.busy:
            return  # the rollback under way finds it stopped
        if ended.exit_code == 0:
            self._say("the run is finished")
            finish_copies(
                self._state.path,
                say=self._say,
                tell=self._told_of_a_copy,
                stop=lambda: self._signal is not None,
                limit_seconds=self._options.copies_seconds,
            )
            self._done = exitcodes.OK

    def _told_of_a_copy(self, event: Report) -> None:
        self._reporter.report(self._life.number, event)

    def _pass_on_reports(self) -> None:
        """What a keeper left and no trainer is there to push: now and then."""
        if time.monotonic() - self._reports_at > REPORTS_SECONDS:
            self._reports_at = time.monotonic()
            pass_on(Workplace(self._state.path), self._told_of_a_copy)

    def _handle(self, item: Item) -> None:
        try:
            if isinstance(item, Command):
                self._carrying.take(item)
            elif isinstance(item, Abort):
                self._carrying.abort(item)
            elif isinstance(item, ScriptEnded):
                self._carrying.script_ended(item)
            else:
                self._carrying.request(item)
        except (StateError, CheckpointError, NothingToStartFrom, OverrideError) as error:
            # Carrying answers for what a command meets; this is the disk of the state directory itself.
            self._say_once(str(error))  # the exporter sends its command every second, and the log has a disk too
            if isinstance(item, Conversation):
                item.answer(ControlAnswer(detail=str(error), final=True, code=exitcodes.REFUSED))

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)

    def _take(self, conversation: Conversation) -> None:
        """On a connection's thread: a status is answered at once, also while something long is under way."""
        if conversation.request.op == "status":
            conversation.answer(ControlAnswer(detail="", final=True, status=self._status()))
        else:
            self._inbox.put(conversation)

    def _status(self) -> dict[str, object]:
        life, attempt = self._life, self._life.attempt
        trainer = attempt.trainer() if attempt else None
        ended = life.ended
        return {
            "run_id": life.run.run_id,
            "attempt": life.number,
            "state": "running" if life.running else ("held" if life.run.held else "stopped"),
            "trainer_pid": trainer.pid if trainer else None,
            "resume_step": attempt.request.resume_step if attempt else None,
            "exit_code": ended.exit_code if ended else None,
            "signal": ended.signal if ended else None,
            "held": life.run.held,
            "command": self._carrying.active_id,
            "changes": described(life.run.changes),
            "checkpoint_dir": life.run.checkpoint_dir,
            "state_dir": str(self._state.path),
        }

    def _catch_signals(self) -> dict[signal.Signals, Any]:
        def caught(number: int, frame: FrameType | None) -> None:
            # The first asks for a stop; each further one, or one that finds a stop under way, cuts a stage short.
            if self._signal is not None or self._carrying.busy:
                self._hurry.press()
            if self._signal is None:
                self._signal = signal.Signals(number)

        previous: dict[signal.Signals, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants the hangup ignored
                previous[number] = signal.signal(number, caught)
        return previous

    def _stop_for_signal(self, number: signal.Signals) -> None:
        self._say(f"{number.name}: stopping the trainer; once more to go on to SIGTERM, and again to SIGKILL")
        self._carrying.give_up(f"the supervisor received {number.name}")
        try:
            stopped = self._life.stop(clean=self._options.limits.clean_seconds, save=True, hurry=self._hurry)
            self._say(f"the trainer is stopped ({stopped.stage}, {stopped.seconds:.1f} s)")
        except StateError as error:
            self._say(str(error))
        self._done = 128 + number
