"""The loop inside the exporter: alert, command, progress, healthy steps, incidents; and a kill anywhere between."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_scene import Scene

from exporter.protocol import AttemptExited, AttemptStarted, CheckpointSaved, CommandProgress, OpenPhase, PhaseReport
from exporter.recovery.facts import Alert
from exporter.recovery.policy import RecoveryPolicy, Trigger

POLICY = RecoveryPolicy(mode="auto", success_steps=2, triggers=(Trigger(detectors=("scripted_step", "scripted_live")),))


@pytest.fixture
def auto(tmp_path: Path) -> Any:
    scene = Scene(tmp_path, policy=POLICY)
    yield scene
    scene.close()


def alert(incident: Any) -> Alert:
    labels = {"run": incident.run_id, "detector": incident.detector, "signal": incident.signal, "action": "rollback"}
    return Alert(fingerprint="f1", starts_at="2026-01-01T00:00:00Z", status="firing", labels=labels)


def supervisor(scene: Scene, attempt: int, *events: Any) -> Any:
    return scene.push(sender="sup", role="supervisor", attempt=attempt, events=list(events)).command


def fail(scene: Scene) -> Any:
    """A run with a checkpoint at step 2 that breaks at step 4; the incident."""
    supervisor(scene, 1, AttemptStarted(time=0.0, pid=1))
    for step in (1, 2, 3):
        scene.step(step)
    scene.push(events=[CheckpointSaved(time=0.0, step=2, path="/c/global_step_2", verified=True)])
    scene.step(4, grad=500.0)
    return scene.incidents()["scripted_step"]


def progress(command: Any, state: Any) -> CommandProgress:
    return CommandProgress(time=0.0, command_id=command.id, state=state, target_step=2, target_path="/c/global_step_2")


def carry_out(scene: Scene, command: Any) -> None:
    for state in ("accepted", "stopping", "stopped", "starting"):
        supervisor(scene, 1, progress(command, state))
    supervisor(scene, 1, AttemptExited(time=0.0, exit_code=0, expected=True))
    started = AttemptStarted(time=0.0, pid=2, resume_step=2, command_id=command.id)
    supervisor(scene, 2, started, progress(command, "started"))
    supervisor(scene, 2, progress(command, "succeeded"))


def test_an_alert_becomes_a_command_to_the_supervisor_only_and_healthy_steps_end_it(auto: Scene) -> None:
    incident = fail(auto)
    decision = auto.core.alert(alert(incident), auto.now)
    assert decision.outcome == "planned"
    assert auto.push().command is None, "a trainer gets no command"
    command = supervisor(auto, 1)
    assert (command.action, command.target_step, command.attempt) == ("rollback", 2, 1)
    auto.tick()
    assert auto.incidents()["scripted_step"].state == "mitigating"
    carry_out(auto, command)
    auto.step(3, attempt=2, sender="trainer-2")
    assert auto.incidents()["scripted_step"].state == "mitigating"
    auto.step(4, attempt=2, sender="trainer-2")
    auto.tick()
    assert not auto.incidents()
    assert auto.run().book.history[-1].resolution == f"recovery {command.id} succeeded"
    assert auto.engine.state_of("r").outcomes == {"succeeded": 1}
    assert supervisor(auto, 2) is None


@pytest.mark.parametrize("restart", [False, True])
def test_steps_that_no_detector_minds_but_far_from_all_that_the_run_was_are_no_success(
    auto: Scene, restart: bool
) -> None:
    """Detectors have just begun to warm up; a norm that is 70 times what it ever was is no healthy step."""
    supervisor(auto, 1, AttemptStarted(time=0.0, pid=1))
    for step in range(1, 15):
        auto.step(step)
    auto.push(events=[CheckpointSaved(time=0.0, step=2, path="/c/global_step_2", verified=True)])
    auto.step(15, grad=500.0)
    auto.core.alert(alert(auto.incidents()["scripted_step"]), auto.now)
    command = supervisor(auto, 1)
    carry_out(auto, command)
    if restart:
        auto.restart()
    auto.step(3, grad=70.0, attempt=2, sender="trainer-2")
    auto.step(4, grad=15.0, attempt=2, sender="trainer-2")
    auto.step(5, grad=70.0, attempt=2, sender="trainer-2")
    recovery = auto.engine.get(command.id)
    assert recovery is not None
    assert recovery.stage == "failed"
    said = "2 steps of attempt 2 were not healthy, the last is step 5: grad_norm is 70, and was at most 1 before."
    assert recovery.outcome == said


def test_a_restart_anywhere_on_the_way_leads_to_the_same_end(auto: Scene) -> None:
    incident = fail(auto)
    auto.restart()
    auto.core.alert(alert(incident), auto.now)
    auto.restart()
    assert auto.core.alert(alert(incident), auto.now).outcome == "duplicate"
    command = supervisor(auto, 1)
    auto.restart()
    auto.tick()
    carry_out(auto, command)
    auto.restart()
    assert auto.incidents()["scripted_step"].state == "mitigating"
    auto.step(3, attempt=2, sender="trainer-2")
    auto.restart()
    auto.step(4, attempt=2, sender="trainer-2")
    auto.restart()
    auto.tick()
    assert not auto.incidents()
    (recovery,) = auto.engine.recoveries()
    assert (recovery.stage, recovery.target_step, recovery.healthy_steps) == ("succeeded", 2, 2)


def test_what_the_engine_was_not_told_before_a_kill_is_told_at_the_next_start(auto: Scene) -> None:
    incident = fail(auto)
    auto.core.alert(alert(incident), auto.now)
    command = supervisor(auto, 1)
    told = auto.engine.on_progress
    auto.engine.on_progress = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):  # the process dies after the journal and before the engine
        supervisor(auto, 1, progress(command, "accepted"))
    auto.engine.on_progress = told  # type: ignore[method-assign]
    auto.restart()
    assert auto.engine.get(command.id).progress == "accepted"  # type: ignore[union-attr]


def test_while_its_store_is_locked_ingest_goes_on_and_the_engine_hears_it_all_later_in_order(auto: Scene) -> None:
    incident = fail(auto)
    auto.core.alert(alert(incident), auto.now)
    command = supervisor(auto, 1)
    told, heard = auto.engine.on_progress, []

    def locked(*_: Any) -> None:
        raise sqlite3.OperationalError("database is locked")

    auto.engine.on_progress = locked  # type: ignore[method-assign]
    supervisor(auto, 1, progress(command, "accepted"))
    supervisor(auto, 1, progress(command, "stopping"))
    auto.tick()
    assert auto.core.reasons_not_ready() == ["The recovery store cannot be used: database is locked."]
    auto.engine.on_progress = lambda *report: (heard.append(report[1].state), told(*report))  # type: ignore[method-assign,func-returns-value]
    auto.tick()
    assert heard == ["accepted", "stopping"]
    assert auto.core.reasons_not_ready() == []
    assert auto.engine.get(command.id).stage == "stopping"  # type: ignore[union-attr]


def test_a_failed_recovery_gives_its_incidents_back(auto: Scene) -> None:
    incident = fail(auto)
    auto.core.alert(alert(incident), auto.now)
    command = supervisor(auto, 1)
    auto.tick()
    supervisor(auto, 1, progress(command, "failed"))
    auto.tick()
    assert auto.incidents()["scripted_step"].state == "opened"
    assert auto.engine.state_of("r").failed


def test_a_run_whose_recovery_failed_stays_in_sight_until_a_person_took_note(auto: Scene) -> None:
    incident = fail(auto)
    auto.core.alert(alert(incident), auto.now)
    command = supervisor(auto, 1)
    supervisor(auto, 1, AttemptExited(time=0.0, exit_code=0, expected=True), progress(command, "failed"))
    auto.tick()
    auto.core.acknowledge(incident.id, "ada", auto.now, lambda _: None)
    auto.tick(5000.0)
    assert auto.core.shown(auto.run(), auto.now)
    auto.restart()
    auto.tick()
    assert auto.core.shown(auto.run(), auto.now)
    auto.engine.acknowledge(command.id, "ada", auto.now)
    auto.tick()
    assert not auto.core.shown(auto.run(), auto.now)


def test_in_observe_mode_nothing_is_commanded(scene: Scene) -> None:
    incident = fail(scene)
    scene.core.alert(alert(incident), scene.now)
    scene.tick(times=3)
    assert supervisor(scene, 1) is None
    assert scene.incidents()["scripted_step"].state == "opened"


def test_in_direct_mode_the_incident_itself_triggers(tmp_path: Path) -> None:
    policy = RecoveryPolicy(mode="auto", trigger="direct", triggers=POLICY.triggers)
    scene = Scene(tmp_path, policy=policy)
    fail(scene)
    assert supervisor(scene, 1).target_step == 2
    scene.close()


def test_an_alert_for_a_run_that_is_not_known_is_answered_not_lost(auto: Scene) -> None:
    incident = fail(auto)
    stranger = alert(incident)
    labels = {**stranger.labels, "run": "nobody"}
    decision = auto.core.alert(Alert("f2", "2026-01-01T00:00:00Z", "firing", labels), auto.now)
    assert decision.outcome == "refused"
    assert "not known" in decision.reason


def test_an_incident_is_resolved_by_its_own_recovery_also_when_the_next_one_began_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, policy=msgspec.structs.replace(POLICY, trigger="direct", cooldown_seconds=0.0))
    fail(scene)
    command = supervisor(scene, 1)
    scene.tick()
    carry_out(scene, command)
    scene.step(3, attempt=2, sender="trainer-2")
    scene.step(4, attempt=2, sender="trainer-2")
    first = scene.incidents()["scripted_step"]
    assert (first.state, scene.engine.get(command.id).stage) == ("mitigating", "succeeded")  # type: ignore[union-attr]
    scene.now += 100.0
    phase = PhaseReport(step=5, open=[OpenPhase(name="gen", seconds=90.0)])
    scene.push(attempt=2, sender="trainer-2", phase=phase)
    scene.core._look(scene.run(), scene.now)  # the next fault is found before the incidents are brought in line
    second = supervisor(scene, 2)
    assert second.id != command.id
    supervisor(scene, 2, progress(second, "failed"))
    scene.tick()
    scene.tick()
    assert "scripted_step" not in scene.incidents()
    assert scene.run().book.history[-1].resolution == f"recovery {command.id} succeeded"
    scene.close()


def test_an_abort_is_told_to_the_supervisor_only_and_gives_the_incidents_back(auto: Scene) -> None:
    incident = fail(auto)
    auto.core.alert(alert(incident), auto.now)
    command = supervisor(auto, 1)
    supervisor(auto, 1, progress(command, "accepted"))
    auto.tick()
    assert auto.incidents()["scripted_step"].state == "mitigating"
    auto.engine.abort(command.id, "ada", auto.now)
    for _ in range(2):
        assert auto.push().abort is None, "a trainer is told nothing"
        answer = auto.push(sender="sup", role="supervisor", attempt=1)
        assert (answer.command, answer.abort.id) == (None, command.id)
        auto.restart()
    auto.tick()
    assert auto.incidents()["scripted_step"].state == "opened"
    ended = CommandProgress(time=0.0, command_id=command.id, state="failed", running=True)
    answer = auto.push(sender="sup", role="supervisor", attempt=1, events=[ended])
    assert (answer.command, answer.abort) == (None, None)
    assert auto.engine.get(command.id).trainer_left == "running"  # type: ignore[union-attr]


def test_who_acknowledges_an_incident_is_in_the_audit_log_once(auto: Scene) -> None:
    incident = fail(auto)
    for who in ("ada", "bob"):
        auto.core.acknowledge(incident.id, who, auto.now, lambda _: None)
        auto.now += 1
    auto.restart()
    lines = [line for line in auto.engine.audit() if line.kind == "acknowledged"]
    assert [(line.run_id, line.data) for line in lines] == [("r", {"who": "ada", "incident": incident.id})]


@pytest.mark.parametrize("resumed", [2, None], ids=["said by the supervisor", "chosen by verl"])
def test_an_attempt_that_dies_before_its_first_step_leaves_the_checkpoint_that_it_began_from(
    auto: Scene, resumed: int | None
) -> None:
    """It failed at step 2, not at step 0: before that there would be nothing to go back to."""
    fail(auto)
    started = AttemptStarted(time=0.0, pid=2, resume_step=resumed)
    supervisor(auto, 2, started)
    assert auto.run().state.view(auto.now).step == 2
    supervisor(auto, 2, AttemptExited(time=0.0, exit_code=1))
    assert auto.run().state.view(auto.now).step == 2
