"""The command under way, and who is told of each of its stages: the book on disk, the exporter, an operator who waits.

Used by ``carrying`` and ``requesting``, which act. A stage is written down before it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from exporter.protocol import CommandProgress
from trainer_entry.checkpoints import holding
from trainer_entry.supervisor.commands import CommandBook, CommandRecord, State
from trainer_entry.supervisor.control import ControlAnswer, Conversation
from trainer_entry.supervisor.exitcodes import REFUSED
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.reporting import Reporter

MAX_OUTPUT_LINES = 40
MAX_OUTPUT_LINE = 500


class Desk:
    """At most one command is ``active``."""

    def __init__(self, life: Lifecycle, book: CommandBook, reporter: Reporter, say: Callable[[str], None]) -> None:
        self._life = life
        self._reporter = reporter
        self._listeners: dict[str, list[Conversation]] = {}
        self.book = book
        self.say = say
        self.active: CommandRecord | None = None

    def progress(
        self, record: CommandRecord, state: State, detail: str, *, code: int = 0, output: Sequence[str] = ()
    ) -> CommandRecord:
        """The command has come to this stage. Raises StateError when that cannot be written down.

        ``output`` are the last lines of its script, for the exporter's audit log.
        """
        record = replace(record, state=state, detail=detail, code=code)
        self.book.put(record)
        if self.active is not None and self.active.id == record.id:
            self.active = record
        if record.final:
            self._release(record)
        self.report(record, output)
        listeners = self._listeners.pop(record.id, []) if record.final else self._listeners.get(record.id, [])
        for conversation in listeners:
            conversation.answer(final_answer(record) if record.final else ControlAnswer(detail=detail, state=state))
        return record

    def fail(self, record: CommandRecord, detail: str, code: int, *, output: Sequence[str] = ()) -> None:
        """The command is over, and was not carried out."""
        self.say(f"command {record.id} failed: {detail}")
        self.progress(record, "failed", detail, code=code, output=output)

    def report(self, record: CommandRecord, output: Sequence[str] = ()) -> None:
        """Tell the exporter how far the command is."""
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
                code=(record.code or None) if record.state == "failed" else None,
                output=[line[:MAX_OUTPUT_LINE] for line in list(output)[-MAX_OUTPUT_LINES:]],
            ),
        )

    def listen(self, command_id: str, conversation: Conversation) -> None:
        """Have an operator told of this command's stages, up to its end."""
        self._listeners.setdefault(command_id, []).append(conversation)

    def refuse(self, conversation: Conversation, detail: str, code: int = REFUSED) -> None:
        """Nothing is done for this request."""
        conversation.answer(ControlAnswer(detail=detail, final=True, code=code))

    def hold(self, record: CommandRecord, path: str) -> CommandRecord:
        """Keep the checkpoint from being deleted while the command is under way.

        Where that fails, the record that is returned holds no path: on a full disk, say, or where it is gone.
        """
        if record.held_path == path and (held := holding.held(path)) is not None and held.holder == _holder(record):
            return record
        self._release(record)
        record = replace(record, held_path=path)
        self.book.put(record)  # before the hold: whoever finds the record finds what to release
        if self.active is not None and self.active.id == record.id:
            self.active = record
        try:
            holding.hold(path, _holder(record), record.reason, state_dir=self._life.state_dir)
        except OSError as error:
            self.say(f"{path} cannot be held: {error.strerror}")
            record = replace(record, held_path="")
            self.book.put(record)
            if self.active is not None and self.active.id == record.id:
                self.active = record
        return record

    def _release(self, record: CommandRecord) -> None:
        if record.held_path:
            try:
                holding.release(record.held_path, _holder(record))
            except OSError as error:
                self.say(f"the hold on {record.held_path} cannot be ended: {error.strerror}")


def _holder(record: CommandRecord) -> str:
    return f"command {record.id}"


def final_answer(record: CommandRecord) -> ControlAnswer:
    """The answer to whoever waits for the end of a command that is over."""
    return ControlAnswer(detail=record.detail, state=record.state, final=True, code=record.code)
