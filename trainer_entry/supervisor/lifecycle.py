"""The run's attempts, one after the other: start, adopt, watch, stop, tell the exporter. For the supervisor's loop.

Every fact is written to the state directory before it is acted on, so that the next supervisor can go on from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from exporter.protocol import AttemptExited, AttemptStarted
from trainer_entry import changes as changing
from trainer_entry import settings
from trainer_entry.supervisor import gone
from trainer_entry.supervisor.attempts import Attempt, new_marker
from trainer_entry.supervisor.hand import LOCAL, FollowedAgain, Hand, before_start, left_behind
from trainer_entry.supervisor.outfit import InForce, outfit
from trainer_entry.supervisor.output import Tail
from trainer_entry.supervisor.reporting import Reporter
from trainer_entry.supervisor.starting import Start
from trainer_entry.supervisor.state import AttemptRequest, ExitRecord, ResumeTarget, RunRecord, StateDir, StateError
from trainer_entry.supervisor.stopping import Hurry, StopLimits, Stopped, stop

_SWEEP_SECONDS = 15.0
_SEEN_SECONDS = 5.0
_ADOPT_SECONDS = 30.0


class Lifecycle:
    """Owns ``run.json`` and the attempt that is current. Not thread-safe: the supervisor's loop is its only user."""

    def __init__(
        self,
        state: StateDir,
        run: RunRecord,
        reporter: Reporter,
        limits: StopLimits,
        environ: Mapping[str, str],
        *,
        environments: Path,
        hand: Hand = LOCAL,
        follow: bool,
        say: Callable[[str], None],
    ) -> None:
        self._state = state
        self._reporter = reporter
        self._limits = limits
        self._environ = environ
        self._environments = environments
        self._hand = hand
        self._follow = follow
        self._followed = FollowedAgain(state, say)
        self._say = say
        self._tail: Tail | None = None
        self._seen_at = 0.0
        self._freed = False
        self.run = run
        self.attempt: Attempt | None = None
        self.ended: ExitRecord | None = None
        """How the current attempt ended, once that was noticed."""

    @property
    def number(self) -> int:
        """The latest attempt's number; 0 before the first."""
        return self.run.attempt

    @property
    def state_dir(self) -> Path:
        """Where the run's state lies."""
        return self._state.path

    @property
    def running(self) -> bool:
        """True while the current attempt's trainer runs, as far as was noticed."""
        return self.attempt is not None and self.ended is None

    @property
    def ended_well(self) -> bool:
        """True when the latest attempt ended by itself, with exit code 0."""
        ended = self.ended or (self._state.read_exit(self.number) if self.number else None)
        return not self.running and ended is not None and ended.exit_code == 0

    def update(self, **changes: object) -> None:
        """Change ``run.json``."""
        self.run = replace(self.run, **changes)
        self._state.write_run(self.run)

    def adopt(self) -> bool:
        """Take over the attempt that an earlier supervisor left; True if there is one whose end was not told yet.

        Raises StateError when it runs on another host.
        """
        attempt = Attempt.existing(self._state, self.run.attempt)
        if attempt is None:
            return False
        if (host := attempt.elsewhere()) is not None:
            raise StateError(f"Attempt {attempt.number} of this run is alive on host {host}; run the supervisor there.")
        if attempt.give_up_if_never_started():
            request = attempt.request
            if request.resume_path and request.resume_step is not None:
                target = ResumeTarget(step=request.resume_step, path=request.resume_path, command_id=request.command_id)
                self.update(next_start=target)
            self.update(reported_start=attempt.number, reported_exit=attempt.number)
            return False
        if self.run.reported_exit >= attempt.number:
            return False
        deadline = time.monotonic() + _ADOPT_SECONDS
        while attempt.record() is None and attempt.exit() is None and time.monotonic() < deadline:
            time.sleep(0.05)  # its process is alive, but had not come so far when its supervisor was killed
        self._current(attempt, from_end=True)
        self._report_start()
        return True

    def start(self, start: Start, *, command_id: str = "", changes: InForce | None = None) -> None:
        """Start the next attempt, with the changes in force, or with ``changes`` in their place from now on.

        Raises StateError when it did not come up; the attempt then counts as ended, and what was recorded about the
        next start (a target, a hold, the changes) still holds.
        """
        before = self.run
        before_start(self._state, self._say)
        self._wait_for_memory()
        number = before.attempt + 1
        in_force = changes or InForce(before.changes, before.skip_from)
        fitted = outfit(
            self._state,
            before,
            start,
            in_force,
            self._environ,
            environments=self._environments,
            executor=self._hand.name,
        )
        if not changing.is_empty(fitted.changes):
            self._say(f"attempt {number} is started with changes: {changing.describe(fitted.changes)}")
        request = AttemptRequest(
            attempt=number,
            argv=self._hand.words(fitted.argv),
            changes=fitted.changes,
            cwd=self.run.cwd,
            marker=new_marker(),
            resume_step=start.resume_step,
            resume_path=start.resume_path,
            command_id=command_id,
            created_at=time.time(),
        )
        environ = self._environ_of(number, fitted.environ)
        try:
            self._state.stop_request_path.unlink(missing_ok=True)
            # The request first: whoever finds the number finds what was to be started, and from where.
            Attempt.prepare(self._state, request)
            self.update(
                attempt=number,
                next_start=None,
                held="",
                held_not_after=None,
                held_argv=None,
                held_by_person=False,
                changes=in_force.changes,
                skip_from=in_force.skip_from,
            )
            self._come_up(Attempt.start(self._state, request, environ))
        except (StateError, OSError) as error:
            if self.run.attempt == number:
                self.update(
                    next_start=before.next_start,
                    held=before.held,
                    held_not_after=before.held_not_after,
                    held_argv=before.held_argv,
                    held_by_person=before.held_by_person,
                    changes=before.changes,
                    skip_from=before.skip_from,
                )
            if isinstance(error, StateError):
                raise
            raise StateError(f"Attempt {number} cannot be started: {error.strerror}.") from error
        self._report_start()

    def _wait_for_memory(self) -> None:
        """After an end that nobody asked for, no stop has seen that the GPUs' memory is free. Raises StateError."""
        if self.attempt is None or self._freed:
            return
        held = gone.holding(self.attempt.pids_seen(), say=self._say)
        if remains := gone.wait_until_free(held, say=self._say):
            raise StateError(f"{' '.join(remains)} Nothing is started.")

    def _environ_of(self, number: int, environ: Mapping[str, str]) -> dict[str, str]:
        return {
            **environ,
            settings.RUN_ID: self.run.run_id,
            settings.ATTEMPT: str(number),
            settings.STATE_DIR: str(self._state.path),
            settings.URL: self.run.url,
        }

    def _come_up(self, attempt: Attempt) -> None:
        self._current(attempt, from_end=False)
        ended = attempt.exit()
        if ended is not None and ended.error:
            self.notice_end(expected=False)
            raise StateError(ended.error)

    def watch(self) -> ExitRecord | None:
        """Look whether the attempt has ended; its record once, when that is noticed, else None."""
        if self.attempt is None or self.ended is not None:
            return None
        if self.attempt.exit() is not None:
            told = self.run.told_to_stop >= self.attempt.number
            environ = self._environ_of(self.attempt.number, self._environ)
            settled = "ended" if told else self._followed.settle(self.attempt, environ)
            if settled != "ended":
                if isinstance(settled, Attempt):
                    self._current(settled, from_end=True)
                return None
            return self.notice_end(expected=told)
        if time.monotonic() - self._seen_at > _SEEN_SECONDS:
            self._seen_at = time.monotonic()
            self.attempt.members()  # remembers them, for the case that the attempt process is killed
        return None

    def stop(self, *, clean: float, save: bool, hurry: Hurry) -> Stopped:
        """Stop the current attempt, and tell. Raises StateError when processes of it would not die."""
        if self.attempt is None:
            return Stopped("ended before", 0.0, [])
        if self.ended is None and self.attempt.exit() is None:
            try:
                self.update(told_to_stop=self.attempt.number)
            except StateError as error:  # a full disk is no reason to leave the trainer running
                self._say(str(error))
        stopped = stop(self._state, self.attempt, self._limits, clean=clean, save=save, say=self._say, hurry=hurry)
        # The trainer itself may be among the survivors (stuck in a driver); then there is no end to tell yet.
        if self.ended is None and self.attempt.exit() is not None:
            self.notice_end(expected=self.run.told_to_stop >= self.attempt.number)
        if stopped.survivors or self.ended is None:
            pids = ", ".join(str(pid) for pid in stopped.survivors) or "the attempt process"
            raise StateError(f"Processes of attempt {self.attempt.number} could not be ended: {pids}.")
        if stopped.remains:
            raise StateError(" ".join(stopped.remains))
        self._freed = True
        return stopped

    def notice_end(self, *, expected: bool) -> ExitRecord:
        """Write down and tell that the attempt ended, after what it left behind is gone."""
        attempt = self.attempt
        assert attempt is not None
        ended = attempt.exit()
        assert ended is not None
        self.ended = ended
        if not attempt.wait_until_swept(_SWEEP_SECONDS) or attempt.members():
            attempt.end_leftovers()
        if remains := left_behind(attempt, self._say):
            self._say(remains)  # and nothing is started before it is gone
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        self._reporter.report(
            attempt.number,
            AttemptExited(
                time=time.time(),
                exit_code=ended.exit_code,
                signal=ended.signal,
                expected=expected or ended.exit_code == 0,
                seconds=ended.seconds,
                last_output=[ended.error] if ended.error else attempt.last_output(),
            ),
        )
        self.update(reported_exit=attempt.number)
        return ended

    def close(self) -> None:
        """Stop showing output. The trainer is left as it is."""
        if self._tail is not None:
            self._tail.close()

    def _current(self, attempt: Attempt, *, from_end: bool) -> None:
        if self._tail is not None:
            self._tail.close()
        self.attempt, self.ended, self._freed = attempt, None, False
        self._tail = Tail(attempt.directory / "output.log", from_end=from_end) if self._follow else None

    def _report_start(self) -> None:
        attempt = self.attempt
        record = attempt.record() if attempt else None
        if attempt is None or record is None or self.run.reported_start >= attempt.number:
            return
        self._reporter.report(
            attempt.number,
            AttemptStarted(
                time=record.started_at,
                pid=record.trainer_pid,
                resume_step=attempt.request.resume_step,
                resume_path=attempt.request.resume_path,
                command_id=attempt.request.command_id,
                changes=None if changing.is_empty(attempt.request.changes) else attempt.request.changes,
                executor=self._hand.name,
            ),
        )
        self.update(reported_start=attempt.number)


def describe(ended: ExitRecord) -> str:
    """How it ended, in words.

    >>> describe(ExitRecord(attempt=1, signal=9)), describe(ExitRecord(attempt=1))
    ('ended by signal 9', 'ended, and nobody was there to see with which code')
    """
    if ended.error:
        return f"did not start: {ended.error}"
    if ended.signal is not None:
        return f"ended by signal {ended.signal}"
    if ended.exit_code is not None:
        return f"ended with exit code {ended.exit_code}"
    return "ended, and nobody was there to see with which code"


def usable_cwd(cwd: str) -> str:
    """The folder to run in, absolute. Raises StateError where it is gone."""
    if not Path(cwd).is_dir():
        raise StateError(f"The folder {cwd}, in which the trainer runs, does not exist any more.")
    return os.path.abspath(cwd)
