"""The core: takes batches, alerts and ticks, keeps every run, tells the recovery engine. Called by the app.

Synchronous, without a clock and without a socket: every call brings ``now`` (Unix seconds of the exporter's clock), so
a test of an hour takes none. Whatever changes state goes to the recorder first and is applied when it is in the
journal, in the order of the journal; that is why a restart finds the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

import msgspec

from exporter.incidents import Change, Incident, Rules
from exporter.protocol import Batch, PushAnswer, decode_batch
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.facts import Alert
from exporter.recovery.record import Decision
from exporter.service import snapshot
from exporter.service.admission import Limits, Refused, check
from exporter.service.detector_times import DetectorTimes
from exporter.service.entries import Look, Mark, look_entry, mark_entry, read_look, read_mark, start_entry
from exporter.service.gradients import HistogramSettings
from exporter.service.intake import Answer, Intake, note
from exporter.service.journal import Journal
from exporter.service.keeping import Keeper, heard
from exporter.service.recorder import Recorded, Recorder
from exporter.service.recovery_link import RecoveryLink
from exporter.service.replaying import Replay
from exporter.service.reports import Report
from exporter.service.roster import Roster
from exporter.service.stored import Entry, JournalUnavailable, Snapshot
from exporter.service.watch import Detectors, WatchedRun

log = logging.getLogger("exporter.core")

ABANDONED_SECONDS = 7 * 86_400.0
"""A run that fell silent, or ended with something that nobody acknowledged, stays in ``/metrics`` for this long."""

WATCH_SECONDS = 10.0
"""How often it is written down that somebody watches: what a start has to take for time in which nobody did."""

SAY_AGAIN_SECONDS = 60.0


class Core:
    """All state of the exporter.

    Args:
        recorder: writes entries and calls back when they are in the journal.
        engine: the recovery engine.
        detectors: makes the detectors of a new run.
        read_snapshot: the snapshot of a run that is not in memory.
        limits: bounds of what is accepted.
        rules: when an incident is over.
        ended_grace: seconds for which a run that has ended stays in ``/metrics``.
        snapshot_seconds: a run that changed is snapshotted after as long.
        histogram: when gradient histograms are asked for.
    """

    def __init__(
        self,
        recorder: Recorder,
        engine: RecoveryEngine,
        detectors: Callable[[], Detectors],
        *,
        read_snapshot: Callable[[str], Snapshot | None],
        limits: Limits,
        rules: Rules,
        ended_grace: float,
        snapshot_seconds: float = 300.0,
        histogram: HistogramSettings = HistogramSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self._recorder = recorder
        self.engine = engine
        self.link = RecoveryLink(engine)
        self._make_detectors = detectors
        self._limits = limits
        self._rules = rules
        self._ended_grace = ended_grace
        self._histogram = histogram
        self.keeper = Keeper(recorder, snapshot_seconds, self._count_fault)
        self.detector_times = DetectorTimes()
        self.roster = Roster(self.keeper, read_snapshot, self._restore)
        self.unreadable_entries = 0
        self.journal_error = ""
        """Why the newest write to the journal failed; empty while it works."""
        self.mending = ""
        """Why the journal is being put together anew; empty while it is not."""
        self.faults = 0
        """What failed by a fault of ours: an entry's effect half-way, a tick, a snapshot; each is in the log."""
        self.intake = Intake(
            recorder,
            limits,
            apply=self._apply,
            failed=self._note_write,
            asked=self.link.asked,
            run_of=self.roster.runs.get,
        )
        self._pending: set[tuple[str, str]] = set()
        self._asked = count()
        self._full_said = 0.0
        self._watched = 0.0

    @property
    def runs(self) -> dict[str, WatchedRun]:
        """The runs in memory."""
        return self.roster.runs

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def recorder(self) -> Recorder:
        return self._recorder

    # Pushes

    def submit(self, batch: Batch, now: float, answer: Answer) -> None:
        """Check a batch and record it; ``answer`` is called when it is in the journal and applied.

        Raises :class:`Refused` at once where the batch breaks a bound, or the journal takes nothing.
        """
        if self.mending:
            raise Refused("journal", f"{self.mending} Send it again.", status=503, retry_after=5)
        check(batch, self._limits)
        run = self.find(batch.run.run_id)
        self.intake.take(batch, run, now, answer, partial(self._check_runs, now))

    def accept(self, batch: Batch, now: float) -> PushAnswer:
        """:meth:`submit` for a recorder that writes at once. Raises :class:`Refused`."""
        answers: list[PushAnswer | Refused] = []
        self.submit(batch, now, answers.append)
        if isinstance(answers[0], Refused):
            raise answers[0]
        return answers[0]

    def _restore(self, body: bytes) -> WatchedRun:
        run = snapshot.restore(body, self._make_detectors, self._rules)
        run.times = self.detector_times
        return run

    def find(self, run_id: str) -> WatchedRun | None:
        """The run, from memory or from disk; None where it is not known. Raises :class:`Refused` (503)."""
        try:
            return self.roster.find(run_id)
        except JournalUnavailable as error:
            self.journal_error = str(error)
            raise Refused("journal", str(error), status=503, retry_after=5) from None

    def _check_runs(self, now: float, arriving: int) -> None:
        watched = arriving + sum(1 for run in self.runs.values() if self.shown(run, now))
        if watched >= self._limits.runs:
            if not 0 <= now - self._full_said < SAY_AGAIN_SECONDS:
                self._full_said = now
                log.warning("A new run is refused: %d are watched, as many as limits.runs allows", watched)
            raise Refused(
                "too_many_runs",
                f"{watched} runs are watched already, and at most {self._limits.runs} are (limits.runs): "
                "raise the limit, wait until the grace time of an ended run is over, or forget runs that are over "
                "(verl-sentinel runs forget).",
                where="$.run.run_id",
                status=429,
                retry_after=60,
            )

    def _note_write(self, error: str) -> None:
        self.journal_error = error

    def _count_fault(self) -> None:
        self.faults += 1

    # Start and end

    def load(self, known: Iterable[Snapshot], now: float) -> Iterator[str]:
        """Take over the snapshots of all runs; yields after each, so that the caller can let others work in between.

        Raises :class:`JournalUnavailable` where one cannot be read.
        """

        def awake(summary: snapshot.RunSummary) -> bool:
            ended = summary.ended_at
            if now - max(summary.last_push, summary.first_seen) >= ABANDONED_SECONDS:
                return False
            recent = ended is None or now - ended < self._ended_grace
            return recent or summary.unresolved or self.link.holds(summary.run_id)

        yield from self.roster.load(known, awake)

    def replay(self, entries: Iterable[Entry], delivered: int, watched: float = 0.0) -> Iterator[int]:
        """Apply what came after the snapshots; yields the position after each entry.

        ``delivered`` is the position up to which the recovery engine was told; what came after it is told again.
        ``watched`` is when an exporter was last there, Unix seconds.
        """

        def apply(entry: Entry) -> None:
            self._apply(entry, entry.position, tell=entry.position > delivered)

        self.link.again = True
        yield from Replay(self.roster, self.keeper, apply).through(entries, watched)
        self.link.again = False

    def begin(self, watched: float, now: float) -> None:
        """The journal has been read: from here on somebody watches again."""
        self._recorder.record(start_entry(watched, now), lambda _, outcome: self._note_write(outcome.error))
        self.note_watching(now)

    def clear(self) -> None:
        """Forget all runs: the journal will be read again from its beginning."""
        self.roster.clear()
        self.keeper.applied = 0

    def busy(self, run_id: str) -> bool:
        """Whether something of the run is on its way to disk."""
        return run_id in self.intake.busy() or any(one == run_id for one, _ in self._pending)

    def snapshot_all(self) -> None:
        """Before the end: what is on disk then is all there is."""
        if not self.link.waits:
            self.keeper.take_all(self.runs.values())

    # Alerts, operators

    def alert(self, alert: Alert, now: float) -> Decision:
        """One alert of a webhook. Raises ``sqlite3.Error`` where the engine cannot keep it: then it must come again."""
        run = self.find(alert.run_id)
        decision = self.engine.on_alert(alert, self.link.facts_of(run) if run is not None else None, now)
        if run is not None:
            self._mark_all(run, self.link.marks(run), now)
        return decision

    def acknowledge(self, incident_id: str, who: str, now: float, answer: Callable[[Incident | Refused], None]) -> None:
        """A person has seen an incident; ``answer`` is called with it as it then is.

        Raises :class:`Refused` where there is none of that id.
        """
        run = self.find(incident_id.rsplit(":", 3)[0])
        if run is None or run.book.find(incident_id) is None:
            raise Refused("not_found", f"There is no incident {incident_id}.", status=404)
        entry = mark_entry(run.state.run_id, Mark(action="acknowledge", incidents=[incident_id], who=who), now)
        # While it is on its way the run stays in memory. Two people may ask at the same time, so each has a number.
        pending = (run.state.run_id, f"acknowledge {next(self._asked)}")
        self._pending.add(pending)
        self._recorder.record(entry, partial(self._acknowledged, pending, run, incident_id, answer))

    def _acknowledged(
        self,
        pending: tuple[str, str],
        run: WatchedRun,
        incident_id: str,
        answer: Callable[[Incident | Refused], None],
        entry: Entry,
        outcome: Recorded,
    ) -> None:
        self._own_recorded(pending, entry, outcome)
        incident = run.book.find(incident_id)
        if outcome.error or incident is None:
            message = f"{outcome.error} Nothing was taken over; send it again."
            answer(Refused("journal", message, status=503, retry_after=5))
            return
        if incident.acknowledged_at == entry.at:  # and not before, by somebody else
            self.link.note_acknowledged(incident, entry.at)
        answer(incident)

    # Once a second

    def tick(self, now: float) -> None:
        """Ask the live detectors, let the recovery engine go on, and bring incidents in line with recoveries."""
        for run in list(self.runs.values()):
            if self.shown(run, now):
                self._look(run, now)
        self.link.tick(self.runs, now)
        for run in list(self.runs.values()):
            self._mark_all(run, self.link.marks(run), now)
            if run.state.ended_at is not None and (run.held is None or self.shown(run, now)):
                run.held = self.link.holds(run.state.run_id)
        if not self.link.waits:
            self.keeper.take_due(self.runs, lambda run: not self.shown(run, now), now)
            self._put_to_sleep(now)
        if self.journal_error:
            self._recorder.maintain(Journal.probe, self._probed)
        elif not 0 <= now - self._watched < WATCH_SECONDS:
            self.note_watching(now)

    def note_watching(self, now: float) -> None:
        """Write down that somebody watches; on a disk that fails this is found here, also where nobody pushes."""
        self._watched = now
        self._recorder.maintain(lambda journal: journal.note_watching(now), self._watching_noted)

    def _watching_noted(self, error: str) -> None:
        self.journal_error = error or self.journal_error

    def _put_to_sleep(self, now: float) -> None:
        busy = self.intake.busy() | {run_id for run_id, _ in self._pending}
        hidden = [run_id for run_id, run in self.runs.items() if run_id not in busy and not self.shown(run, now)]
        for run_id in hidden:
            self.roster.put_to_sleep(run_id)

    def _probed(self, error: str) -> None:
        self.journal_error = error

    def shown(self, run: WatchedRun, now: float) -> bool:
        """Whether the run has its series in ``/metrics``: what still needs a person does not leave by itself."""
        state = run.state
        if now - heard(run) >= ABANDONED_SECONDS:
            return False
        if state.ended_at is None or now - state.ended_at < self._ended_grace:
            return True
        return bool(run.held) or run.book.unresolved()

    def reasons_not_ready(self) -> list[str]:
        """Sentences; empty when all is well."""
        return [reason for reason in (self.mending, self.journal_error, self.link.error) if reason]

    def _look(self, run: WatchedRun, now: float) -> None:
        verdicts = run.look(now)
        pending = (run.state.run_id, "look")
        attempt = run.state.attempt
        if pending in self._pending or not run.book.live_would_change(verdicts, attempt=attempt, at=now):
            return
        self._pending.add(pending)
        entry = look_entry(run.state.run_id, Look(attempt=attempt, verdicts=verdicts), now)
        self._recorder.record(entry, partial(self._own_recorded, pending))

    def _mark_all(self, run: WatchedRun, marks: list[Mark], now: float) -> None:
        for mark in marks:
            self._mark(run, mark, now)

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
        """The effect of one entry. Never raises: what is in the journal is accepted, and its sender waits."""
        try:
            self._take_effect(entry, position, batch, tell=tell)
        except msgspec.DecodeError as error:
            self.unreadable_entries += 1
            log.error("Entry %d of the journal cannot be read and is left out: %s", position, error)
        except Exception:
            self.faults += 1
            log.exception("Entry %d of the journal could not be taken over in full", position)

    def _take_effect(self, entry: Entry, position: int, batch: Batch | None, *, tell: bool) -> None:
        run = self.runs.get(entry.run_id)
        reports: list[Report] = []
        try:
            if entry.kind in ("batch", "beat"):
                batch = decode_batch(entry.body) if batch is None else batch
                if run is None:
                    run = WatchedRun.new(batch.run, self._make_detectors(), self._rules, entry.at)
                    run.times = self.detector_times
                    self.roster.add(run)
                note(run, batch, entry.at)
                reports = run.apply_batch(batch, entry.at)
            elif run is not None:
                if entry.kind == "look":
                    reports = run.apply_look(read_look(entry), entry.at)
                elif entry.kind == "mark":
                    reports = run.apply_mark(read_mark(entry), entry.at)
        finally:
            self.keeper.note(entry.run_id if run is not None else "", position, entry.at)
        if run is not None:
            # Also on replay: what is asked for is part of the run's state.
            state = run.state
            changes = (report for report in reports if isinstance(report, Change))
            state.gradients.ask_after(changes, self._histogram, state.attempt, state.steps_total, entry.at)
        if run is not None and tell and self.link.tell(run, reports, entry.at):
            self._recorder.delivered(position)
