"""The shadow: submits the attempt as a job, shows what it prints, ends it when told to, and ends as it did.

Run by :mod:`trainer_entry.executors.__main__` in place of the trainer, below the attempt process. Its output is the
attempt's output. When it is killed it leaves the job; the same shadow started again takes the job up where it was left.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from msgspec.structs import replace

from trainer_entry.executors.ending import end_job
from trainer_entry.executors.interface import CannotAsk, Executor, ExecutorError, Job, JobState
from trainer_entry.executors.record import JobRecord, read_job, write_job

NOT_SUBMITTED = 69
"""Exit code where there is no job: the cluster cannot be asked, or refused. The sentence is in the output."""
NOBODY_SAW = 1
ENDED_BY_SOMEBODY = 143
PUT_BACK = 75
"""The cluster took the job off its machines to start it again later, which would be a start that nobody decided on."""

TELL_SECONDS = 60.0
NOTE_SECONDS = 5.0
QUIET_SECONDS = 1.0
LOG_SECONDS = 60.0
"""How long nothing of the log may come after the job's end until it is given up."""
STOP_SECONDS = 600.0
"""How long the end of a job is asked for. The supervisor's own limits are shorter, and it confirms what is left."""


class Shadow:
    """Of one attempt. Call :meth:`run` once, in the main thread."""

    def __init__(self, executor: Executor, job: Job, settings: str, write: Callable[[bytes], None]) -> None:
        self._executor = executor
        self._job = job
        self._write = write
        self._stop = False
        self._record = JobRecord(executor=executor.name, settings=settings, name=job.name, created_at=time.time())
        self._noted_at = 0.0
        self._told = ""
        self._told_at = 0.0

    def run(self) -> int:
        """Until the job is over; returns its exit code. Raises StateError where its record cannot be written."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)
        try:
            return self._run()
        finally:
            self._executor.close()

    def _run(self) -> int:
        earlier = read_job(self._job.directory)
        if earlier is not None and earlier.name == self._job.name:
            self._record = earlier
        else:
            self._note()
        if self._record.stage == "over":
            self._say(f"job {self._record.id} is over already")
            return NOBODY_SAW if self._record.exit_code is None else self._record.exit_code
        if self._record.stage == "submitting" and not self._submit():
            return NOT_SUBMITTED if not self._stop else ENDED_BY_SOMEBODY
        return self._follow()

    def _submit(self) -> bool:
        if self._stop:
            self._note(stage="over", detail="stopped before it was submitted")
            return False
        try:
            job_id = self._executor.submit(self._job)
        except CannotAsk as error:
            self._say(f"{error} Nothing is started.")
            return False
        except ExecutorError as error:
            self._note(stage="over", detail=str(error))
            self._say(str(error))
            return False
        # Read again: an executor may have noted something of its own.
        self._record = read_job(self._job.directory) or self._record
        self._note(stage="submitted", id=job_id)
        self._say(f"this attempt is {self._executor.name} job {job_id} ({self._job.name})")
        return True

    def _follow(self) -> int:
        asked_at = -self._executor.poll_seconds
        while True:
            if self._stop:
                return self._end()
            more = self._copy()
            if time.monotonic() - asked_at >= self._executor.poll_seconds:
                asked_at = time.monotonic()
                state = self._ask()
                if state is not None and not state.alive:
                    return self._over(state)
                if state is not None and state.put_back:
                    return self._put_back(state)
            if not more:
                time.sleep(min(0.2, self._executor.poll_seconds))

    def _ask(self) -> JobState | None:
        """How the job is; None while the cluster does not say: the job may go on all the same."""
        try:
            state = self._executor.state(self._record.id)
        except ExecutorError as error:
            self._tell(f"{error} The job may go on; asking again.")
            return None
        if state.state == "pending":
            self._tell(f"job {self._record.id} waits: {state.detail}")
        else:
            self._told = ""
        return state

    def _end(self) -> int:
        self._say(f"ending job {self._record.id}")
        try:
            state = end_job(self._executor, self._record, self._job.directory, STOP_SECONDS, meanwhile=self._copy)
        except ExecutorError as error:
            self._say(f"The job could not be ended. {error}")
            return ENDED_BY_SOMEBODY
        return self._over(state)

    def _put_back(self, state: JobState) -> int:
        self._say(
            f"job {self._record.id} was put back into the queue ({state.detail}), as after a node failed or when it "
            "has to give way; it does not start again by itself, and is ended"
        )
        code = self._end()
        self._note(exit_code=PUT_BACK)
        return PUT_BACK if code == ENDED_BY_SOMEBODY else code

    def _over(self, state: JobState) -> int:
        # What was printed last may still be on its way from another machine.
        quiet_since = last = time.monotonic()
        while last - quiet_since < QUIET_SECONDS or not self._executor.log_ended(self._record.id):
            if self._copy():
                quiet_since = time.monotonic()
            elif last - quiet_since > LOG_SECONDS:
                self._say("the rest of the job's log could not be had")
                break
            else:
                time.sleep(0.05)
            last = time.monotonic()
        if words := getattr(self._executor, "last_words", lambda: "")():
            self._write(words.encode() + b"\n")
        if state.state == "stopped":
            code = ENDED_BY_SOMEBODY
        else:
            code = NOBODY_SAW if state.exit_code is None else state.exit_code
        self._note(stage="over", exit_code=code, detail=state.detail)
        self._say(f"job {self._record.id} {_how(state)}")
        return code

    def _copy(self) -> bool:
        """Show a bounded piece of what the job printed; True where there may be more at once."""
        offset = self._record.log_offset
        try:
            piece = self._executor.log(self._record.id, offset)
        except ExecutorError as error:
            self._tell(str(error))
            return False
        if piece:
            self._write(piece)
            self._record = replace(self._record, log_offset=offset + len(piece))
            if time.monotonic() - self._noted_at > NOTE_SECONDS:
                self._note()
        return bool(piece)

    def _note(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)
        self._noted_at = time.monotonic()
        write_job(self._job.directory, self._record)

    def _tell(self, sentence: str) -> None:
        """Say it when it is new, and again now and then."""
        if sentence != self._told or time.monotonic() - self._told_at > TELL_SECONDS:
            self._told, self._told_at = sentence, time.monotonic()
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        plain = "".join(c if c.isprintable() else " " for c in sentence)
        self._write(f"verl-sentinel: {plain}\n".encode("utf-8", "replace"))

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self._stop = True


def _how(state: JobState) -> str:
    if state.state == "succeeded":
        return "finished"
    if state.state == "stopped":
        return f"was ended: {state.detail}"
    if state.state == "unknown":
        return f"is gone, and how it ended is not known: {state.detail}"
    code = "" if state.exit_code is None else f" with exit code {state.exit_code}"
    return f"failed{code}: {state.detail}"


def to_output(body: bytes) -> None:
    """Standard output, unbuffered. When nobody takes it any more, the job goes on without being shown."""
    try:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
    except (OSError, ValueError):
        return
