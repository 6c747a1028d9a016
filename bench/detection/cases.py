"""Which faults and controls are tried where, and the walk along one run that tries them.

Called by the benchmark, in one process or in several. A run is walked once, from its start. At each chosen place the
watch is copied, and each copy goes on with the changed steps of one case, so that what was seen before is the true past
of the run, and no case disturbs another. Only the steps up to the deadline are walked, or up to the first page.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.detection.contenders import Contender, Said, Watch
from bench.detection.controls import CONTROLS, Control
from bench.detection.faults import KINDS, SEVERITIES, applies
from bench.detection.patch import GPU_MEMORY, HOST_MEMORY, Patch
from bench.detection.runs import HealthyRun, Metrics, Split, Step
from exporter.detectors.base import Severity
from exporter.signals import GIB

KIND: Final = {kind.name: kind for kind in KINDS}
CONTROL: Final = {control.name: control for control in CONTROLS}

EARLIEST: Final = 45
"""Steps that any watch is given first: some two or three times a warm-up."""
LONGEST: Final = 310


@dataclass(frozen=True, slots=True)
class Case:
    """A fault (``severity`` 0 to 2) or a control (``severity`` -1) at one place of a run."""

    kind: str
    severity: int
    place: int
    """Index of the first step that may change."""
    seed: int


@dataclass(slots=True)
class Outcome:
    """What was said of one case, until the first page or the deadline."""

    run: str
    split: Split
    case: Case
    said: list[tuple[int, int, str]] = field(default_factory=list)
    """Time (1 is the first changed step), severity, source: of each source and severity the first."""
    forecasts: list[tuple[int, float]] = field(default_factory=list)
    """Of a leak: time, and steps to the limit as then foreseen."""
    reached: int = 0
    """Of a leak: the time at which the limit is reached."""
    faults: dict[str, int] = field(default_factory=dict)
    """Exceptions, by whose they were."""


@dataclass(slots=True)
class Walk:
    """What one contender said of one run and of the cases in it."""

    run: str
    split: Split
    steps: int
    said: list[tuple[int, int, str]]
    """Index of the step, severity, source."""
    outcomes: list[Outcome]
    faults: dict[str, int]
    """Exceptions on the healthy steps, by whose they were."""


def places(run: HealthyRun, count: int, seed: int) -> list[int]:
    """Where faults are put: one early, the others anywhere with enough steps behind it.

    >>> run = HealthyRun("made", "generated", [(step, {}) for step in range(1, 901)])
    >>> found = places(run, 4, 0)
    >>> found == sorted(found) and found[0] < 120 and found[-1] < 590
    True
    """
    rng = random.Random(f"{run.name}/{seed}")
    last = max(EARLIEST + 1, len(run.steps) - LONGEST)
    early = rng.randrange(EARLIEST, min(120, last))
    return sorted([early, *(rng.randrange(min(120, last - 1), last) for _ in range(count - 1))])


def fault_cases(run: HealthyRun, count: int, seed: int, kinds: Iterable[str]) -> list[Case]:
    """Every kind that means anything at a place, in every severity, at ``count`` places."""
    found = []
    for place in places(run, count, seed):
        for name in kinds:
            for severity in range(len(SEVERITIES)):
                case = Case(name, severity, place, seed)
                if applies(KIND[name], _patch(run, case, steps=0)):
                    found.append(case)
    return found


def control_cases(runs: Sequence[HealthyRun], tries: int, seed: int, names: Iterable[str]) -> dict[str, list[Case]]:
    """``tries`` of each control, over all runs that log what it changes, each at another place; by name of the run."""
    found: dict[str, list[Case]] = {run.name: [] for run in runs}
    for name in names:
        control = CONTROL[name]
        rng = random.Random(f"{name}/{seed}")
        fitting = [run for run in runs if _suits(control, run)]
        for number in range(tries if fitting else 0):
            run = fitting[number % len(fitting)]
            place = 0 if control.whole else rng.randrange(EARLIEST, len(run.steps) - control.steps - 60)
            found[run.name].append(Case(name, -1, place, seed * 1000 + number))
    return found


def _suits(control: Control, run: HealthyRun) -> bool:
    logged = run.steps[min(20, len(run.steps) - 1)][1]
    fits = not control.needs or any(key in logged for key in control.needs)
    return fits and len(run.steps) > EARLIEST + control.steps + 70


def _patch(run: HealthyRun, case: Case, steps: int) -> Patch:
    rng = random.Random(zlib.crc32(f"{run.name}/{case.place}/{case.kind}/{case.severity}/{case.seed}".encode()))
    at = case.place
    return Patch(run.steps[max(0, at - 300) : at], run.steps[at : at + steps], run.setup, rng)


def changed(run: HealthyRun, case: Case) -> list[Step]:
    """The steps of the case, from its place on."""
    if case.severity < 0:
        control = CONTROL[case.kind]
        patch = _patch(run, case, control.steps)
        control.change(patch)
        return patch.steps
    kind = KIND[case.kind]
    patch = _patch(run, case, kind.reaches[case.severity] if kind.reaches else kind.deadline[case.severity])
    kind.inject(patch, case.severity)
    return patch.steps


def walk(contender: Contender, run: HealthyRun, cases: Iterable[Case]) -> Walk:
    """Walk a run and try the cases in it."""
    waiting: dict[int, list[Case]] = {}
    outcomes = []
    for case in cases:
        if case.severity < 0 and CONTROL[case.kind].whole:
            watch = contender.start(CONTROL[case.kind].setup(run.setup))
            outcomes.append(_try(watch, run, case))
        else:
            waiting.setdefault(case.place, []).append(case)
    watch = contender.start(run.setup)
    said: list[tuple[int, int, str]] = []
    faults: dict[str, int] = {}
    for index, (step, metrics) in enumerate(run.steps):
        for case in waiting.get(index, ()):
            outcomes.append(_try(watch.fork(), run, case))
        said += [(index, int(one.severity), one.source) for one in _ask(watch, step, metrics, faults)]
    return Walk(run.name, run.split, len(run.steps), said, outcomes, faults | watch.faults())


def _ask(watch: Watch, step: int, metrics: Metrics, faults: dict[str, int]) -> Sequence[Said]:
    """A package that fails on a step says nothing of it, and is asked again on the next."""
    try:
        return watch.take(step, metrics)
    except Exception as error:  # noqa: BLE001 - any fault of a package's
        name = f"{type(error).__name__}: {error}"[:120]
        faults[name] = faults.get(name, 0) + 1
        return ()


def _try(watch: Watch, run: HealthyRun, case: Case) -> Outcome:
    outcome = Outcome(run.name, run.split, case)
    leak = case.severity >= 0 and KIND[case.kind].reaches is not None
    steps = changed(run, case)
    if leak:
        outcome.reached = arrival(run, case, steps)
    seen: set[tuple[int, str]] = set()
    before = watch.faults()
    for time, (step, metrics) in enumerate(steps, start=1):
        for one in _ask(watch, step, metrics, outcome.faults):
            if (one.severity, one.source) not in seen:
                seen.add((one.severity, one.source))
                outcome.said.append((time, int(one.severity), one.source))
            if leak:
                _note_forecast(outcome, time, one)
        if not leak and any(severity == Severity.CRITICAL for severity, _ in seen):
            break
    outcome.faults |= {name: count - before.get(name, 0) for name, count in watch.faults().items()}
    return outcome


def arrival(run: HealthyRun, case: Case, steps: Sequence[Step]) -> int:
    """When a leak reaches the limit: as planned, or earlier where the run itself takes more meanwhile."""
    gpu = case.kind == "gpu_memory_leak"
    keys, known = (GPU_MEMORY, run.setup.gpu_memory_bytes) if gpu else (HOST_MEMORY, run.setup.host_memory_bytes)
    limit = (known or math.inf) / GIB
    for time, (_, metrics) in enumerate(steps, start=1):
        if any(metrics.get(key, 0.0) >= limit for key in keys):
            return time
    return len(steps)


def _note_forecast(outcome: Outcome, time: int, one: Said) -> None:
    verdict = one.verdict
    wanted = "gpu" if outcome.case.kind.startswith("gpu") else "host"
    if verdict is None or verdict.detector != "memory" or wanted not in verdict.signal:
        return
    if verdict.forecast is not None and verdict.forecast.steps is not None:
        outcome.forecasts.append((time, verdict.forecast.steps))
