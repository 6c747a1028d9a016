"""Stages of a recovery, its deadlines, its timeline, and that a SIGKILL at any stage loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from recovery_scene import RUN, Scene, incident

from exporter.protocol import CommandProgress
from exporter.recovery.engine import WrongStage
from exporter.recovery.policy import Deadlines, Trigger
from exporter.recovery.progress import MOST_OUTPUT
from trainer_entry.supervisor.command import WAIT_FOR_COMMAND_SECONDS
from trainer_entry.supervisor.options import Options

Restart = Callable[[], None]
SCRIPT_SECONDS = Options.__dataclass_fields__["script_seconds"].default


def walk(scene: Scene, between: Restart) -> list[str]:
    """One recovery from alert to success; ``between`` is called after every report. The stages it went through."""
    recovery = scene.fail_with(incident(onset=42))
    seen = [recovery.stage]
    assert scene.engine.pending_command(RUN, scene.now) == recovery.command()
    for state in ("accepted", "stopping", "stopped", "starting"):
        between()
        scene.tick()
        assert scene.engine.pending_command(RUN, scene.now) == recovery.command()
        seen.append(scene.report(recovery, state, target=40).stage)
    between()
    scene.start_attempt(2, 40)
    seen.append(scene.recovery(recovery.id).stage)
    for step in (41, 42, 43):
        between()
        assert scene.engine.pending_command(RUN, scene.now) is None
        scene.tick()
        scene.steps(2, step)
    seen.append(scene.recovery(recovery.id).stage)
    return seen


STAGES = ["commanded", "commanded", "stopping", "starting", "starting", "verifying", "succeeded"]


def test_a_recovery_goes_through_its_stages(scene: Scene) -> None:
    assert walk(scene, lambda: None) == STAGES


def test_what_the_rollback_script_said_is_kept_and_is_bounded(scene: Scene) -> None:
    recovery = scene.fail_with(incident(onset=42))
    scene.engine.pending_command(RUN, scene.now)
    scene.report(recovery, "accepted", "stopping", "stopped", "starting", target=20)
    scene.start_attempt(2, 20)
    lines = [f"step {step} is refused: its content is not what was saved" for step in range(5000)]
    done = scene.report(recovery, "succeeded", target=20, detail="Attempt 2 started from step 20.", output=lines)
    assert done.output[-2:] == (lines[-1], "succeeded: Attempt 2 started from step 20.")
    assert len(done.output) == MOST_OUTPUT


def test_a_kill_after_any_report_changes_nothing(scene: Scene) -> None:
    assert walk(scene, scene.restart) == STAGES
    assert len(scene.engine.recoveries()) == 1


def test_reports_that_come_again_after_a_restart_change_nothing(scene: Scene) -> None:
    recovery = scene.carry_out(scene.fail_with(incident()), steps=2)
    lines = len(scene.kinds())
    scene.restart()
    scene.engine.pending_command(RUN, scene.now)
    for state in ("accepted", "stopping", "stopped", "starting", "started", "succeeded"):
        scene.report(recovery, state, target=48)
    scene.steps(1, 47, 48, 49, 50)
    scene.steps(2, 49, 50)
    assert scene.recovery(recovery.id) == recovery
    assert len(scene.kinds()) == lines
    scene.steps(2, 51)
    assert scene.recovery(recovery.id).stage == "succeeded"


def test_the_timeline_has_every_moment_in_order(scene: Scene) -> None:
    recovery = scene.carry_out(scene.fail_with(incident(onset=42)))
    times = recovery.times
    order = [
        times.alert_received, times.planned, times.commanded, times.command_delivered, times.accepted, times.stopping,
        times.stopped, times.starting, times.started, times.first_healthy_step, times.succeeded,
    ]  # fmt: skip
    assert None not in order
    assert order == sorted(order, key=lambda at: at or 0.0)
    assert (recovery.planned_target_step, recovery.target_step, recovery.new_attempt) == (40, 40, 2)
    assert recovery.first_healthy_step == 41


def test_a_push_that_arrived_before_the_alert_and_is_answered_after_it_turns_no_time_back(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    assert scene.engine.pending_command(RUN, scene.now - 0.5) is not None
    scene.now -= 5
    scene.report(recovery, "accepted", "stopping", target=48)
    times = scene.recovery(recovery.id).times
    assert times.commanded == times.command_delivered == times.accepted == times.stopping == 1000.0


def test_the_supervisor_may_take_an_older_checkpoint_and_success_counts_from_there(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.report(recovery, "accepted", "starting", target=20)
    scene.start_attempt(2, 20)
    scene.steps(2, 20, 21, 22, 23)
    recovery = scene.recovery(recovery.id)
    assert (recovery.planned_target_step, recovery.target_step, recovery.stage) == (48, 20, "succeeded")


def test_only_steps_past_the_target_count_and_each_once(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.report(recovery, "accepted", "starting", "started", target=48)
    scene.steps(2, 47, 48, 49, 49, 49, 50, 50)
    assert scene.recovery(recovery.id).healthy_steps == 2


def test_an_unhealthy_step_starts_the_count_again_and_too_many_fail(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.report(recovery, "accepted", "starting", "started", target=48)
    scene.steps(2, 49, 50)
    scene.steps(2, 51, healthy=False)
    scene.steps(2, 52, 53)
    assert scene.recovery(recovery.id).stage == "verifying"
    scene.steps(2, 54, 55, healthy=False)
    assert scene.recovery(recovery.id).stage == "failed"
    assert scene.engine.state_of(RUN).failed


def test_a_new_attempt_that_dies_fails_the_recovery(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.report(recovery, "accepted", "stopping")
    scene.exit_attempt(1, 143, expected=True)
    assert scene.recovery(recovery.id).active, "the end of the failed attempt is part of the plan"
    scene.report(recovery, "stopped", "starting")
    scene.start_attempt(2, 48)
    scene.exit_attempt(2, 1)
    recovery = scene.recovery(recovery.id)
    assert (recovery.stage, recovery.outcome) == (
        "failed",
        "Attempt 2 ended with exit code 1 after 0 healthy steps past the checkpoint.",
    )


def test_a_run_that_ends_healthy_before_the_count_is_full_is_recovered(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.start_attempt(2, 48)
    scene.steps(2, 49)
    scene.exit_attempt(2, 0, expected=True)
    assert scene.recovery(recovery.id).stage == "succeeded"


def test_the_same_failure_in_the_new_attempt_fails_the_recovery_and_is_not_answered_again(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.report(recovery, "accepted", "starting")
    scene.start_attempt(2, 48)
    again = incident(id="again", attempt=2)
    scene.open(again)
    scene.engine.on_incident(again, scene.facts, scene.now)
    assert scene.recovery(recovery.id).stage == "failed"
    scene.now += 10_000
    assert scene.alert(again).outcome == "duplicate"
    assert scene.alert(again, starts_at="2026-01-01T05:00:00Z").outcome == "attached"
    assert len(scene.engine.recoveries()) == 1


def test_a_supervisor_that_cannot_carry_it_out_is_quoted(scene: Scene) -> None:
    recovery = scene.report(scene.fail_with(incident()), "accepted", "failed", detail="no checkpoint verifies")
    assert recovery.stage == "failed"
    assert "no checkpoint verifies" in recovery.outcome


@pytest.mark.parametrize(
    ("reports", "limit", "words"),
    [
        ((), "command_seconds", "taken the command"),
        (("accepted",), "prepare_seconds", "has not begun to stop"),
        (("accepted", "stopping"), "stop_seconds", "has not stopped"),
        (("accepted", "stopped"), "start_seconds", "has not started"),
        (("accepted", "started"), "step_seconds", "no healthy step"),
    ],
)
def test_a_stage_past_its_deadline_fails_and_a_person_is_told(
    scene: Scene, reports: tuple[str, ...], limit: str, words: str
) -> None:
    seconds = getattr(scene.policy.deadlines, limit)
    scene.tick()
    recovery = scene.report(scene.fail_with(incident()), *reports)
    scene.tick(seconds - 1)
    assert scene.recovery(recovery.id).active
    scene.tick(3)
    recovery = scene.recovery(recovery.id)
    assert recovery.stage == "failed"
    assert words in recovery.outcome
    assert scene.engine.pending_command(RUN, scene.now) is None
    assert scene.engine.state_of(RUN).failed


def test_a_rung_that_is_prepared_for_an_hour_before_anything_is_stopped_is_not_given_up(scene: Scene) -> None:
    scene.tick()
    recovery = scene.report(scene.fail_with(incident()), "accepted")
    scene.tick(SCRIPT_SECONDS)
    assert scene.recovery(recovery.id).stage == "commanded"
    assert scene.report(recovery, "stopping").stage == "stopping"


def test_a_command_that_only_stops_the_run_has_nothing_to_prepare(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(triggers=(Trigger(detectors=("non_finite",), action="stop"),))
    scene.tick()
    recovery = scene.report(scene.fail_with(incident()), "accepted")
    scene.tick(scene.policy.deadlines.stop_seconds + 3)
    assert scene.recovery(recovery.id).outcome == "The trainer has not stopped within 600 s."


def test_the_time_the_exporter_was_down_does_not_count_against_a_stage(scene: Scene) -> None:
    recovery = scene.report(scene.fail_with(incident()), "accepted", "stopping")
    scene.now += 10 * scene.policy.deadlines.stop_seconds
    scene.restart()
    scene.tick()
    assert scene.recovery(recovery.id).stage == "stopping"
    scene.tick(scene.policy.deadlines.stop_seconds + 1)
    assert scene.recovery(recovery.id).stage == "failed"


def test_every_healthy_step_renews_the_deadline(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(success_steps=100, deadlines=Deadlines(step_seconds=10.0))
    recovery = scene.fail_with(incident())
    scene.start_attempt(2, 48)
    for step in range(49, 60):
        scene.tick(9)
        scene.steps(2, step)
    assert scene.recovery(recovery.id).stage == "verifying"


def test_a_success_takes_the_failure_of_the_one_before_back(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(cooldown_seconds=0.0)
    scene.report(scene.fail_with(incident()), "failed")
    assert scene.engine.state_of(RUN).failed
    second = incident("non_finite", "grad_norm", id="second")
    done = scene.carry_out(scene.fail_with(second))
    assert done.stage == "succeeded"
    state = scene.engine.state_of(RUN)
    assert (state.failed, state.outcomes) == (False, {"failed": 1, "succeeded": 1})


def test_approve_waits_for_a_person_and_the_record_says_who(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve")
    recovery = scene.fail_with(incident())
    scene.restart()
    assert recovery.stage == "awaiting_approval"
    assert scene.engine.pending_command(RUN, scene.now) is None
    assert scene.engine.state_of(RUN).awaiting_approval
    scene.tick(100_000)
    assert scene.recovery(recovery.id).stage == "awaiting_approval", "a person may take the night"
    approved = scene.engine.approve(recovery.id, "ada", scene.now)
    assert (approved.stage, approved.resolved_by, approved.times.approved) == ("commanded", "ada", scene.now)
    assert "ada" in str(scene.engine.audit()[0].data)
    assert scene.engine.pending_command(RUN, scene.now) is not None


def test_what_a_person_refused_is_not_asked_again(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve")
    found = incident()
    recovery = scene.fail_with(found)
    assert scene.engine.refuse(recovery.id, "ada", scene.now).stage == "refused"
    scene.now += 10_000
    assert scene.alert(found, starts_at="2026-01-02T00:00:00Z").outcome == "attached"
    assert not scene.engine.state_of(RUN).failed


def test_a_plan_is_withdrawn_when_its_incidents_are_over_or_the_run_was_restarted(
    scene_with: Callable[..., Scene],
) -> None:
    for change in ({"incidents": ()}, {"attempt": 2}):
        scene = scene_with(mode="approve")
        recovery = scene.fail_with(incident())
        scene.facts = replace(scene.facts, **change)  # type: ignore[arg-type]
        scene.tick()
        recovery = scene.recovery(recovery.id)
        assert recovery.stage == "refused"
        assert recovery.outcome.startswith("Withdrawn")
        with pytest.raises(WrongStage, match="is refused; this is only possible while it is awaiting approval"):
            scene.engine.approve(recovery.id, "ada", scene.now)


def test_an_unknown_recovery_is_a_key_error(scene: Scene) -> None:
    with pytest.raises(KeyError):
        scene.engine.approve("r0", "ada", scene.now)


def test_a_report_on_another_command_moves_nothing(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.engine.on_progress(RUN, CommandProgress(time=0.0, command_id="r0", state="failed"), scene.now)
    assert scene.recovery(recovery.id) == recovery


@pytest.mark.parametrize("jump", [50_000.0, -50_000.0])
def test_a_clock_that_is_set_or_a_machine_that_slept_ends_no_recovery_and_keeps_none_alive(
    scene: Scene, jump: float
) -> None:
    recovery = scene.report(scene.fail_with(incident()), "accepted", "stopping")
    scene.tick()
    scene.now += jump
    scene.tick()
    assert scene.recovery(recovery.id).stage == "stopping"
    scene.tick(scene.policy.deadlines.stop_seconds + 1)
    assert scene.recovery(recovery.id).stage == "failed"


@pytest.mark.parametrize("mode", ["approve", "auto"])
def test_a_plan_that_nobody_has_begun_goes_back_further_when_the_onset_turns_out_to_be_earlier(
    scene_with: Callable[..., Scene], mode: str
) -> None:
    scene = scene_with(mode=mode)
    recovery = scene.fail_with(incident(onset=50))
    assert recovery.planned_target_step == 48
    earlier = incident("surge", "kl", onset=45)
    scene.open(earlier)
    scene.engine.on_incident(earlier, scene.facts, scene.now)
    recovery = scene.recovery(recovery.id)
    assert (recovery.planned_target_step, recovery.onset, recovery.not_after_step) == (40, 45, 43)
    assert "Back to step 40" in recovery.reason
    assert {data["signal"] for data in recovery.incidents} == {"loss", "kl"}
    scene.facts = replace(scene.facts, incidents=(incident(onset=40), earlier))
    scene.tick()
    if mode == "approve":
        scene.engine.approve(recovery.id, "ada", scene.now)
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert (command.target_step, command.not_after_step) == (20, 20)
    scene.facts = replace(scene.facts, incidents=(incident(onset=10), earlier))
    scene.tick()
    assert scene.engine.pending_command(RUN, scene.now) == command, "what the supervisor has is not changed"


def test_a_plan_whose_last_sound_checkpoint_falls_under_suspicion_becomes_a_stop(
    scene_with: Callable[..., Scene],
) -> None:
    scene = scene_with(mode="approve")
    recovery = scene.fail_with(incident(onset=50))
    scene.facts = replace(scene.facts, incidents=(incident(onset=5),))
    scene.tick()
    recovery = scene.engine.approve(recovery.id, "ada", scene.now)
    assert (recovery.action, recovery.without_target, recovery.planned_target_step) == ("stop", True, None)
    assert scene.report(recovery, "accepted", "stopped").stage == "failed"


def test_a_new_attempt_that_dies_at_once_is_commanded_again_while_its_supervisor_still_waits(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    scene.report(recovery, "accepted", "stopped", "starting", target=48)
    scene.start_attempt(2, 48)
    scene.exit_attempt(2, 1)
    died = scene.now
    exited = incident("trainer_exited", "process", attempt=2, id="exited", opened_at=scene.now)
    scene.facts = replace(scene.facts, running=False, incidents=(exited,))
    assert scene.alert(exited).outcome == "pending"
    while scene.engine.pending_command(RUN, scene.now) is None:
        scene.tick()
        assert scene.now < died + WAIT_FOR_COMMAND_SECONDS - 60.0, "the supervisor has gone"
    assert scene.engine.recoveries()[0].attempt == 2
