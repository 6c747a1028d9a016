"""Takes batches in: each once, within its run's bounds, answered when it is on disk and has had its effect. Part of
the core.

A batch is known by (run, sender, sequence number). What was taken before is answered as a duplicate; what comes twice
at the same time is written once, and both are answered by what becomes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from exporter.protocol import Abort, Batch, Command, HistogramRequest, PushAnswer
from exporter.service.admission import Limits, Refused
from exporter.service.entries import batch_entry
from exporter.service.recorder import Recorded, Recorder
from exporter.service.sequences import Sequences
from exporter.service.state import MANY_SENDERS, SILENT_SENDER_SECONDS
from exporter.service.stored import Entry
from exporter.service.watch import WatchedRun

MAX_GPUS = 8192
"""Of one run."""

LOOK_EVERY = 256
"""New senders, so that a run of ten thousand is not gone through ten thousand times."""

Answer = Callable[[PushAnswer | Refused], None]


class Intake:
    """The batches on their way to disk, and what became of all others.

    Args:
        recorder: writes them.
        limits: bounds of a run.
        apply: gives an entry that is on disk its effect.
        failed: hears of every write, with why it failed, or an empty text where it did not.
        asked: the command and the abort that a supervisor is to get, if any.
    """

    def __init__(
        self,
        recorder: Recorder,
        limits: Limits,
        *,
        apply: Callable[[Entry, int, Batch], None],
        failed: Callable[[str], None],
        asked: Callable[[str, float], tuple[Command | None, Abort | None]],
        run_of: Callable[[str], WatchedRun | None],
    ) -> None:
        self._recorder = recorder
        self._limits = limits
        self._apply = apply
        self._failed = failed
        self._asked = asked
        self._run_of = run_of
        self.accepted = 0
        self.duplicates = 0
        self.steps = 0
        """Steps, and parts of steps, accepted."""
        self.samples = 0
        """Metric values accepted."""
        self._arriving: dict[tuple[str, str, int], list[Answer]] = {}
        """Batches that are on their way to disk, with who else waits for the same one."""
        self._new_runs: dict[str, int] = {}
        """Runs that are not known yet, with the number of their batches on their way to disk."""

    def take(
        self, batch: Batch, run: WatchedRun | None, now: float, answer: Answer, room: Callable[[int], None]
    ) -> None:
        """Record a batch, or answer at once where it was taken before.

        ``room`` is asked with the number of other new runs where the batch's is new; it raises :class:`Refused` where
        there may be no more. Raises :class:`Refused` where a bound of the run is broken, or the disk does not keep up.
        """
        run_id, sender = batch.run.run_id, batch.sender.id
        taken = run.seen.get(sender) if run is not None else None
        if taken is not None and batch.seq in taken:
            self._answer_again(batch, now, answer, PushAnswer(accepted_seq=batch.seq))
            return
        once = (run_id, sender, batch.seq)
        waiting = self._arriving.get(once)
        if waiting is not None:
            waiting.append(partial(self._answer_again, batch, now, answer))
            return
        if self._recorder.full():
            raise Refused("busy", "The journal's disk does not keep up: send it again.", status=503, retry_after=1)
        if run is not None:
            check_room(run, batch, now, self._limits)
        else:
            room(len(self._new_runs.keys() - {run_id}))
            self._new_runs[run_id] = self._new_runs.get(run_id, 0) + 1
        self._arriving[once] = []
        self._recorder.record(batch_entry(batch, now), partial(self._recorded, batch, answer, run is None))

    def busy(self) -> set[str]:
        """Runs with a batch on its way to disk."""
        return {run_id for run_id, _, _ in self._arriving}

    def _recorded(self, batch: Batch, answer: Answer, new: bool, entry: Entry, outcome: Recorded) -> None:
        run_id = entry.run_id
        if new:
            self._new_runs[run_id] -= 1
            if not self._new_runs[run_id]:
                del self._new_runs[run_id]
        waiting = self._arriving.pop((run_id, batch.sender.id, batch.seq))
        self._failed(outcome.error)
        first: PushAnswer | Refused
        if outcome.error:
            run = self._run_of(run_id)
            if run is not None and batch.sender.role == "trainer":
                # It was heard, though it could not be kept: a full disk here must not look like a silent run there.
                run.state.last_push = max(run.state.last_push, entry.at)
            message = f"{outcome.error} Nothing was taken over; send it again."
            first = Refused("journal", message, status=503, retry_after=5)
        else:
            self._apply(entry, outcome.position, batch)
            self.accepted += 1
            self.steps += len(batch.steps)
            self.samples += sum(len(step.metrics) for step in batch.steps)
            first = self._answer(batch, entry.at, duplicate=False)
        answer(first)
        for one in waiting:
            one(first)

    def _answer_again(self, batch: Batch, now: float, answer: Answer, first: PushAnswer | Refused) -> None:
        """A batch that came again, when it is known what became of the first."""
        if isinstance(first, Refused):
            answer(first)
            return
        self.duplicates += 1
        answer(self._answer(batch, now, duplicate=True))

    def _answer(self, batch: Batch, now: float, *, duplicate: bool) -> PushAnswer:
        run = self._run_of(batch.run.run_id)
        taken = run.seen.get(batch.sender.id) if run is not None else None
        of_supervisor = batch.sender.role == "supervisor"
        command, abort = self._asked(batch.run.run_id, now) if of_supervisor else (None, None)
        highest = max(batch.seq, taken.highest if taken else 0)
        return PushAnswer(
            accepted_seq=highest,
            duplicate=duplicate,
            command=command,
            abort=abort,
            histogram=histogram_for(run, batch, now) if run is not None else None,
        )


def histogram_for(run: WatchedRun, batch: Batch, now: float) -> HistogramRequest | None:
    """What the trainer of the newest attempt is asked for; nobody else can write it."""
    state = run.state
    if state.gradients.wanted is None or batch.sender.role != "trainer" or not state.running:
        return None
    return state.gradients.request(attempt=state.attempt, steps_total=state.steps_total, now=now)


def check_room(run: WatchedRun, batch: Batch, now: float, limits: Limits) -> None:
    """Raise :class:`Refused` (429) where the batch brings more senders, GPUs or metrics than a run may have."""
    run_id = run.state.run_id
    if batch.sender.id not in run.seen and len(run.seen) >= limits.senders_per_run:
        old = now - SILENT_SENDER_SECONDS
        if sum(1 for taken in run.seen.values() if taken.heard >= old) >= limits.senders_per_run:
            raise Refused(
                "too_many_senders",
                f"Run {run_id} has had {len(run.seen)} senders within a week, and at most "
                f"{limits.senders_per_run} are accepted (limits.senders_per_run).",
                where="$.sender.id",
                status=429,
                retry_after=60,
            )
    if batch.gpus and len(run.state.gpus.keys() | {(gpu.node, gpu.index) for gpu in batch.gpus}) > MAX_GPUS:
        raise Refused(
            "too_many_gpus",
            f"Run {run_id} would have readings of more than {MAX_GPUS} GPUs.",
            where="$.gpus",
            status=429,
            retry_after=60,
        )
    for index, step in enumerate(batch.steps):
        if not run.metrics.issuperset(step.metrics):
            # Rare: nearly every step of a run has metrics that it had before.
            metrics = run.metrics.union(*(other.metrics for other in batch.steps))
            if len(metrics) > limits.metrics_per_run:
                raise Refused(
                    "too_many_metrics",
                    f"Run {run_id} would have {len(metrics)} different metrics, and at most "
                    f"{limits.metrics_per_run} are accepted (limits.metrics_per_run).",
                    where=f"$.steps[{index}].metrics",
                )
            return


def note(run: WatchedRun, batch: Batch, at: float) -> None:
    """A batch is in the journal: remember its number, and the names of its metrics."""
    taken = run.seen.get(batch.sender.id)
    if taken is None:
        if len(run.seen) >= MANY_SENDERS and len(run.seen) % LOOK_EVERY == 0:
            run.seen = {name: one for name, one in run.seen.items() if one.heard >= at - SILENT_SENDER_SECONDS}
        taken = run.seen[batch.sender.id] = Sequences()
    taken.add(batch.seq)
    taken.heard = at
    for step in batch.steps:
        if not run.metrics.issuperset(step.metrics):
            # A thousand runs have the same names: one string for all of them.
            run.metrics.update(map(sys.intern, step.metrics))
