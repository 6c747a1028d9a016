"""Which incidents belong together, what came first, and what is said of them; for any course of findings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_scene import verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.agreement import WINDOW_SECONDS, WINDOW_STEPS, Group, Situation, grouped, situations
from exporter.coupling import hang_together, place, spoils_weights, witnesses
from exporter.detectors.base import Severity, Verdict
from exporter.detectors.registry import build_detectors
from exporter.incidents import BookState, Incident, IncidentBook, Rules
from exporter.replay.past_run import PastRun
from exporter.replay.recognised import READERS
from exporter.replay.rows import Row
from exporter.signals import SIGNALS

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING
DATA = Path(__file__).resolve().parents[1] / "detectors" / "data"


def book() -> IncidentBook:
    return IncidentBook("r", Rules(resolve_after_steps=3))


def found(
    name: str, step: int, onset: int | None = None, severity: Severity = CRITICAL, sure: float = 0.6, **more: Any
) -> Verdict:
    """A finding of ``detector/signal``."""
    detector, signal = name.split("/")
    onset = step if onset is None else onset
    return verdict(detector, signal, severity, step, 9.0, onset=onset, confidence=sure, **more)


def say(it: IncidentBook, *said: Verdict, attempt: int = 1, at: float | None = None) -> None:
    it.observe_step(said, attempt=attempt, at=float(said[0].step) if at is None else at)


def look(it: IncidentBook, *said: Verdict, at: float) -> None:
    it.observe_live(said, attempt=1, at=at)


def quiet(it: IncidentBook, *steps: int) -> None:
    for step in steps:
        it.observe_step((), attempt=1, at=float(step))


def groups(it: IncidentBook) -> list[Group]:
    return grouped((*it, *it.history))


def names(it: IncidentBook) -> list[list[str]]:
    """Detector and signal of the members of each situation."""
    return [[f"{i.detector}/{i.signal}" for i in group.incidents] for group in groups(it)]


def the_only(it: IncidentBook) -> Situation:
    (one,) = situations((*it, *it.history))
    return one


def test_findings_of_one_fault_are_one_situation_with_what_came_first_first() -> None:
    it = book()
    say(it, found("surge/kl", 816, 814))
    say(it, found("surge/kl", 817, 814), found("surge/grad_norm", 817, 812, summary="grad_norm is 35."))
    say(it, found("entropy/entropy", 830, 816), found("gradient_instability/grad_norm", 830, 812))
    one = the_only(it)
    assert [f"{i.detector}/{i.signal}" for i in one.findings] == [
        "surge/grad_norm", "gradient_instability/grad_norm", "surge/kl", "entropy/entropy",
    ]  # fmt: skip
    assert (one.onset, one.witnesses, one.severity, one.name) == (812, 3, CRITICAL, "surge/kl")
    assert one.headline == (
        "critical since step 812: grad_norm is 35 (surge); then kl (814), entropy (816); "
        "4 findings on 3 signals, confidence 0.93"
    )


def test_a_page_is_not_named_by_a_finding_that_was_over_when_it_became_critical() -> None:
    it = book()
    say(it, found("surge/kl", 100, severity=WARNING))
    quiet(it, 101, 102, 103, 104)
    say(it, found("non_finite/loss", 110))
    (group,) = groups(it)
    assert [i.state for i in group.incidents] == ["resolved", "opened"]
    assert group.name == "non_finite/loss"
    say(it, found("non_finite/loss", 111), found("surge/grad_norm", 111))
    assert groups(it)[0].name == "non_finite/loss", "it keeps the name while the situation grows"


def test_a_page_keeps_the_name_of_the_warning_with_which_it_began_when_that_ends_later() -> None:
    it = book()
    say(it, found("surge/kl", 100, severity=WARNING))
    say(it, found("non_finite/loss", 101))
    assert groups(it)[0].name == "surge/kl"
    for step in range(102, 107):
        say(it, found("non_finite/loss", step))
    (group,) = groups(it)
    assert [i.state for i in group.incidents] == ["resolved", "opened"]
    assert group.name == "surge/kl"


def test_a_single_finding_is_a_situation_of_its_own() -> None:
    it = book()
    say(it, found("surge/loss", 7, 6, WARNING, summary="the loss is 9"))
    assert the_only(it).headline == "warning since step 6: the loss is 9 (surge); confidence 0.60"


@pytest.mark.parametrize(
    ("other", "step", "onset", "together"),
    [
        ("surge/kl", 100 + WINDOW_STEPS, None, True),
        ("surge/kl", 100 + WINDOW_STEPS + 1, None, False),
        ("surge/kl", 400, 105, True),
        ("memory/gpu_memory", 101, None, False),
        ("step_time/step_time", 101, None, False),
        ("learning_rate/lr", 120, 99, True),
        ("response_length/response_length", 120, None, True),
    ],
)
def test_what_is_far_away_or_of_another_kind_is_another_situation(
    other: str, step: int, onset: int | None, together: bool
) -> None:
    it = book()
    say(it, found("surge/grad_norm", 100))
    say(it, found(other, step, onset))
    assert len(groups(it)) == (1 if together else 2)


@pytest.mark.parametrize(
    ("name", "step", "seconds", "together"),
    [
        ("silent_run/heartbeat", 41, 10 * WINDOW_SECONDS, True),
        ("rollout_failures/rollout_requests", 60, WINDOW_SECONDS, True),
        ("rollout_failures/rollout_requests", 60, WINDOW_SECONDS + 1, False),
    ],
)
def test_findings_on_the_moment_belong_together_by_seconds_or_while_no_step_ends(
    name: str, step: int, seconds: float, together: bool
) -> None:
    it = book()
    look(it, found("stalled_phase/gen", 41), at=1000.0)
    look(it, found("stalled_phase/gen", 41), found(name, step), at=1000.0 + seconds)
    assert len(groups(it)) == (1 if together else 2)


def test_a_run_that_ends_of_something_ends_in_its_situation() -> None:
    it = book()
    say(it, found("non_finite/loss", 40), at=900.0)
    look(it, found("trainer_exited/process", 41), at=1000.0)
    assert names(it) == [["non_finite/loss", "trainer_exited/process"]]


def test_findings_of_two_attempts_are_two_situations_and_steps_count_from_the_newer_one() -> None:
    it = book()
    say(it, found("surge/grad_norm", 100), found("surge/kl", 100))
    say(it, found("surge/grad_norm", 80, 79), attempt=2, at=200.0)
    assert names(it) == [["surge/kl"], ["surge/grad_norm"]]
    say(it, found("surge/entropy", 120, 118), attempt=2, at=240.0)
    assert names(it) == [["surge/kl"], ["surge/grad_norm", "surge/entropy"]]


def test_onset_then_step_then_cause_decide_what_came_first() -> None:
    it = book()
    say(
        it, found("surge/reward", 50), found("kl/kl", 50), found("surge/grad_norm", 50), found("non_finite/entropy", 50)
    )
    assert [i.signal for i in the_only(it).findings] == ["entropy", "grad_norm", "kl", "reward"]


def test_an_onset_of_a_finding_that_is_hardly_sure_does_not_lead() -> None:
    it = book()
    say(it, found("reward/reward", 120, 60, WARNING, 0.2), found("surge/kl", 120, 118, sure=0.9))
    one = the_only(it)
    assert (one.onset, [i.signal for i in one.findings]) == (118, ["kl", "reward"])


def test_a_learning_rate_that_is_off_is_the_cause_of_what_follows() -> None:
    it = book()
    rate = found(
        "learning_rate/lr", 30, 26, meaning="The rate is not the one configured.", advice=("optim.lr: compare",)
    )
    say(
        it,
        found("surge/kl", 28, 25, meaning="The policy runs away.", advice=("optim.lr: lower it", "kl_coef: raise it")),
    )
    say(it, rate)
    one = the_only(it)
    assert (one.cause, one.advice) == (
        "The rate is not the one configured.",
        ("optim.lr: compare", "kl_coef: raise it"),
    )


def test_a_situation_becomes_less_severe_when_what_was_worse_is_over_and_is_over_with_its_last_finding() -> None:
    it = book()
    say(it, found("surge/kl", 10, severity=WARNING))
    assert the_only(it).severity is WARNING
    say(it, found("surge/kl", 11, severity=WARNING), found("surge/grad_norm", 11))
    assert the_only(it).severity is CRITICAL
    for step in (12, 13, 14):
        say(it, found("surge/kl", step, severity=WARNING))
    assert (the_only(it).severity, the_only(it).state) == (WARNING, "opened")
    quiet(it, 15, 16, 17)
    one = the_only(it)
    assert (one.severity, one.state, one.resolved_at) == (CRITICAL, "resolved", 17.0)


def test_a_finding_that_comes_back_while_its_situation_lasts_belongs_to_it_however_late() -> None:
    it = book()
    say(it, found("surge/grad_norm", 10), found("surge/kl", 10))
    for step in range(11, 200):
        say(it, found("surge/kl", step, 10))
    say(it, found("surge/grad_norm", 200), found("surge/kl", 200, 10))
    assert names(it) == [["surge/grad_norm", "surge/kl", "surge/grad_norm"]]


def test_it_is_acknowledged_when_every_open_finding_is() -> None:
    it = book()
    say(it, found("surge/grad_norm", 10), found("surge/kl", 10))
    first, second = (incident.id for incident in it)
    it.acknowledge(first, "ada", 11.0)
    assert the_only(it).state == "opened"
    it.acknowledge(second, "ada", 11.0)
    assert the_only(it).state == "acknowledged"
    it.mitigate([first], "r1")
    assert the_only(it).state == "mitigating"


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ((), 0),
        (("surge/grad_norm", "gradient_instability/grad_norm"), 1),
        (("surge/kl", "surge/ppo_kl", "rollout_mismatch/rollout_kl"), 1),
        (("surge/loss", "surge/pg_loss"), 1),
        (("step_time/step_time", "step_time/throughput"), 1),
        (("surge/kl", "surge/grad_norm"), 2),
        (("surge/kl", "learning_rate/lr", "entropy/entropy"), 3),
        (("surge/kl", "memory/gpu_memory"), 1),
        (("surge/kl", "memory/gpu_memory", "trainer_exited/process"), 3),
    ],
)
def test_witnesses_are_distinct_signals_that_may_come_of_one_fault(said: tuple[str, ...], count: int) -> None:
    assert witnesses([found(name, 1) for name in said]) == count


def test_every_canonical_signal_has_its_place() -> None:
    assert [name for name in SIGNALS if place("surge", name).kind == "other"] == []


def test_what_hangs_together_does_so_both_ways() -> None:
    kinds = {place("surge", name).kind for name in SIGNALS}
    assert all(hang_together(one, other) == hang_together(other, one) for one in kinds for other in kinds)


def test_the_weights_of_a_slow_or_full_run_are_sound_and_those_of_an_unknown_finding_are_not() -> None:
    sound = ("memory/gpu_memory", "step_time/step_time", "stalled_phase/gen", "stragglers/node-3", "gpu_idle/0")
    assert [name for name in sound if spoils_weights(found(name, 1))] == []
    assert [name for name in ("surge/kl", "learning_rate/lr", "x/y") if not spoils_weights(found(name, 1))] == []


def test_incidents_of_an_older_snapshot_which_knows_less_are_grouped_as_well() -> None:
    it = book()
    say(it, found("surge/grad_norm", 10), found("surge/kl", 12))
    less = [msgspec.structs.replace(incident, began_at=None, first_onset=None, order=0) for incident in it]
    assert [len(group.incidents) for group in grouped(less)] == [2]


COURSE = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.lists(
            st.tuples(
                st.sampled_from(("surge/kl", "surge/grad_norm", "memory/gpu_memory", "step_time/step_time", "x/y")),
                st.integers(0, 60),
                st.sampled_from((WARNING, CRITICAL)),
                st.sampled_from((0.0, 0.3, 1.0)),
            ),
            max_size=4,
        ),
        st.sampled_from(("step", "step", "step", "live", "attempt")),
    ),
    min_size=1,
    max_size=25,
)


def identity(incident: Incident) -> tuple[str, int]:
    return incident.id, incident.attempt


@settings(max_examples=200, deadline=None)
@given(COURSE, st.randoms(use_true_random=False))
def test_a_later_finding_never_tears_a_situation_apart_joins_two_or_renames_one(
    course: list[tuple[int, list[tuple[str, int, Severity, float]], str]], shuffle: random.Random
) -> None:
    it, step, attempt = book(), 1, 1
    before: dict[tuple[str, int], tuple[str, int]] = {}
    for gap, said, kind in course:
        step, attempt = (step + gap, attempt) if kind != "attempt" else (max(1, step - 20), attempt + 1)
        one_each = {name: found(name, step, max(0, step - back), how, sure) for name, back, how, sure in said}
        observe = it.observe_live if kind == "live" else it.observe_step
        observe(list(one_each.values()), attempt=attempt, at=1000.0 * attempt + step)
        incidents = [*it, *it.history]
        shuffle.shuffle(incidents)
        there = grouped(incidents)
        now = {identity(i): identity(group.incidents[0]) for group in there for i in group.incidents}
        assert len(now) == len(incidents)
        for one, leader in before.items():
            # Of an attempt that is over, a finding that comes again in the next one leaves.
            if one in now and leader in now and one[1] == max(of for _, of in now):
                assert now[one] == leader
        lasting = [(group.incidents[0].attempt, group.name) for group in there if group.open]
        assert len(lasting) == len(set(lasting))
        again = IncidentBook("r", Rules())
        state = it.state()
        again.load(BookState(**{name: getattr(state, name) for name in state.__struct_fields__}))
        assert situations((*again, *again.history)) == situations(incidents)
        assert all(0.0 <= s.confidence <= 1.0 and s.headline and s.findings for s in situations(incidents))
        before = now


def test_a_recorded_run_whose_learning_rate_broke_is_one_page_and_two_witnesses_at_least() -> None:
    """The stock trainer on the toy, its rate multiplied at step 26."""
    run = PastRun(build_detectors, Rules())
    pages: set[tuple[str, str]] = set()
    single: set[str] = set()
    for row in READERS["jsonl"](DATA / "toy_learning_rate.jsonl.gz"):
        assert isinstance(row, Row)
        run.take(row)
        for group in run._watched.groups():
            single |= {incident.id for incident in group.open if incident.severity is CRITICAL}
            if group.open and group.severity is CRITICAL:
                pages.add((group.incidents[0].id, group.name))
    assert len(single) >= 3
    assert len(pages) == 1
    (one,) = situations(i for group in run._watched.groups() for i in group.incidents)
    assert one.witnesses >= 2
    assert one.findings[0].signal in ("kl", "ppo_kl", "grad_norm")
    assert 24 <= one.onset <= 27
