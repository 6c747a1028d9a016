"""The core: takes batches, alerts and ticks, keeps every run, tells the recovery engine. Called by the app.

Synchronous, without a clock and without a socket: every call brings ``now`` (Unix seconds of the exporter's clock), so
a test of an hour takes none. Whatever changes state goes to the recorder first and is applied when it is in the
journal, in the order of the journal; that is why a restart finds the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from exporter.incidents import Incident, Rules
from exporter.protocol import Batch, PushAnswer, decode_batch
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.facts import Alert
from exporter.recovery.record import Decision
from exporter.service.admission import Limits, Refused, check
from exporter.service.entries import Look, Mark, batch_entry, look_entry, mark_entry, read_look, read_mark
from exporter.service.journal import Entry
from exporter.service.recorder import Recorded, Recorder
from exporter.service.recovery_link import RecoveryLink
from exporter.service.watch import LOOK_SECONDS, Detectors, Report, WatchedRun

log = logging.getLogger("exporter.core")

ABANDONED_SECONDS = 7 * 86_400.0
"""A run that fell silent, or ended with something that nobody acknowledged, stays in ``/metrics`` for this long."""

MAX_GPUS = 8192
"""Of one run."""

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
        self.link = RecoveryLink(engine)
        self._make_detectors = detectors
        self._limits = limits
        self._rules = rules
        self._ended_grace = ended_grace
        self.runs: dict[str, WatchedRun] = {}
        self.unreadable_entries = 0
        self.journal_error = ""
        """Why the newest write to the journal failed; empty while it works."""
        self.accepted = 0
        self.duplicates = 0
        self.faults = 0
        """Entries whose effect failed half-way by a fault of ours; they are in the journal and in the log."""
        self._admitting: set[str] = set()
        self._pending: set[tuple[str, str]] = set()

    # Pushes

    def submit(self, batch: Batch, now: float, answer: Answer) -> None:
        """Check a batch and record it; ``answer`` is called when it is in the journal and applied.

        Raises :class:`Refused` at once where the batch breaks a bound.
        """
        check(batch, self._limits)
        self._check_room(batch, now)
        if batch.run.run_id not in self.runs:
            self._admitting.add(batch.run.run_id)
        entry = batch_entry(batch, now)
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
            watched += len(self._admitting - {batch.run.run_id})
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

        elif len(run.state.gpus.keys() | {(gpu.node, gpu.index) for gpu in batch.gpus}) > MAX_GPUS:
            raise Refused(
                "too_many_gpus",
                f"Run {run.state.run_id} would have readings of more than {MAX_GPUS} GPUs.",
                where="$.gpus",
                status=429,
                retry_after=60,
            )

    def _batch_recorded(self, batch: Batch, answer: Answer, entry: Entry, outcome: Recorded) -> None:
        self._admitting.discard(entry.run_id)
        self.journal_error = outcome.error
        run = self.runs.get(entry.run_id)
        if outcome.error:
            if run is not None and batch.sender.role == "trainer":
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
        command = self.link.command(batch.run.run_id, now) if batch.sender.role == "supervisor" else None
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
            self._apply(entry, entry.position, tell=entry.position > delivered)
            yield entry.position

    # Alerts, operators

    def alert(self, alert: Alert, now: float) -> Decision:
        """One alert of a webhook. Raises ``sqlite3.Error`` where the engine cannot keep it: then it must come again."""
        run = self.runs.get(alert.run_id)
        decision = self.engine.on_alert(alert, run.facts() if run is not None else None, now)
        if run is not None:
            self._mark_all(run, self.link.marks(run), now)
        return decision

    def acknowledge(self, incident_id: str, who: str, now: float, answer: Callable[[Incident | Refused], None]) -> None:
        """A person has seen an incident; ``answer`` is called with it as it then is.

        Raises :class:`Refused` where there is none of that id.
        """
        for run in self.runs.values():
            if run.book.find(incident_id) is not None:
                mark = Mark(action="acknowledge", incidents=[incident_id], who=who)
                entry = mark_entry(run.state.run_id, mark, now)
                self._recorder.record(entry, partial(self._acknowledged, run, incident_id, answer))
                return
        raise Refused("not_found", f"There is no incident {incident_id}.", status=404)

    def _acknowledged(
        self,
        run: WatchedRun,
        incident_id: str,
        answer: Callable[[Incident | Refused], None],
        entry: Entry,
        outcome: Recorded,
    ) -> None:
        self._own_recorded(None, entry, outcome)
        incident = run.book.find(incident_id)
        if outcome.error or incident is None:
            message = f"{outcome.error} Nothing was taken over; send it again."
            answer(Refused("journal", message, status=503, retry_after=5))
        else:
            answer(incident)

    # Once a second

    def tick(self, now: float) -> None:
        """Ask the live detectors, let the recovery engine go on, and bring incidents in line with recoveries."""
        for run in list(self.runs.values()):
            if self.shown(run, now):
                self._look(run, now)
        self.link.tick({run_id: run.facts() for run_id, run in self.runs.items()}, now)
        for run in list(self.runs.values()):
            self._mark_all(run, self.link.marks(run), now)
            if run.state.ended_at is not None and (run.held is None or self.shown(run, now)):
                run.held = self.link.holds(run)

    def shown(self, run: WatchedRun, now: float) -> bool:
        """Whether the run has its series in ``/metrics``: what still needs a person does not leave by itself."""
        state = run.state
        heard = max(state.last_push, state.supervisor_heard or 0.0, state.first_seen)
        if now - heard >= ABANDONED_SECONDS:
            return False
        if state.ended_at is None or now - state.ended_at < self._ended_grace:
            return True
        return bool(run.held) or any(incident.state in ("opened", "mitigating") for incident in run.book)

    def reasons_not_ready(self) -> list[str]:
        """Sentences; empty when all is well."""
        return [reason for reason in (self.journal_error, self.link.error) if reason]

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

    def _own_recorded(self, pending: tuple[str, str] | None, entry: Entry, outcome: Recorded) -> None:
        if pending is not None:
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
        if run is not None and tell and self.link.tell(run, reports, entry.at):
            self._recorder.delivered(position)
