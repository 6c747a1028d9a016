"""From verdicts to incidents: opened, worse, acknowledged, mitigating, resolved, and the same after a replay."""

from __future__ import annotations

from typing import Any

import pytest
from exporter_scene import Scene, verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.detectors.base import Severity
from exporter.incidents import IncidentBook, Rules
from exporter.protocol import AttemptStarted, OpenPhase, PhaseReport
from exporter.service.admission import Refused


def book(**rules: Any) -> IncidentBook:
    return IncidentBook("r", Rules(**rules))


def say(
    it: IncidentBook, severity: Severity, step: int, score: float = 1.0, attempt: int = 1, **more: Any
) -> list[str]:
    said = verdict("surge", "loss", severity, step, score, **more)
    return [change.what for change in it.observe_step([said], attempt=attempt, at=float(step))]


def quiet(it: IncidentBook, step: int, attempt: int = 1) -> list[str]:
    return [change.what for change in it.observe_step([], attempt=attempt, at=float(step))]


def test_a_note_opens_nothing_and_is_remembered() -> None:
    it = book()
    assert say(it, Severity.INFO, 1) == []
    assert list(it) == []
    assert [note.step for note in it.notes] == [1]


def test_severity_only_escalates_and_the_worst_score_and_earliest_onset_stay() -> None:
    it = book()
    assert say(it, Severity.WARNING, 5, 3.0, onset=4) == ["opened"]
    assert say(it, Severity.CRITICAL, 6, 9.0, onset=3) == ["escalated"]
    assert say(it, Severity.WARNING, 7, 2.0, onset=6) == []
    (incident,) = it
    assert (incident.severity, incident.worst_score, incident.score) == (Severity.CRITICAL, 9.0, 2.0)
    assert (incident.onset, incident.first_step, incident.last_step, incident.count) == (3, 5, 7, 3)


def test_a_score_that_is_not_a_number_is_the_worst_there_is() -> None:
    it = book()
    say(it, Severity.CRITICAL, 1, float("nan"))
    say(it, Severity.CRITICAL, 2, 5.0)
    (incident,) = it
    assert incident.worst_score != incident.worst_score


def test_it_is_resolved_when_the_verdict_stays_away_for_ten_steps_in_a_row() -> None:
    it = book()
    say(it, Severity.WARNING, 1)
    for step in range(2, 11):
        assert quiet(it, step) == []
    say(it, Severity.WARNING, 11)
    outcomes = [quiet(it, step) for step in range(12, 22)]
    assert outcomes == [[]] * 9 + [["resolved"]]
    assert it.history[-1].resolution == "the finding stayed away for 10 steps"
    assert say(it, Severity.WARNING, 30) == ["opened"]
    (incident,) = it
    assert incident.id == "r:surge:loss:2"


def test_a_late_part_of_a_step_that_says_nothing_counts_as_no_quiet_step() -> None:
    it = book(resolve_after_steps=1)
    say(it, Severity.WARNING, 1)
    assert it.observe_step([], attempt=1, at=1.0, whole_step=False) == []
    assert quiet(it, 2) == ["resolved"]


def test_a_live_incident_is_resolved_when_the_condition_has_been_gone_for_a_while() -> None:
    it = book(resolve_after_seconds=30.0)
    stalled = [verdict("stalled", "gen", Severity.CRITICAL, 3, 90.0)]

    def look(verdicts: Any, at: float) -> list[str]:
        if not it.live_would_change(verdicts, attempt=1, at=at):
            return ["nothing"]
        return [change.what for change in it.observe_live(verdicts, attempt=1, at=at)]

    assert look([], 0.0) == ["nothing"]
    assert look(stalled, 1.0) == ["opened"]
    assert look(stalled, 2.0) == ["nothing"]
    assert look([], 3.0) == []
    assert look([], 20.0) == ["nothing"]
    assert look(stalled, 25.0) == []
    assert look([], 26.0) == []
    assert look([], 55.0) == ["nothing"]
    assert look([], 56.0) == ["resolved"]


def test_a_newer_attempt_that_shows_it_again_starts_the_estimates_afresh() -> None:
    it = book()
    say(it, Severity.CRITICAL, 40, 99.0, onset=38)
    it.mitigate([next(iter(it)).id], "rec-1")
    assert say(it, Severity.WARNING, 33, 4.0, attempt=2, onset=33) == ["reopened"]
    (incident,) = it
    assert (incident.state, incident.severity, incident.attempt) == ("opened", Severity.WARNING, 2)
    assert (incident.onset, incident.worst_score) == (33, 4.0)


def test_while_a_recovery_works_on_it_quiet_steps_do_not_resolve_it() -> None:
    it = book(resolve_after_steps=1)
    say(it, Severity.CRITICAL, 1)
    (incident,) = it
    assert [c.what for c in it.mitigate([incident.id], "rec-1")] == ["mitigating"]
    assert quiet(it, 2) == []
    assert [c.what for c in it.recovered([incident.id], "recovery rec-1 succeeded", 3.0)] == ["resolved"]
    assert list(it) == []


