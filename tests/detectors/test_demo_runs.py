"""Faults of the demo in runs of the stock verl 0.9.1 trainer, recorded with three seeds each, and what has to be said.

`python -m demo.record` made the recordings. They go through the code that watches a live run, with the exporter's
times, and the live detectors look once a second, as they do live.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from demo.recording import Recording, read
from demo.scenarios import SCENARIOS
from demo.stack import DETECTORS
from exporter.detectors.base import Severity
from exporter.detectors.registry import build_detectors
from exporter.incidents import Change, Incident, Rules
from exporter.service.entries import Look
from exporter.service.reports import Report
from exporter.service.watch import LOOK_SECONDS, WatchedRun

DATA = Path(__file__).parent / "data"
SEEDS = (0, 1, 2)
Names = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Expected:
    """The first page."""

    by: Names
    """All findings that would be right to come first, as (detector, signal)."""
    steps: int
    """At most so many steps after the fault's own."""
    seconds: float
    """At most so many seconds after the fault."""
    onset: tuple[int, int] = (0, 0)
    """Earliest and latest step to be blamed, counted from the fault's."""


def names(*written: str) -> Names:
    """`detector/signal` as a pair; several signals are separated by commas."""
    return frozenset((d, s) for one in written for d, _, signals in [one.partition("/")] for s in signals.split(","))


EXPECTED = {
    # The policy is thrown far off in the fault's own step, but verl measures KL before it updates: the next step is the
    # first that shows it. Two steps of evidence make a page, since one alone could be a spike that heals.
    "learning_rate": Expected(
        by=names("surge/kl,ppo_kl,pg_clipfrac,grad_norm", "kl/kl,ppo_kl", "clipping/pg_clipfrac"),
        steps=3,
        seconds=30.0,
        onset=(0, 1),
    ),
    # NaN is certain, and is in the loss and the gradient of the very step.
    "nan": Expected(by=names("non_finite/loss,grad_norm,kl,ppo_kl"), steps=0, seconds=5.0),
    # Nothing is logged: only an open phase tells. The demo's floor is 12 s; the looks are a second apart.
    "hang": Expected(by=names("stalled_phase/gen"), steps=0, seconds=15.0),
    # Before the fault not one request has failed; a share of 15 % is beyond doubt after a few dozen
    # requests, each step makes 32.
    "rollout_errors": Expected(by=names("rollout_failures/rollout_requests"), steps=4, seconds=15.0),
    # The supervisor sees the trainer end, which takes Ray some seconds after a worker was killed.
    "crash": Expected(by=names("trainer_exited/process"), steps=0, seconds=15.0),
    # Each step takes 0.3 s longer than the one before, and took about a second: within ten steps it is two to four
    # times as long. Onset: the first steps are lost in the noise of a shared machine.
    "slow_reward": Expected(
        by=names("step_time/step_time,generation_time,throughput"), steps=12, seconds=60.0, onset=(-1, 6)
    ),
    # From the fault's step on every reward and every advantage is exactly 0. That is nothing new in a batch or two of a
    # real run, so a detector may wait; the reward itself has never been near 0 before. The gradient norm drops by a
    # factor of 400, which counts as a spread like any other; that is dated by a window of ten steps.
    "blind_reward": Expected(
        by=names(
            "reward/reward", "level/grad_norm", "dead_run/advantage_spread,grad_norm", "gradient_instability/grad_norm"
        ),
        steps=8,
        seconds=60.0,
        onset=(-8, 0),
    ),
    # The policy learns what it is paid for. Nothing jumps in the fault's own step but the sign of the loss, since now
    # the long answers are the bad ones. Gradient and KL grow, and after 30 steps answers have one character: a page has
    # to come before that, and whichever of these signals it names began to move in between.
    "short_answers": Expected(
        by=names(
            "response_length/response_length",
            "level/loss,grad_norm,response_length,kl",
            "surge/loss,kl,ppo_kl,grad_norm",
            "kl/kl,ppo_kl",
            "reward/reward",
        ),
        steps=30,
        seconds=120.0,
        onset=(-1, 25),
    ),
}


RUNS = [(scenario, seed) for scenario in EXPECTED for seed in SEEDS]


