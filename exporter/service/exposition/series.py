"""The series of one run: its label sets, made once, and its lines of a scrape. Used by the exposition.

A scrape formats values and nothing else: a label set is escaped once, kept with the run, and shared by all metrics that
have it. What changes once a step or once a reading (what a detector expects, a histogram, a phase, a GPU) keeps its
lines until it does. The work is that of the series that the run has, whatever the number of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter

from exporter.detectors.base import Expectation, Verdict
from exporter.incidents import Incident
from exporter.protocol import GpuReading
from exporter.recovery.facts import Checkpoint
from exporter.service.durations import DURATION_BUCKETS
from exporter.service.exposition import families as f
from exporter.service.exposition.checkpoint_series import put_care
from exporter.service.exposition.families import Family
from exporter.service.exposition.recovery_series import put_recovery
from exporter.service.exposition.text import Page, histogram, label_set, number, numbers, summary
from exporter.service.pace import seconds_a_step, seconds_to_end
from exporter.service.recoveries import RecoveryView
from exporter.service.run_state import is_silent, run_state
from exporter.service.watch import WatchedRun

STALE_READING_SECONDS = 120.0
"""A GPU that was not read for longer has no reading."""

_OUTCOMES = ("succeeded", "failed", "cancelled")
_BAND = (f.EXPECTED, f.LOWER, f.UPPER)
_SIGNALS = {signal: (family.order, family.sample) for signal, family in f.SIGNALS.items()}
_GPU = tuple((family.order, family.sample) for family in (*f.GPU_READINGS.values(), *f.GPU_XIDS.values(), f.GPU_LOST))
_GPU_VALUES = attrgetter(*f.GPU_READINGS, *f.GPU_XIDS)
_SPARE_LABEL_SETS = 64


class RunSeries:
    """All series of one run.

    Args:
        run: read at every scrape; its id and its detectors stay the same.
    """

    def __init__(self, run: WatchedRun) -> None:
        self.run = run
        self._of_run = label_set(("run",), (run.state.run_id,))
        self._label_sets: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
        self._used = 0
        """Of ``_label_sets`` in this scrape."""
        # Lines that are kept, each beside that of which they were made.
        self._durations: tuple[list[int], float, str] = ([], 0.0, "")
        self._expected: tuple[object, tuple[str, ...]] = (None, ())
        self._checkpoints: tuple[Checkpoint | None, Checkpoint | None, list[tuple[int, str]]] = (None, None, [])
        self._pace: tuple[object, float | None] = (None, None)
        self._phase_lines: dict[str, tuple[int, str]] = {}
        self._gpu_lines: dict[tuple[str, int], tuple[GpuReading, list[tuple[int, str]]]] = {}
        expecting = (getattr(detector, "expected", None) for detector in run.detectors.step)
        self._expecting: list[Callable[[], Mapping[str, Expectation]]] = [ask for ask in expecting if ask is not None]

    def render(self, page: Page, recovery: RecoveryView | None, now: float) -> None:
        """Add every series of the run to the page."""
        self._lines = page.lines
        self._used = 0
        self._about(recovery, now)
        self._steps()
        self._plan(now)
        self._expectations()
        self._phases(now)
        self._time()
        self._rollouts()
        self._gpus(now)
        self._checkpoints_and_hooks()
        put_care(self.put, self.run.state, self._checkpoints[1])
        self._incidents()
        if recovery is not None:
            put_recovery(self.put, recovery, now)
        used = self._used + len(self._gpu_lines) + len(self._phase_lines)
        if len(self._label_sets) > 2 * used + _SPARE_LABEL_SETS:
            # GPUs, phases and incidents come and go; what is left of them must not grow with the time.
            self._label_sets.clear()

    def _put(self, family: Family, value: float) -> None:
        """A series that has the label ``run`` only."""
        self._lines[family.order].append(f"{family.sample}{self._of_run}{number(value)}\n")

    def put(self, family: Family, value: float, *values: str) -> None:
        """A series; ``values`` of its labels besides ``run``."""
        if values:
            self._put_labelled(family, value, *values)
        else:
            self._put(family, value)

    def _put_labelled(self, family: Family, value: float, *values: str) -> None:
        """A series with labels besides ``run``; ``values`` are theirs."""
        self._lines[family.order].append(f"{family.sample}{self._labels(family, values)}{number(value)}\n")

    def _labels(self, family: Family, values: tuple[str, ...]) -> str:
        self._used += 1
        known = self._label_sets.get((family.labels, values))
        if known is None:
            known = label_set(family.labels, (self.run.state.run_id, *values))
            self._label_sets[family.labels, values] = known
        return known

    def _about(self, recovery: RecoveryView | None, now: float) -> None:
        state = self.run.state
        who = state.identity
        about = (who.project, who.experiment, str(state.attempt), who.verl_version, who.trainer, who.cohort)
        self._put_labelled(f.RUN, 1, *about)
        self._put(f.ATTEMPT, state.attempt)
        self._put(f.RUNNING, int(state.running))
        self._put_labelled(f.RUN_STATE, 1, run_state(self.run, recovery.state if recovery is not None else None, now))
        self._put(f.LAST_PUSH, state.last_push or state.first_seen)
        if state.supervisor_heard is not None:
            self._put(f.SUPERVISOR_LAST_PUSH, state.supervisor_heard)

    def _steps(self) -> None:
        state = self.run.state
        self._put(f.STEPS, state.steps_total)
        if state.late_steps:
            self._put(f.STEPS_LATE, state.late_steps)
        if state.current is not None:
            self._put(f.STEP, state.current)
        if len(state.recent):
            self._put(f.STEP_AT, state.recent.newest_at())
        lines, places, values = self._lines, [], []
        for signal, value in state.signals.items():
            place = _SIGNALS.get(signal)
            if place is not None:
                places.append(place)
                values.append(value)
        of_run = self._of_run
        for (order, name), text in zip(places, numbers(values), strict=True):
            lines[order].append(f"{name}{of_run}{text}\n")
        counts, total = state.durations.counts, state.durations.total
        known_counts, known_total, text = self._durations
        if counts != known_counts or total != known_total:
            text = histogram(f.STEP_DURATION, of_run, DURATION_BUCKETS, counts, total) if any(counts) else ""
            self._durations = (list(counts), total, text)
        if text:
            lines[f.STEP_DURATION.order].append(text)

    def _plan(self, now: float) -> None:
        """How many steps there will be, and when they are done."""
        state = self.run.state
        planned = state.setup.total_steps
        if planned is None:
            return
        self._put(f.STEPS_PLANNED, planned)
        seen = (state.attempt, state.current, state.steps_total)
        if seen != self._pace[0]:
            self._pace = (seen, seconds_a_step(state.recent, state.attempt))
        left = None if is_silent(self.run, now) else seconds_to_end(state, self._pace[1], now)
        if left is not None:
            self._put(f.ETA, left)

    def _expectations(self) -> None:
        """Detectors are asked once a step: what they expect changes with what they see."""
        if not self._expecting:
            return
        state = self.run.state
        seen = (state.attempt, state.current, state.steps_total, len(state.signals))
        if seen != self._expected[0]:
            found: dict[str, Expectation] = {}
            for ask in self._expecting:
                found = {**ask(), **found}
            self._expected = (seen, self._band({s: e for s, e in found.items() if s in state.signals}))
        for family, lines in zip(_BAND, self._expected[1], strict=False):
            self._lines[family.order].append(lines)

    def _band(self, found: Mapping[str, Expectation]) -> tuple[str, ...]:
        """What is expected: the lines of each of the three metrics."""
        labels = [self._labels(f.EXPECTED, (signal,)) for signal in found]
        return tuple(
            "".join(f"{family.sample}{of}{text}\n" for of, text in zip(labels, numbers(values), strict=True))
            for family, values in zip(_BAND, zip(*found.values(), strict=True), strict=False)
        )

    def _phases(self, now: float) -> None:
        for phase, age in self.run.state.open_phases(now).items():
            self._put_labelled(f.PHASE_OPEN, age, phase)
        durations = self._lines[f.PHASE_DURATION.order]
        for phase, total in self.run.state.phase_times.totals.items():
            # As many as the totals of the run, which are bounded.
            count, lines = self._phase_lines.get(phase, (0, ""))
            if count != total.count:
                lines = summary(f.PHASE_DURATION, self._labels(f.PHASE_DURATION, (phase,)), total.count, total.seconds)
                self._phase_lines[phase] = (total.count, lines)
            durations.append(lines)

    def _time(self) -> None:
        goodput = self.run.state.goodput
        if goodput.until:
            for name, seconds in goodput.spent().items():
                self._put_labelled(f.TIME, seconds, name)

    def _rollouts(self) -> None:
        counts = self.run.state.rollouts()
        finished = counts.succeeded + counts.failed
        if not finished and not counts.cancelled and not counts.in_flight:
            return
        for outcome in _OUTCOMES:
            self._put_labelled(f.ROLLOUT_REQUESTS, getattr(counts, outcome), outcome)
        self._put(f.ROLLOUT_IN_FLIGHT, counts.in_flight)
        if finished:
            self._put(f.ROLLOUT_SUCCESS, counts.succeeded / finished)

    def _gpus(self, now: float) -> None:
        gpus, lines = self.run.state.gpus, self._lines
        for place, (gpu, at) in gpus.items():
            if now - at > STALE_READING_SECONDS:
                continue
            known = self._gpu_lines.get(place)
            if known is None or known[0] is not gpu:
                known = self._gpu_lines[place] = (gpu, self._gpu(gpu))
            for order, line in known[1]:
                lines[order].append(line)
        if len(self._gpu_lines) > len(gpus):
            self._gpu_lines = {place: known for place, known in self._gpu_lines.items() if place in gpus}

    def _gpu(self, gpu: GpuReading) -> list[tuple[int, str]]:
        """The lines of one reading; a value that the GPU does not support is absent."""
        labels = self._labels(f.GPU_LOST, (gpu.node, str(gpu.index), gpu.uuid))
        read = (*_GPU_VALUES(gpu), int(gpu.lost))
        names = [name for name, value in zip(_GPU, read, strict=True) if value is not None] if None in read else _GPU
        texts = numbers([value for value in read if value is not None])
        return [(order, f"{name}{labels}{text}\n") for (order, name), text in zip(names, texts, strict=True)]

    def _checkpoints_and_hooks(self) -> None:
        state = self.run.state
        saved, verified = state.last_saved(), state.last_verified()
        if saved is not self._checkpoints[0] or verified is not self._checkpoints[1]:
            self._checkpoints = (saved, verified, self._of_checkpoints(saved, verified))
        for order, line in self._checkpoints[2]:
            self._lines[order].append(line)
        in_place, missing = state.hooks()
        if in_place or missing:
            self._put(f.HOOKS_IN_PLACE, len(in_place))
            self._put(f.HOOKS_EXPECTED, len(in_place) + len(missing))

    def _of_checkpoints(self, saved: Checkpoint | None, verified: Checkpoint | None) -> list[tuple[int, str]]:
        values: list[tuple[Family, float]] = []
        if saved is not None:
            values += [(f.CHECKPOINT_SAVED, saved.step), (f.CHECKPOINT_SAVED_AT, saved.saved_at)]
            values += [(f.CHECKPOINT_SIZE, saved.bytes)] if saved.bytes else []
            values += [(f.CHECKPOINT_SAVE, saved.save_seconds)] if 0.0 < saved.save_seconds < math.inf else []
        if verified is not None:
            values += [(f.CHECKPOINT_VERIFIED, verified.step), (f.CHECKPOINT_VERIFIED_AT, verified.saved_at)]
        return [(family.order, f"{family.sample}{self._of_run}{number(value)}\n") for family, value in values]

    def _incidents(self) -> None:
        run = self.run
        for incident in run.book:
            self._put_labelled(f.INCIDENT_OPEN, 1, incident.detector, incident.signal, incident.severity.label)
        if any(True for _ in run.book):
            self._situations()
        for (detector, severity), count in run.book.opened.items():
            self._put_labelled(f.INCIDENTS, count, detector, severity)
        for detector, count in run.detector_faults.items():
            self._put_labelled(f.DETECTOR_FAULTS, count, detector)
        for signal, seconds in self._forecasts().items():
            self._put_labelled(f.FORECAST, seconds, signal)

    def _situations(self) -> None:
        """Under the name of the finding that leads, which stays while others join."""
        groups = [(group, found) for group in self.run.groups() if (found := group.open)]
        newest = max((found[0].attempt for _, found in groups), default=0)
        for group, found in groups:
            for incident in found:
                self._put_labelled(f.INCIDENT_ONSET, incident.onset, incident.detector, incident.signal, group.name)
            if found[0].attempt == newest:
                # What is left of an attempt that is over may have lost the finding that named it to the next one.
                lead = group.lead
                self._put_labelled(f.SITUATION_OPEN, 1, lead.detector, lead.signal, group.severity.label)

    def _forecasts(self) -> dict[str, float]:
        """Seconds to the nearest limit of each signal: of open incidents, and of what was noted at the newest step."""
        found: dict[str, float] = {}
        step = self.run.state.current
        foreseen: list[Incident | Verdict] = [incident for incident in self.run.book if incident.last_step == step]
        for note in reversed(self.run.book.notes):
            if note.step != step:
                break
            foreseen.append(note)
        for one in foreseen:
            if one.forecast is not None and one.forecast.seconds is not None:
                found[one.signal] = min(one.forecast.seconds, found.get(one.signal, math.inf))
        return found
