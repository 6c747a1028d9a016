"""The core: takes batches, alerts and ticks, keeps every run, tells the recovery engine. Called by the app.

Synchronous, without a clock and without a socket: every call brings ``now`` (Unix seconds of the exporter's clock), so
a test of an hour takes none. Whatever changes state goes to the recorder first and is applied when it is in the
journal, in the order of the journal; that is why a restart finds the same state.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from exporter.incidents import Change, Rules
from exporter.protocol import Batch, Command, CommandProgress, PushAnswer, decode_batch
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.facts import Alert, RunFacts
from exporter.recovery.record import Decision, Recovery
from exporter.recovery.record import RunState as RecoveryState
from exporter.service.admission import Limits, Refused, check
from exporter.service.entries import Look, Mark, batch_entry, look_entry, mark_entry, read_look, read_mark
from exporter.service.journal import Entry
from exporter.service.recorder import Recorded, Recorder
from exporter.service.watch import LOOK_SECONDS, AttemptReport, Detectors, Report, StepDone, WatchedRun, open_incident

log = logging.getLogger("exporter.core")

ABANDONED_SECONDS = 7 * 86_400.0
"""A run that fell silent, or died with an incident that nobody acknowledged, stays in ``/metrics`` for this long."""

MITIGATING_STAGES = ("commanded", "stopping", "starting", "verifying")

Answer = Callable[[PushAnswer | Refused], None]


class Core:
    """All state of the exporter.

    Args:
        recorder: writes entries and calls back when they are in the journal.
        engine: the recovery engine.
        detectors: makes the detectors of a new run.
        limits: bounds of what is accepted.
        rules: when an incident is over.
        ended_grace: seconds for which a run that has ended stays in ``/metrics``.
    """

    def __init__(
        self,
        recorder: Recorder,
        engine: RecoveryEngine,
        detectors: Callable[[], Detectors],
        *,
        limits: Limits,
        rules: Rules,
        ended_grace: float,
    ) -> None:
        self._recorder = recorder
        self.engine = engine
        self._make_detectors = detectors
        self._limits = limits
        self._rules = rules
        self._ended_grace = ended_grace
        self.runs: dict[str, WatchedRun] = {}
        self.unreadable_entries = 0
        self.journal_error = ""
        """Why the newest write to the journal failed; empty while it works."""
        self.engine_error = ""
        """Why the recovery engine could not be told; from then on a restart tells it again."""
        self.accepted = 0
        self.duplicates = 0
        self.steps_late = 0
        self._pending: set[tuple[str, str]] = set()

    # Pushes

    def submit(self, batch: Batch, now: float, answer: Answer, body: bytes | None = None) -> None:
        """Check a batch and record it; ``answer`` is called when it is in the journal and applied.

        Raises :class:`Refused` at once where the batch breaks a bound.
        """
        check(batch, self._limits)
        self._check_room(batch, now)
        entry = batch_entry(batch, now, body)
        self._recorder.record(entry, partial(self._batch_recorded, batch, answer))

    def accept(self, batch: Batch, now: float) -> PushAnswer:
        """:meth:`submit` for a recorder that writes at once. Raises :class:`Refused`."""
        answers: list[PushAnswer | Refused] = []
        self.submit(batch, now, answers.append)
        if isinstance(answers[0], Refused):
            raise answers[0]
        return answers[0]

    def _check_room(self, batch: Batch, now: float) -> None:
        run = self.runs.get(batch.run.run_id)
        if run is None:
            watched = sum(1 for other in self.runs.values() if self.shown(other, now))
            if watched >= self._limits.runs:
                raise Refused(
                    "too_many_runs",
                    f"{watched} runs are watched already, and at most {self._limits.runs} are (limits.runs): "
                    "raise the limit, or wait until the grace time of an ended run is over.",
                    where="$.run.run_id",
                    status=429,
                    retry_after=60,
                )
        elif batch.sender.id not in run.state.senders and len(run.state.senders) >= self._limits.senders_per_run:
            raise Refused(
                "too_many_senders",
                f"Run {run.state.run_id} has {len(run.state.senders)} senders, and at most "
                f"{self._limits.senders_per_run} are accepted (limits.senders_per_run).",
                where="$.sender.id",
                status=429,
                retry_after=60,
            )

    def _batch_recorded(self, batch: Batch, answer: Answer, entry: Entry, outcome: Recorded) -> None:
        self.journal_error = outcome.error
        run = self.runs.get(entry.run_id)
        if outcome.error:
            if run is not None and batch.sender.role != "supervisor":
                # It was heard, though it could not be kept: a full disk here must not look like a silent run there.
                run.state.last_push = max(run.state.last_push, entry.at)
            answer(
                Refused("journal", f"{outcome.error} Nothing was taken over; send it again.", status=503, retry_after=5)
            )
            return
        if outcome.position:
            self._apply(entry, outcome.position, batch)
            self.accepted += 1
        else:
            self.duplicates += 1
        answer(self._answer(batch, entry.at, duplicate=not outcome.position))

    def _answer(self, batch: Batch, now: float, *, duplicate: bool) -> PushAnswer:
        run = self.runs.get(batch.run.run_id)
        sender = run.state.senders.get(batch.sender.id) if run is not None else None
        command: Command | None = None
        if batch.sender.role == "supervisor":
            try:
                command = self.engine.pending_command(batch.run.run_id, now)
            except sqlite3.Error as error:
                self._engine_failed(error)
        return PushAnswer(
            accepted_seq=max(batch.seq, sender.highest_seq if sender else 0), duplicate=duplicate, command=command
        )

    # Replay

    def replay(self, entries: Iterable[Entry], delivered: int) -> Iterator[int]:
        """Rebuild state; yields the position after each entry, so that the caller can let others work in between.

        ``delivered`` is the position up to which the recovery engine was told; what came after it is told again.
        """
        for entry in entries:
            run = self.runs.get(entry.run_id)
            if run is not None and entry.at - run.last_look >= LOOK_SECONDS:
                # Live detectors remember what they saw: let them see it again. What they concluded is in the journal.
                run.look(entry.at)
            try:
                self._apply(entry, entry.position, tell=entry.position > delivered)
            except msgspec.DecodeError as error:
                self.unreadable_entries += 1
                log.error("Entry %d of the journal cannot be read and is left out: %s", entry.position, error)
            yield entry.position

    # Alerts, operators

    def alert(self, alert: Alert, now: float) -> Decision:
        """One alert of a webhook. Raises ``sqlite3.Error`` where the engine cannot keep it: then it must come again."""
        run = self.runs.get(alert.run_id)
        decision = self.engine.on_alert(alert, run.facts() if run is not None else None, now)
        if run is not None:
            self._follow_recovery(run, now)
        return decision

    def acknowledge(self, incident_id: str, who: str, now: float) -> None:
        """A person has seen an incident. Raises :class:`Refused` where there is none of that id."""
        for run in self.runs.values():
            if run.book.find(incident_id) is not None:
                self._mark(run, Mark(action="acknowledge", incidents=[incident_id], who=who), now)
                return
        raise Refused("not_found", f"There is no incident {incident_id}.", status=404)

    # Once a second

    def tick(self, now: float) -> None:
        """Ask the live detectors, let the recovery engine go on, and bring incidents in line with recoveries."""
        for run in list(self.runs.values()):
            if self.shown(run, now):
                self._look(run, now)
        facts: dict[str, RunFacts] = {run_id: run.facts() for run_id, run in self.runs.items()}
        try:
            self.engine.tick(facts, now)
            for run in list(self.runs.values()):
                self._follow_recovery(run, now)
        except sqlite3.Error as error:
            self._engine_failed(error)

    def shown(self, run: WatchedRun, now: float) -> bool:
        """Whether the run has its series in ``/metrics``."""
        state = run.state
        heard = max(state.last_push, state.supervisor_heard or 0.0, state.first_seen)
        if now - heard >= ABANDONED_SECONDS:
            return False
        if state.ended_at is None or now - state.ended_at < self._ended_grace:
            return True
        return any(incident.state in ("opened", "mitigating") for incident in run.book)

    def recovery_state(self, run_id: str) -> RecoveryState | None:
        """What is to be shown of a run's recoveries; None where the store cannot be read."""
        try:
            return self.engine.state_of(run_id)
        except sqlite3.Error as error:
            self._engine_failed(error)
            return None

    def reasons_not_ready(self) -> list[str]:
        """Sentences; empty when all is well."""
        return [reason for reason in (self.journal_error, self.engine_error) if reason]

    def _look(self, run: WatchedRun, now: float) -> None:
        verdicts = run.look(now)
        pending = (run.state.run_id, "look")
        attempt = run.state.attempt
        if pending in self._pending or not run.book.live_would_change(verdicts, attempt=attempt, at=now):
            return
        self._pending.add(pending)
        entry = look_entry(run.state.run_id, Look(attempt=attempt, verdicts=verdicts), now)
        self._recorder.record(entry, partial(self._own_recorded, pending))

    def _mark(self, run: WatchedRun, mark: Mark, now: float) -> None:
        pending = (run.state.run_id, f"{mark.action} {mark.incidents}")
        if pending in self._pending:
            return
        self._pending.add(pending)
        self._recorder.record(mark_entry(run.state.run_id, mark, now), partial(self._own_recorded, pending))

    def _own_recorded(self, pending: tuple[str, str], entry: Entry, outcome: Recorded) -> None:
        self._pending.discard(pending)
        self.journal_error = outcome.error
        if not outcome.error:
            self._apply(entry, outcome.position)

    # Applying entries

    def _apply(self, entry: Entry, position: int, batch: Batch | None = None, *, tell: bool = True) -> None:
        run = self.runs.get(entry.run_id)
        reports: list[Report] = []
        if entry.kind in ("batch", "beat"):
            batch = decode_batch(entry.body) if batch is None else batch
            if run is None:
                run = WatchedRun.new(batch.run, self._make_detectors(), self._rules, entry.at)
                self.runs[entry.run_id] = run
            reports = run.apply_batch(batch, entry.at)
        elif run is not None:
            if entry.kind == "look":
                reports = run.apply_look(read_look(entry), entry.at)
            else:
                reports = run.apply_mark(read_mark(entry), entry.at)
        if run is not None and tell:
            self._tell(run, reports, entry.at)
            if not self.engine_error:
                self._recorder.delivered(position)

    def _tell(self, run: WatchedRun, reports: list[Report], now: float) -> None:
        """Tell the recovery engine what happened."""
        run_id = run.state.run_id
        try:
            for report in reports:
                if isinstance(report, StepDone):
                    self.engine.on_step(run_id, report.attempt, report.step, report.healthy, now)
                elif isinstance(report, AttemptReport):
                    self.engine.on_attempt(run_id, report.event, report.attempt, now)
                elif isinstance(report, CommandProgress):
                    self.engine.on_progress(run_id, report, now)
                elif report.what in ("opened", "escalated", "reopened"):
                    self.engine.on_incident(open_incident(report.after), run.facts(), now)
        except sqlite3.Error as error:
            self._engine_failed(error)
        for report in reports:
            if isinstance(report, Change):
                it = report.after
                log.warning("Incident %s %s (%s): %s", it.id, report.what, it.severity.label, it.summary)

    def _engine_failed(self, error: sqlite3.Error) -> None:
        self.engine_error = f"The recovery store cannot be used: {error}."
        log.error("%s What it missed is told to it again at the next start.", self.engine_error)

    def _follow_recovery(self, run: WatchedRun, now: float) -> None:
        """Incidents are mitigating while a recovery works on them, and resolved when it has succeeded."""
        incidents = list(run.book)
        if not incidents:
            return
        state = self.engine.state_of(run.state.run_id)
        active = state.active
        if active is not None and active.stage in MITIGATING_STAGES:
            keys = active.incident_keys
            theirs = [i.id for i in incidents if i.state != "mitigating" and open_incident(i).key in keys]
            if theirs:
                self._mark(run, Mark(action="mitigate", incidents=theirs, who=active.id), now)
            return
        left = [i for i in incidents if i.state == "mitigating" and self._outcome(i.recovery_id) != "succeeded"]
        if left:
            self._mark(run, Mark(action="give_back", incidents=[i.id for i in left]), now)
        last = state.last
        if last is not None and last.stage == "succeeded" and last.times.finished is not None:
            self._resolve_recovered(run, last, now)

    def _resolve_recovered(self, run: WatchedRun, recovery: Recovery, now: float) -> None:
        finished = recovery.times.finished or now
        over = [
            i.id
            for i in run.book
            if i.recovery_id == recovery.id or (i.attempt < run.state.attempt and i.updated_at <= finished)
        ]
        if over:
            reason = f"recovery {recovery.id} succeeded"
            self._mark(run, Mark(action="recovered", incidents=over, who=recovery.id, reason=reason), now)

    def _outcome(self, recovery_id: str) -> str:
        recovery = self.engine.get(recovery_id) if recovery_id else None
        return recovery.stage if recovery is not None else ""
