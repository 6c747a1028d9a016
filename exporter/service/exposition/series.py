"""The series of one run: a cache of what stands before each value, and the lines of a scrape. Used by the exposition.

A scrape formats values and nothing else: names and escaped labels are made once and kept with the run. What changes
once a step or once a reading (what a detector expects, a histogram, a GPU) keeps its lines until it does. The work is
that of the series that the run has, whatever the number of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from exporter.detectors.base import Expectation, Verdict
from exporter.incidents import Incident
from exporter.protocol import GpuReading
from exporter.recovery.record import ACTIVE
from exporter.recovery.record import RunState as RecoveryState
from exporter.service.exposition import families as f
from exporter.service.exposition.families import Family
from exporter.service.exposition.text import Page, histogram, histogram_prefixes, number, numbers, pairs, prefix
from exporter.service.state import DURATION_BUCKETS
from exporter.service.watch import WatchedRun

STALE_READING_SECONDS = 120.0
"""A GPU that was not read for longer has no reading."""

_OUTCOMES = ("succeeded", "failed", "cancelled")
_BAND = (f.EXPECTED, f.LOWER, f.UPPER)
_GPU = (*f.GPU_READINGS.values(), f.GPU_LOST)
_GPU_VALUES = attrgetter(*f.GPU_READINGS)
_SPARE_PREFIXES = 64


@dataclass(slots=True)
class _PhaseLines:
    """The two lines of one phase, kept until another duration is added."""

    before_count: str
    before_sum: str
    count: int = 0
    lines: str = ""

    def text(self, count: int, seconds: float) -> str:
        if count != self.count:
            self.count = count
            self.lines = f"{self.before_count}{count}\n{self.before_sum}{number(seconds)}\n"
        return self.lines


class RunSeries:
    """All series of one run.

    Args:
        run: read at every scrape; its id and its detectors stay the same.
    """

    def __init__(self, run: WatchedRun) -> None:
        self.run = run
        self._run_label = pairs(("run",), (run.state.run_id,))
        self._prefixes: dict[Family, str] = {}
        self._labelled: dict[tuple[Family, tuple[str, ...]], str] = {}
        self._used = 0
        """Of ``_labelled`` in this scrape."""
        self._signals: dict[str, tuple[int, str]] = {
            signal: (family.order, prefix(family.sample, self._run_label)) for signal, family in f.SIGNALS.items()
        }
        self._duration_prefixes = histogram_prefixes(f.STEP_DURATION, self._run_label, DURATION_BUCKETS)
        self._durations: tuple[list[int], float, str] = ([], 0.0, "")
        self._expected: tuple[object, list[tuple[int, str]]] = (None, [])
        self._band_prefixes: dict[str, list[tuple[int, str]]] = {}
        # As many phases as the run's totals have, which are bounded.
        self._phase_lines: dict[str, _PhaseLines] = {}
        self._gpu_lines: dict[tuple[str, int], tuple[GpuReading, list[tuple[int, str]]]] = {}
        self._gpu_prefixes: dict[tuple[str, int, str], list[tuple[int, str]]] = {}
        expecting = (getattr(detector, "expected", None) for detector in run.detectors.step)
        self._expecting: list[Callable[[], Mapping[str, Expectation]]] = [ask for ask in expecting if ask is not None]

    def render(self, page: Page, recovery: RecoveryState | None, now: float) -> None:
        """Add every series of the run to the page."""
        self._lines = page.lines
        self._used = 0
        self._about()
        self._steps()
        self._expectations()
        self._phases(now)
        self._time()
        self._rollouts()
        self._gpus(now)
        self._checkpoints_and_hooks()
        self._incidents()
        if recovery is not None:
            self._recovery(recovery)
        if len(self._labelled) > 2 * self._used + _SPARE_PREFIXES:
            # GPUs, phases and incidents come and go; what is left of them must not grow with the time.
            self._labelled.clear()

    def _put(self, family: Family, value: float) -> None:
        """A series that has the label ``run`` only."""
        before = self._prefixes.get(family)
        if before is None:
            before = self._prefixes[family] = prefix(family.sample, self._run_label)
        self._lines[family.order].append(f"{before}{number(value)}\n")

    def _put_labelled(self, family: Family, value: float, *values: str) -> None:
        """A series with labels besides ``run``; ``values`` are theirs."""
        self._used += 1
        before = self._labelled.get((family, values))
        if before is None:
            before = self._labelled[family, values] = self._prefix(family, values)
        self._lines[family.order].append(f"{before}{number(value)}\n")

    def _prefix(self, family: Family, values: Sequence[str]) -> str:
        return prefix(family.sample, f"{self._run_label},{pairs(family.labels[1:], values)}")

    def _about(self) -> None:
        state = self.run.state
        who = state.identity
        about = (who.project, who.experiment, str(state.attempt), who.verl_version, who.trainer, who.cohort)
        self._put_labelled(f.RUN, 1, *about)
        self._put(f.ATTEMPT, state.attempt)
        self._put(f.RUNNING, int(state.running))
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
        lines, places, values = self._lines, [], []
        for signal, value in state.signals.items():
            place = self._signals.get(signal)
            if place is not None:
                places.append(place)
                values.append(value)
        for (order, before), text in zip(places, numbers(values), strict=True):
            lines[order].append(f"{before}{text}\n")
        counts, total = state.durations.counts, state.durations.total
        known_counts, known_total, text = self._durations
        if counts != known_counts or total != known_total:
            text = histogram(self._duration_prefixes, counts, total) if any(counts) else ""
            self._durations = (list(counts), total, text)
        if text:
            lines[f.STEP_DURATION.order].append(text)

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
        for order, line in self._expected[1]:
            self._lines[order].append(line)

    def _band(self, found: Mapping[str, Expectation]) -> list[tuple[int, str]]:
        """The lines of what is expected."""
        befores: list[tuple[int, str]] = []
        for signal in found:
            if signal not in self._band_prefixes:
                # Detectors watch a fixed list of signals, so this stays as small as that.
                self._band_prefixes[signal] = [(family.order, self._prefix(family, (signal,))) for family in _BAND]
            befores += self._band_prefixes[signal]
        texts = numbers([value for expectation in found.values() for value in expectation])
        return [(order, f"{before}{text}\n") for (order, before), text in zip(befores, texts, strict=True)]

    def _phases(self, now: float) -> None:
        for phase, age in self.run.state.open_phases(now).items():
            self._put_labelled(f.PHASE_OPEN, age, phase)
        durations = self._lines[f.PHASE_DURATION.order]
        for phase, total in self.run.state.phase_times.totals.items():
            known = self._phase_lines.get(phase)
            if known is None:
                labels = f"{self._run_label},{pairs(('phase',), (phase,))}"
                name = f.PHASE_DURATION.name
                known = _PhaseLines(prefix(f"{name}_count", labels), prefix(f"{name}_sum", labels))
                self._phase_lines[phase] = known
            durations.append(known.text(total.count, total.seconds))

    def _time(self) -> None:
        goodput = self.run.state.goodput
        if goodput.until:
            self._put_labelled(f.TIME, goodput.productive, "productive")
            self._put_labelled(f.TIME, goodput.restart, "restart")
            self._put_labelled(f.TIME, goodput.stall, "stall")
            self._put_labelled(f.TIME, goodput.replayed, "replay")
            self._put_labelled(f.TIME, goodput.other, "other")

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
        where = (gpu.node, gpu.index, gpu.uuid)
        befores = self._gpu_prefixes.get(where)
        if befores is None:
            if len(self._gpu_prefixes) > 2 * len(self.run.state.gpus):
                self._gpu_prefixes.clear()
            values = (gpu.node, str(gpu.index), gpu.uuid)
            befores = [(family.order, self._prefix(family, values)) for family in _GPU]
            self._gpu_prefixes[where] = befores
        read = (*_GPU_VALUES(gpu), int(gpu.lost))
        if None in read:
            befores = [before for before, value in zip(befores, read, strict=True) if value is not None]
        texts = numbers([value for value in read if value is not None])
        return [(order, f"{before}{text}\n") for (order, before), text in zip(befores, texts, strict=True)]

    def _checkpoints_and_hooks(self) -> None:
        state = self.run.state
        saved, verified = state.last_saved(), state.last_verified()
        if saved is not None:
            self._put(f.CHECKPOINT_SAVED, saved.step)
        if verified is not None:
            self._put(f.CHECKPOINT_VERIFIED, verified.step)
        in_place, missing = state.hooks()
        if in_place or missing:
            self._put(f.HOOKS_IN_PLACE, len(in_place))
            self._put(f.HOOKS_EXPECTED, len(in_place) + len(missing))

    def _incidents(self) -> None:
        run = self.run
        for incident in run.book:
            self._put_labelled(f.INCIDENT_OPEN, 1, incident.detector, incident.signal, incident.severity.label)
        for (detector, severity), count in run.book.opened.items():
            self._put_labelled(f.INCIDENTS, count, detector, severity)
        for detector, count in run.detector_faults.items():
            self._put_labelled(f.DETECTOR_FAULTS, count, detector)
        for signal, seconds in self._forecasts().items():
            self._put_labelled(f.FORECAST, seconds, signal)

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

    def _recovery(self, recovery: RecoveryState) -> None:
        self._put(f.RECOVERY_FAILED, int(recovery.failed))
        self._put(f.RECOVERY_AWAITING, int(recovery.awaiting_approval))
        self._put(f.RECOVERY_IN_PROGRESS, int(recovery.in_progress))
        for outcome, count in recovery.outcomes.items():
            if outcome not in ACTIVE:
                self._put_labelled(f.RECOVERIES, count, outcome)