def test_a_recovery_that_failed_gives_its_incidents_back() -> None:
    it = book(resolve_after_steps=1)
    say(it, Severity.CRITICAL, 1)
    (incident,) = it
    it.mitigate([incident.id], "rec-1")
    assert [c.what for c in it.give_back([incident.id])] == ["reopened"]
    assert quiet(it, 2) == ["resolved"]


def test_acknowledging_is_done_once_and_names_the_person(scene: Scene) -> None:
    scene.step(1, grad=500.0)
    incident = scene.incidents()["scripted_step"]
    answers: list[Any] = []
    scene.core.acknowledge(incident.id, "ada", scene.now, answers.append)
    scene.core.acknowledge(incident.id, "bob", scene.now, answers.append)
    assert [answer.acknowledged_by for answer in answers] == ["ada", "ada"]
    assert (scene.incidents()["scripted_step"].state, scene.incidents()["scripted_step"].acknowledged_by) == (
        "acknowledged",
        "ada",
    )
    with pytest.raises(Refused, match="no incident nope"):
        scene.core.acknowledge("nope", "ada", scene.now, answers.append)


def test_a_hang_is_found_by_the_tick_and_the_incident_survives_a_restart(scene: Scene) -> None:
    scene.step(3)
    scene.push(phase=PhaseReport(step=4, open=[OpenPhase(name="gen", seconds=56.0)]))
    before = scene.journal.count()
    scene.tick(times=4)
    assert not scene.incidents()
    assert scene.journal.count() == before, "a look that finds nothing new is not written"
    scene.tick(times=5)
    assert scene.incidents()["scripted_live"].onset == 4
    assert scene.journal.count() == before + 1, "a look that says the same again is not written"
    seen = scene.incidents()
    scene.restart()
    assert scene.incidents() == seen


def test_a_new_attempt_ends_the_hang_and_the_incident_is_resolved_after_a_while(scene: Scene) -> None:
    scene.step(3)
    scene.push(phase=PhaseReport(step=4, open=[OpenPhase(name="gen", seconds=61.0)]))
    scene.tick()
    assert scene.incidents()
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=1, resume_step=2)])
    scene.tick(times=29)
    assert scene.incidents()
    scene.tick(times=3)
    assert not scene.incidents()


_events = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.sampled_from([1.0, 7.0, 50.0, 500.0, float("nan")])),
        st.tuples(st.just("gen"), st.sampled_from([1.0, 59.0, 80.0])),
        st.tuples(st.just("attempt"), st.just(0.0)),
        st.tuples(st.just("tick"), st.sampled_from([1.0, 5.0, 40.0])),
        st.tuples(st.just("ack"), st.just(0.0)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=25)
@given(events=_events)
def test_a_restart_at_the_end_of_any_history_finds_the_same_incidents(
    events: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    scene = Scene(tmp_path_factory.mktemp("history"))
    step, attempt = 0, 1
    for kind, value in [("step", 1.0), *events]:
        scene.now += 1
        if kind == "step":
            step += 1
            scene.step(step, attempt=attempt, sender=f"t{attempt}", grad=value)
        elif kind == "gen":
            report = PhaseReport(step=step, open=[OpenPhase(name="gen", seconds=value)])
            scene.push(attempt=attempt, sender=f"t{attempt}", phase=report)
        elif kind == "attempt":
            attempt, step = attempt + 1, max(0, step - 2)
            started = AttemptStarted(time=0.0, pid=1, resume_step=step)
            scene.push(sender="sup", role="supervisor", attempt=attempt, events=[started])
        elif kind == "tick":
            scene.tick(value)
        else:
            for incident in list(scene.run().book):
                scene.core.acknowledge(incident.id, "ada", scene.now, lambda _: None)

    def state() -> Any:
        run = scene.run()
        return (
            repr(sorted(scene.incidents().items())),
            repr(list(run.book.history)),
            (run.state.attempt, run.state.current, run.state.steps_total, run.state.late_steps, run.state.running),
            repr(run.state.signals),
            run.state.open_phases(scene.now),
        )

    before = state()
    scene.restart()
    assert state() == before
    scene.close()


def test_a_clock_that_was_set_back_keeps_no_live_incident_open() -> None:
    it = book(resolve_after_seconds=30.0)
    it.observe_live([verdict("hang", "gen", Severity.CRITICAL, 1, 9.0)], attempt=1, at=10_000.0)
    it.observe_live([], attempt=1, at=10_001.0)
    assert it.live_would_change([], attempt=1, at=5_000.0)
    it.observe_live([], attempt=1, at=5_000.0)
    assert it.live_would_change([], attempt=1, at=5_031.0)
    assert [change.what for change in it.observe_live([], attempt=1, at=5_031.0)] == ["resolved"]