@dataclass(frozen=True)
class Said:
    """What was said while a recording was watched."""

    recording: Recording
    findings: tuple[Incident, ...]
    """Each incident as it was when it opened or grew worse, in order."""
    unresolved: tuple[Incident, ...]
    """Incidents that were open at the end, as they were then."""

    def at_least(self, severity: Severity) -> list[Incident]:
        return [incident for incident in self.findings if incident.severity >= severity]


@cache
def watched(scenario: str, seed: int) -> Said:
    """Watch a recording to its end."""
    recording = read(DATA / f"{scenario}-{seed}.jsonl.gz")
    begin = recording.lines[0].at
    run = WatchedRun.new(recording.lines[0].batch.run, build_detectors(DETECTORS), Rules(), begin)
    reports: list[Report] = []
    now = begin

    def look_until(end: float) -> None:
        nonlocal now
        while now + LOOK_SECONDS <= end:
            now += LOOK_SECONDS
            look = Look(attempt=run.state.attempt, verdicts=run.look(now))
            reports.extend(run.apply_look(look, now))

    for line in recording.lines:
        look_until(line.at)
        reports.extend(run.apply_batch(line.batch, line.at))
    look_until(recording.head.ends_at)
    assert run.detector_faults == {}
    changes = [report for report in reports if isinstance(report, Change)]
    findings = tuple(change.after for change in changes if change.what in ("opened", "escalated"))
    return Said(recording, findings, tuple(run.book))


def told(incidents: list[Incident]) -> list[str]:
    """For the message of a test that fails."""
    return [f"step {i.last_step}, onset {i.onset}: {i.detector}/{i.signal} {i.summary}" for i in incidents]


NOT_RECORDED = {
    "bad_config": "no fault begins at a step: the configuration is ruinous from the first",
    "bad_version": "the fault begins with a restart on another version",
    "corrupt_checkpoint": "its fault is that of nan; the rest is about the way back",
    "memory_leak": "what leaks is a live process",
}
"""Scenarios that only a run under the supervisor shows (tests/demo/test_closed_loop.py runs them)."""


def test_every_scenario_of_the_demo_is_here() -> None:
    assert {*EXPECTED, "healthy", *NOT_RECORDED} == set(SCENARIOS)


@pytest.mark.parametrize(("scenario", "seed"), RUNS)
def test_a_fault_is_found_in_time_by_the_right_detector_and_dated_rightly(scenario: str, seed: int) -> None:
    said, expected = watched(scenario, seed), EXPECTED[scenario]
    fault = said.recording.head.fault
    assert fault is not None
    found = said.at_least(Severity.CRITICAL)
    assert found, "nobody was paged"
    first = found[0]
    assert (first.detector, first.signal) in expected.by, told(found)
    assert 0.0 <= first.updated_at - fault.at <= expected.seconds, told(found)
    assert 0 <= first.last_step - fault.step <= expected.steps, told(found)
    assert expected.onset[0] <= first.onset - fault.step <= expected.onset[1], told(found)


@pytest.mark.parametrize(("scenario", "seed"), RUNS)
def test_nobody_is_paged_before_the_fault(scenario: str, seed: int) -> None:
    said = watched(scenario, seed)
    fault = said.recording.head.fault
    assert fault is not None
    assert told([page for page in said.at_least(Severity.CRITICAL) if page.updated_at < fault.at]) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_run_pages_nobody_and_warns_of_nothing_but_of_speed_that_it_lost(seed: int) -> None:
    said = watched("healthy", seed)
    assert said.recording.head.steps == 100
    assert told(said.at_least(Severity.CRITICAL)) == []
    # Other programs took the machine from the run with seed 0, and its throughput did fall by half.
    warnings = [i for i in said.at_least(Severity.WARNING) if i.detector != "step_time" or seed != 0]
    assert told(warnings) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_weight_that_became_nan_pages_for_loss_and_gradient_in_its_step_and_is_certain_soon(seed: int) -> None:
    said = watched("nan", seed)
    fault = said.recording.head.fault
    assert fault is not None
    at_once = {(i.detector, i.signal) for i in said.at_least(Severity.CRITICAL) if i.last_step == fault.step}
    assert at_once >= names("non_finite/loss,grad_norm")
    assert max(i.confidence for i in said.unresolved if i.detector == "non_finite") == 1.0
