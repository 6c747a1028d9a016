"""A stage lasted too long and the recovery was given up, but the supervisor was only slow: what it does after all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from recovery_scene import RUN, Scene, incident

from exporter.protocol import AttemptStarted
from exporter.recovery.engine import WrongStage
from exporter.recovery.record import Recovery


def given_up(scene: Scene, *states: str) -> Recovery:
    """A recovery whose command was handed out; the supervisor reports these, and then nothing for too long."""
    scene.tick()
    recovery = scene.fail_with(incident())
    assert scene.engine.pending_command(RUN, scene.now) is not None
    scene.report(recovery, *states)
    scene.tick(scene.policy.deadlines.prepare_seconds + 3)
    recovery = scene.recovery(recovery.id)
    assert (recovery.stage, recovery.failed_by) == ("failed", "overdue")
    return recovery


def start(scene: Scene, number: int, command_id: str) -> None:
    scene.now += 1
    event = AttemptStarted(time=0.0, pid=1, resume_step=48, resume_path="/ckpt/global_step_48", command_id=command_id)
    scene.engine.on_attempt(RUN, event, number, scene.now, scene.known)
    scene.facts = replace(scene.facts, attempt=number, step=48, incidents=())


def lines_of(scene: Scene, recovery: Recovery) -> list[tuple[str, str]]:
    return [(it.kind, it.summary) for it in reversed(scene.engine.audit()) if it.recovery_id == recovery.id]


@pytest.mark.parametrize("states", [(), ("accepted",), ("accepted", "stopping")])
def test_what_the_supervisor_does_after_all_is_in_the_record_and_in_the_audit_log(
    scene: Scene, states: tuple[str, ...]
) -> None:
    recovery = given_up(scene, *states)
    before, outcome = len(lines_of(scene, recovery)), recovery.outcome
    scene.report(recovery, "stopping", "stopped", "starting", target=48)
    start(scene, 2, recovery.id)
    late = scene.report(recovery, "started", "succeeded", target=48, output=["step 5 of 5"])
    assert (late.stage, late.new_attempt, late.target_step, late.command_closed) == ("failed", 2, 48, True)
    assert late.outcome == f"{outcome} Attempt 2 was started for it from step 48 all the same, and is not verified."
    assert None not in (late.times.stopping, late.times.stopped, late.times.starting, late.times.started)
    assert "step 5 of 5" in late.output
    new = lines_of(scene, recovery)[before:]
    assert {kind for kind, _ in new} == {"late_report"}
    assert [said for _, said in new][-3:] == [
        late.outcome, "The supervisor says that the new attempt runs.", "The supervisor has carried out the command.",
    ]  # fmt: skip
    assert scene.engine.state_of(RUN).failed, "nobody has verified it, and a person was told"


def test_it_is_told_once(scene: Scene) -> None:
    recovery = given_up(scene, "accepted")
    for _ in range(2):
        scene.report(recovery, "stopping", "stopped", target=48)
        start(scene, 2, recovery.id)
        scene.restart()
    assert [kind for kind, _ in lines_of(scene, recovery)].count("late_report") == 3


def test_the_attempt_that_it_starts_is_no_start_by_hand_and_a_failure_in_it_goes_on_with_the_episode(
    scene: Scene,
) -> None:
    recovery = given_up(scene, "accepted")
    scene.report(recovery, "stopping", "stopped", "starting", target=48)
    start(scene, 2, recovery.id)
    scene.now += 10_000
    again = incident(attempt=2, id="again")
    scene.open(again)
    assert scene.alert(again, starts_at="2026-01-02T00:00:00Z").outcome == "planned"
    assert scene.engine.recoveries()[0].episode == recovery.id


def test_an_attempt_that_a_person_starts_is_none_of_its(scene: Scene) -> None:
    recovery = given_up(scene, "accepted")
    start(scene, 2, "")
    assert scene.recovery(recovery.id) == recovery


def test_that_the_supervisor_could_not_carry_it_out_is_told(scene: Scene) -> None:
    recovery = given_up(scene, "accepted")
    late = scene.report(recovery, "failed", detail="the environment cannot be built", code=6)
    assert late.outcome.endswith("The supervisor could not carry out the command: the environment cannot be built")
    assert (late.stage, late.failure_code, late.failed_by) == ("failed", 6, "overdue")


def test_a_person_who_was_told_can_abort_it_as_long_as_the_supervisor_may_go_on(scene: Scene) -> None:
    recovery = given_up(scene, "accepted")
    scene.engine.acknowledge(recovery.id, "bob", scene.now)
    assert scene.engine.pending_abort(RUN) is None
    aborted = scene.engine.abort(recovery.id, "ada", scene.now)
    assert (aborted.stage, aborted.acknowledged_by, aborted.times.finished) == ("aborted", "", recovery.times.finished)
    assert aborted.outcome == "ada aborted it after it had failed. The supervisor has not answered yet."
    assert lines_of(scene, recovery)[-1] == ("aborted", aborted.outcome)
    scene.restart()
    abort = scene.engine.pending_abort(RUN)
    assert abort is not None
    assert abort.id == recovery.id
    scene.report(recovery, "failed", detail="ada aborted it. Attempt 1 goes on.")
    assert scene.engine.pending_abort(RUN) is None


def test_what_has_ended_for_the_supervisor_too_is_not_aborted(scene: Scene) -> None:
    recovery = given_up(scene, "accepted")
    scene.report(recovery, "failed", detail="the disk is full")
    with pytest.raises(WrongStage, match="is failed; this is only possible while it is commanded"):
        scene.engine.abort(recovery.id, "ada", scene.now)


def test_a_stop_that_was_given_up_and_comes_after_all_is_told(scene: Scene) -> None:
    scene.facts = replace(scene.facts, checkpoints=())
    recovery = given_up(scene, "accepted", "stopping")
    assert recovery.action == "stop"
    late = scene.report(recovery, "stopped", "succeeded")
    assert late.outcome == "The trainer has not stopped within 600 s. The run was stopped all the same."
