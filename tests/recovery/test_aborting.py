"""A person aborts a recovery: in which stage, what the supervisor is told, what is said of the run, what may follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from recovery_scene import RUN, Scene, alert_of, incident

from exporter.protocol import AttemptExited, AttemptStarted, CommandProgress, PushAnswer
from exporter.recovery.engine import WrongStage
from exporter.recovery.record import Recovery


def begun(scene: Scene, *states: str) -> Recovery:
    """A recovery whose command was handed out, with these reports of the supervisor."""
    recovery = scene.fail_with(incident())
    assert scene.engine.pending_command(RUN, scene.now) is not None
    return scene.report(recovery, *states, target=48)


def answer(scene: Scene, recovery: Recovery, state: str, *, running: bool | None) -> Recovery:
    """The supervisor's report; ``running`` None: of one that does not say it."""
    scene.now += 1
    progress = CommandProgress(time=0.0, command_id=recovery.id, state=state, running=running)  # type: ignore[arg-type]
    scene.engine.on_progress(RUN, progress, scene.now)
    return scene.recovery(recovery.id)


def test_a_plan_that_waits_for_approval_is_refused(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve")
    recovery = scene.engine.abort(scene.fail_with(incident()).id, "ada", scene.now)
    assert (recovery.stage, recovery.resolved_by, recovery.outcome) == ("refused", "ada", "ada refused it.")
    assert scene.engine.abort(recovery.id, "ada", scene.now) == recovery
    assert scene.kinds().count("refused") == 1


def test_a_command_that_nobody_was_handed_is_withdrawn_and_costs_no_budget(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(budget_per_day=1, cooldown_seconds=0.0)
    recovery = scene.engine.abort(scene.fail_with(incident()).id, "ada", scene.now)
    assert recovery.stage == "aborted"
    assert recovery.outcome == (
        "ada aborted it while it was commanded. "
        "The supervisor had not been told of it yet, so nothing was done to the run."
    )
    assert scene.engine.pending_command(RUN, scene.now) is None
    assert scene.engine.pending_abort(RUN) is None
    assert not scene.engine.state_of(RUN).failed
    assert scene.engine.spent_times(RUN) == ()
    scene.tick(100_000)
    assert not scene.recovery(recovery.id).abort_overdue


@pytest.mark.parametrize(
    ("states", "stage"),
    [
        ((), "commanded"),
        (("accepted",), "commanded"),
        (("accepted", "stopping"), "stopping"),
        (("accepted", "stopping", "stopped"), "starting"),
        (("accepted", "stopping", "stopped", "starting"), "starting"),
        (("accepted", "stopping", "stopped", "starting", "started"), "verifying"),
    ],
)
def test_in_every_stage_the_abort_is_handed_out_in_place_of_the_command_until_it_is_answered(
    scene: Scene, states: tuple[str, ...], stage: str
) -> None:
    recovery = begun(scene, *states)
    assert recovery.stage == stage
    recovery = scene.engine.abort(recovery.id, "ada", scene.now)
    assert (recovery.stage, recovery.aborted_in, recovery.aborted_by) == ("aborted", stage, "ada")
    for _ in range(2):  # whoever is killed
        scene.restart()
        assert scene.engine.pending_command(RUN, scene.now) is None
        abort = scene.engine.pending_abort(RUN)
        assert abort is not None
        assert (abort.id, abort.attempt, abort.action) == (recovery.id, 1, "rollback")
        assert abort.reason == "ada aborted it."
    answer(scene, recovery, "failed", running=True)
    assert scene.engine.pending_abort(RUN) is None
    assert not scene.engine.state_of(RUN).failed
    line = next(entry for entry in scene.engine.audit() if entry.kind == "aborted")
    assert "ada aborted it while it was" in line.summary


def test_after_verification_began_and_the_command_ended_there_is_nothing_to_tell(scene: Scene) -> None:
    recovery = begun(scene, "accepted", "starting")
    scene.start_attempt(2, 48)
    recovery = scene.engine.abort(scene.report(recovery, "started", "succeeded").id, "ada", scene.now)
    assert scene.engine.pending_abort(RUN) is None
    assert recovery.outcome == (
        "ada aborted it while it was verifying. Attempt 2 was started from step 48 and left running, not verified."
    )
    scene.steps(2, 49, 50, 51)
    scene.exit_attempt(2, 1)
    assert scene.recovery(recovery.id) == recovery, "it is not acted on any further"


def test_a_run_that_was_left_stopped_is_told_of_until_a_person_says_so_or_starts_it(scene: Scene) -> None:
    recovery = begun(scene, "accepted", "stopping", "stopped")
    recovery = scene.engine.abort(recovery.id, "ada", scene.now)
    assert scene.engine.state_of(RUN).failed, "the run is down from this moment on"
    recovery = answer(scene, recovery, "failed", running=False)
    assert recovery.outcome == (
        "ada aborted it while it was starting. The trainer is stopped, and a person has to start it."
    )
    scene.restart()
    assert scene.engine.state_of(RUN).failed
    scene.start_attempt(2, 40)
    recovery = scene.recovery(recovery.id)
    assert recovery.outcome.endswith("a person has to start it. Attempt 2 was started meanwhile.")
    assert not scene.engine.state_of(RUN).failed


def test_a_person_takes_note_that_it_is_stopped(scene: Scene) -> None:
    recovery = begun(scene, "accepted", "stopping", "stopped")
    scene.engine.abort(recovery.id, "ada", scene.now)
    scene.engine.acknowledge(recovery.id, "bob", scene.now)
    assert not scene.engine.state_of(RUN).failed
    answer(scene, recovery, "failed", running=False)
    assert not scene.engine.state_of(RUN).failed


def test_the_stop_that_had_begun_is_seen_to_its_end(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted", "stopping").id, "ada", scene.now)
    assert recovery.trainer_left == ""
    scene.exit_attempt(1, 143, expected=True)
    assert scene.recovery(recovery.id).trainer_left == "stopped"
    recovery = answer(scene, recovery, "stopped", running=False)
    assert scene.engine.pending_abort(RUN) is not None, "not the end of the command"
    recovery = answer(scene, recovery, "failed", running=False)
    assert (recovery.abort_answered, recovery.times.stopped is not None) == (True, True)


def test_a_supervisor_that_knows_no_aborts_goes_on_and_all_of_it_is_still_told(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    for state in ("stopping", "stopped", "starting"):
        recovery = answer(scene, recovery, state, running=None)
    assert (recovery.stage, recovery.trainer_left) == ("aborted", "stopped")
    scene.now += 1
    event = AttemptStarted(time=0.0, pid=1, resume_step=48, resume_path="/ckpt/global_step_48", command_id=recovery.id)
    scene.engine.on_attempt(RUN, event, 2, scene.now)
    recovery = answer(scene, recovery, "started", running=None)
    assert scene.engine.pending_abort(RUN) is not None
    recovery = answer(scene, recovery, "succeeded", running=None)
    assert scene.engine.pending_abort(RUN) is None
    assert (recovery.stage, recovery.new_attempt, recovery.trainer_left) == ("aborted", 2, "running")
    assert recovery.outcome == (
        "ada aborted it while it was commanded. Attempt 2 was started from step 48 and left running, not verified."
    )
    times = recovery.times
    assert None not in (times.stopping, times.stopped, times.starting, times.started, times.abort_answered)
    assert not scene.engine.state_of(RUN).failed


def test_what_the_script_said_after_an_abort_is_in_the_record_and_in_the_audit_log(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted", "stopping").id, "ada", scene.now)
    told = scene.report(recovery, "failed", detail="It was called off.", output=["step 4 of 5: stop the trainer"])
    assert told.output[-2:] == ("step 4 of 5: stop the trainer", "failed: It was called off.")
    assert "step 4 of 5" in str(scene.engine.audit()[0].data)


def test_such_a_supervisor_reads_an_answer_with_an_abort_in_it() -> None:
    """Its decoder has no such field."""

    class OldAnswer(msgspec.Struct):
        accepted_seq: int
        duplicate: bool = False

    sent = msgspec.msgpack.encode(PushAnswer(accepted_seq=3, abort=None))
    assert "abort" not in msgspec.msgpack.decode(sent)
    assert msgspec.msgpack.decode(sent, type=OldAnswer).accepted_seq == 3


def test_a_command_that_failed_for_an_old_supervisor_leaves_the_run_in_doubt(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    answer(scene, recovery, "failed", running=None)
    assert scene.engine.state_of(RUN).failed


def test_when_no_supervisor_answers_a_person_is_told_and_again_when_one_does(scene: Scene) -> None:
    scene.tick()
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    scene.tick(scene.policy.deadlines.command_seconds - 1)
    assert not scene.engine.state_of(RUN).failed
    scene.tick(3)
    recovery = scene.recovery(recovery.id)
    assert "has not answered (120 s have passed)" in recovery.outcome
    assert scene.engine.state_of(RUN).failed
    lines = len(scene.kinds())
    scene.tick(600)
    assert len(scene.kinds()) == lines, "said once"
    recovery = answer(scene, recovery, "failed", running=True)
    assert recovery.outcome.endswith("The trainer was left as it is: attempt 1 goes on.")
    assert not scene.engine.state_of(RUN).failed


def test_while_this_exporter_was_down_no_supervisor_could_answer(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    scene.now += 10_000
    scene.restart()
    scene.tick()
    assert not scene.recovery(recovery.id).abort_overdue


def test_twice_is_once_and_an_ended_recovery_is_not_aborted(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    assert scene.engine.abort(recovery.id, "bob", scene.now + 1) == recovery
    assert scene.kinds().count("aborted") == 1
    with pytest.raises(KeyError):
        scene.engine.abort("r0", "ada", scene.now)


def test_what_has_ended_cannot_be_aborted(scene: Scene) -> None:
    done = scene.carry_out(scene.fail_with(incident()))
    with pytest.raises(WrongStage, match="is succeeded; this is only possible while it is commanded or"):
        scene.engine.abort(done.id, "ada", scene.now)


def test_after_an_abort_the_attempt_is_a_persons_until_it_is_given_back(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(cooldown_seconds=60.0)
    recovery = begun(scene, "accepted")
    scene.engine.abort(recovery.id, "ada", scene.now)
    answer(scene, recovery, "failed", running=True)
    assert scene.alert(incident(), starts_at="2026-01-01T05:00:00Z").outcome == "attached", "the same incident"
    further = incident("non_finite", "grad_norm", onset=51, opened_at=scene.now)
    scene.open(further)
    scene.now += 10_000
    decision = scene.alert(further)
    assert decision.outcome == "pending"
    assert "attempt 1 is left to people" in decision.reason
    scene.tick(10_000)
    assert len(scene.engine.recoveries()) == 1
    scene.engine.acknowledge(recovery.id, "ada", scene.now)
    scene.tick()
    newest = scene.engine.recoveries()[0]
    assert (newest.stage, newest.id != recovery.id) == ("commanded", True)


def test_the_attempt_that_it_had_started_is_left_to_people_too_and_the_next_one_is_not(scene: Scene) -> None:
    recovery = begun(scene, "accepted", "starting")
    scene.start_attempt(2, 48)
    scene.engine.abort(scene.report(recovery, "started", "succeeded").id, "ada", scene.now)
    scene.now += 10_000
    relapse = incident(id="again", attempt=2)
    scene.facts = replace(scene.facts, incidents=(relapse,))
    assert scene.alert(relapse).outcome == "pending"
    third = incident(id="third", attempt=3)
    scene.start_attempt(3, 40)
    scene.facts = replace(scene.facts, incidents=(third,))
    assert scene.engine.on_alert(alert_of(third, starts_at="2026-01-02T00:00:00Z"), scene.facts, scene.now).outcome == (
        "planned"
    )


def test_an_exit_long_after_the_abort_says_nothing_of_it(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    recovery = answer(scene, recovery, "failed", running=True)
    scene.engine.on_attempt(RUN, AttemptExited(time=0.0, exit_code=1), 1, scene.now + 500)
    assert scene.recovery(recovery.id) == recovery


def test_the_outcome_is_counted(scene: Scene) -> None:
    recovery = scene.engine.abort(begun(scene, "accepted").id, "ada", scene.now)
    state = scene.engine.state_of(RUN)
    assert (state.outcomes, state.active, state.in_progress) == ({"aborted": 1}, None, False)
    assert scene.engine.spent_times(RUN) == (recovery.times.commanded,)


def test_each_line_of_an_abort_is_of_the_kind_of_what_happened(scene: Scene) -> None:
    recovery = begun(scene, "accepted", "stopping")
    scene.engine.abort(recovery.id, "ada", scene.now)
    scene.report(recovery, "stopped")
    answer(scene, recovery, "failed", running=False)
    scene.engine.acknowledge(recovery.id, "bob", scene.now)
    lines = [(it.kind, it.summary) for it in reversed(scene.engine.audit()) if it.recovery_id == recovery.id]
    lines = lines[[kind for kind, _ in lines].index("aborted") :]
    assert [kind for kind, _ in lines] == ["aborted", "abort_reported", "abort_reported", "acknowledged"]
    said = [sentence for _, sentence in lines]
    assert len(set(said)) == len(said), "no line says what the one before said"
    assert said[-2:] == ["The supervisor has answered the abort.", "bob acknowledged it."]


def test_that_nobody_answers_an_abort_is_a_line_of_its_own_kind(scene: Scene) -> None:
    recovery = begun(scene, "accepted")
    scene.engine.abort(recovery.id, "ada", scene.now)
    for _ in range(400):
        scene.now += 10
        scene.engine.tick({}, scene.now)
    assert scene.kinds().count("abort_overdue") == 1
