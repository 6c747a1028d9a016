"""A recovery that does not hold is followed by one on the next rung that has something to do; at last by a person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
from ladder_scene import BAD, GOOD, LOST, LR, failure, next_attempt, prove, relapse, with_every_rung
from recovery_scene import RUN, Scene, checkpoint, incident

from exporter.protocol import Excluded
from exporter.recovery.engine import WrongStage
from exporter.recovery.facts import OpenIncident, StableConfig
from exporter.recovery.policy import Trigger
from exporter.recovery.record import Recovery
from exporter.recovery.rung_settings import Adjustment, Approvers, ConfigRung, GitSource, InfraRung, VersionRung


@pytest.fixture
def ladder(scene_with: Callable[..., Scene]) -> Callable[..., Scene]:
    return lambda **policy: with_every_rung(scene_with(**{"budget_per_day": 10, **policy}))


def newest(scene: Scene) -> Recovery:
    return scene.engine.recoveries()[0]


def reasons(recovery: Recovery) -> dict[str, str]:
    return {it.rung: it.reason for it in recovery.considered}


def test_each_relapse_climbs_one_rung_and_the_end_is_a_person(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    recovery = scene.fail_with(failure())
    rungs = [recovery.rung]
    while newest(scene).active:
        failed = relapse(scene, newest(scene))
        assert failed.stage == "failed"
        assert scene.engine.state_of(RUN).failed is not newest(scene).active, "nobody is told while it is climbed"
        rungs.append(newest(scene).rung)
    assert rungs[:-1] == ["checkpoint", "config", "version", "infra"]
    assert newest(scene).considered[-1].rung == "person"
    assert len(scene.engine.recoveries()) == 4
    assert scene.engine.state_of(RUN).failed


def test_both_ends_of_a_climb_name_each_other(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    first = relapse(scene, scene.fail_with(failure()))
    second = newest(scene)
    assert (first.climbed_to, second.climbed_from, second.episode) == (second.id, first.id, first.id)
    assert (first.failed_by, second.attempt) == ("relapse", 3)
    assert [entry.kind for entry in scene.engine.audit() if entry.recovery_id == second.id] == ["climbed"]


def test_the_config_rung_shows_its_difference_and_keeps_paths_and_seed(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    relapse(scene, scene.fail_with(failure()))
    second = newest(scene)
    shown = {it.name: (it.old, it.new) for it in second.changes if it.kind == "setting"}
    assert shown[LR] == (1e-2, 1e-6)
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert (command.rung, command.changes.settings) == ("config", {LR: 1e-6})


def test_what_an_earlier_rung_changed_stays_on_the_next(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    for _ in range(3):
        relapse(scene, newest(scene) if scene.engine.recoveries() else scene.fail_with(failure()))
    last = newest(scene).protocol_changes
    assert (last.settings, last.verl_version, last.exclude) == ({LR: 1e-6}, "0.8.0", [LOST])


def test_a_rung_that_would_change_nothing_is_passed_over_with_its_reason(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    first, second = scene.facts.attempts
    scene.facts = replace(scene.facts, attempts=(replace(first, config=BAD, verl_version="0.9.1"), second))
    relapse(scene, scene.fail_with(failure()))
    climbed = newest(scene)
    assert climbed.rung == "infra"
    assert "same configuration" in reasons(climbed)["config"]
    assert "no other version" in reasons(climbed)["version"]
    assert any("config" in refused for stage in climbed.stages for refused in stage.refused)


STOP = Trigger(detectors=("dead_run",), action="stop")
ROLL_BACK = Trigger(detectors=("non_finite",))


def dead(scene: Scene, recovery: Recovery, *, confidence: float = 1.0, others: Sequence[OpenIncident] = ()) -> None:
    """The new attempt runs, and shows a failure of which the policy says that the run is to be stopped."""
    number = next_attempt(scene, recovery)
    found = incident("dead_run", "loss", 42, attempt=number, id="dead", confidence=confidence)
    scene.facts = replace(scene.facts, incidents=(found, *others), step=44)
    scene.engine.on_incident(found, scene.facts, scene.now)


def test_a_failure_that_is_to_stop_the_run_stops_it_also_in_an_attempt_that_is_verified(
    ladder: Callable[..., Scene],
) -> None:
    scene = ladder(triggers=(STOP, ROLL_BACK))
    first = scene.fail_with(failure())
    dead(scene, first)
    second = newest(scene)
    assert (scene.recovery(first.id).failed_by, scene.recovery(first.id).climbed_to) == ("relapse", second.id)
    assert (second.action, second.stage, second.without_target) == ("stop", "commanded", False)
    assert second.reason.endswith("The policy asks for a stop.")


def test_a_failure_that_would_not_stop_the_run_by_itself_does_not_when_another_makes_it_climb(
    ladder: Callable[..., Scene],
) -> None:
    stop = Trigger(detectors=("dead_run",), action="stop", agreement=9)
    scene = ladder(triggers=(stop, Trigger(detectors=("non_finite", "surge"))), certainty=1.0)
    first = scene.fail_with(failure())
    others = (failure(3, onset=42, confidence=0.9), incident("surge", "kl", 42, attempt=3, id="kl"))
    dead(scene, first, confidence=0.8, others=others)
    assert (newest(scene).action, newest(scene).climbed_from) == ("rollback", first.id)


@pytest.mark.parametrize("asked_for", [{"triggers": (STOP, ROLL_BACK)}, {"at_end": "stop"}])
def test_a_stop_that_is_only_observed_leaves_the_failure_to_a_person(
    ladder: Callable[..., Scene], asked_for: dict[str, object]
) -> None:
    scene = ladder(**asked_for)
    first = scene.fail_with(failure())
    scene.policy = msgspec.structs.replace(scene.policy, mode="observe")
    scene.restart()  # the policy is another since
    dead(scene, first)
    failed = scene.recovery(first.id)
    assert (newest(scene).id, failed.stage, failed.climbed_to) == (first.id, "failed", "")
    assert scene.engine.state_of(RUN).failed


def test_a_ladder_without_anything_to_climb_to_ends_with_its_reasons_in_the_failed_record(scene: Scene) -> None:
    recovery = scene.fail_with(failure(attempt=1))
    scene.report(recovery, "accepted", "starting", target=40)
    scene.start_attempt(2, 40)
    scene.exit_attempt(2, 1)
    failed = scene.recovery(recovery.id)
    assert (failed.stage, failed.failed_by, failed.climbed_to) == ("failed", "died", "")
    assert set(reasons(failed)) == {"checkpoint", "config", "version", "infra", "person"}
    assert scene.engine.state_of(RUN).failed


def test_an_attempt_that_dies_climbs_with_its_last_words_in_the_record(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    first = scene.fail_with(failure())
    number = next_attempt(scene, first)
    scene.exit_attempt(number, 1, said=["torch.OutOfMemoryError: CUDA out of memory"])
    failed = scene.recovery(first.id)
    assert (failed.failed_by, failed.output) == ("died", ("torch.OutOfMemoryError: CUDA out of memory",))
    assert newest(scene).rung == "config"
    assert newest(scene).planned_target_step == 40


@pytest.mark.parametrize(("code", "climbs"), [(6, True), (1, True), (4, False), (5, False), (8, False), (None, False)])
def test_a_command_that_was_not_carried_out_climbs_where_another_rung_may_mend_it(
    ladder: Callable[..., Scene], code: int | None, climbs: bool
) -> None:
    scene = ladder()
    recovery = scene.fail_with(failure())
    scene.report(recovery, "accepted")
    scene.report(recovery, "failed", detail="the environment is not there", code=code)
    assert (scene.recovery(recovery.id).climbed_to != "") is climbs
    assert scene.engine.state_of(RUN).failed is not climbs


def test_the_budget_ends_the_ladder(ladder: Callable[..., Scene]) -> None:
    scene = ladder(budget_per_day=2)
    relapse(scene, scene.fail_with(failure()))
    second = relapse(scene, newest(scene))
    assert (second.rung, second.climbed_to) == ("config", "")
    assert "budget of 2" in reasons(second)["person"]
    assert scene.engine.state_of(RUN).failed


def test_a_climb_waits_for_its_own_time_and_not_for_the_cooldown(ladder: Callable[..., Scene]) -> None:
    scene = ladder(cooldown_seconds=5000.0, climb_seconds=30.0)
    relapse(scene, scene.fail_with(failure()))
    second = newest(scene)
    assert (second.stage, scene.engine.pending_command(RUN, scene.now)) == ("planned", None)
    assert not scene.engine.state_of(RUN).failed
    scene.restart()
    scene.tick(29)
    assert newest(scene).stage == "planned"
    scene.tick(5)
    assert newest(scene).stage == "commanded"
    assert scene.engine.pending_command(RUN, scene.now) is not None


def test_a_wait_does_not_last_for_ever_when_the_clock_is_set_back(ladder: Callable[..., Scene]) -> None:
    scene = ladder(climb_seconds=30.0)
    relapse(scene, scene.fail_with(failure()))
    scene.now -= 50_000
    scene.tick()
    assert newest(scene).stage == "commanded"


def test_a_crash_between_failure_and_climb_is_not_possible(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    first = relapse(scene, scene.fail_with(failure()))
    scene.restart()
    assert newest(scene).id == scene.recovery(first.id).climbed_to
    assert newest(scene).active


def test_the_mode_of_a_rung_is_its_own(ladder: Callable[..., Scene]) -> None:
    scene = ladder(modes={"config": "observe", "version": "approve"})
    relapse(scene, scene.fail_with(failure()))
    climbed = newest(scene)
    assert (climbed.rung, climbed.stage) == ("version", "awaiting_approval")
    assert "only observes" in reasons(climbed)["config"]
    assert not scene.engine.state_of(RUN).failed
    scene.tick(100)
    assert newest(scene).stage == "awaiting_approval", "the incidents of the attempt before are over, and that is why"


def test_only_those_whom_the_policy_names_approve_and_as_many_as_it_says(ladder: Callable[..., Scene]) -> None:
    who = Approvers(names=("ada", "bob", "eve"), approvals=2)
    scene = ladder(mode="approve", approval={"checkpoint": who})
    recovery = scene.fail_with(failure())
    with pytest.raises(WrongStage, match="for ada, bob, eve"):
        scene.engine.approve(recovery.id, "mallory", scene.now)
    assert scene.engine.approve(recovery.id, "ada", scene.now).stage == "awaiting_approval"
    with pytest.raises(WrongStage, match="approved recovery"):
        scene.engine.approve(recovery.id, "ada", scene.now)
    assert scene.engine.pending_command(RUN, scene.now) is None
    scene.restart()
    done = scene.engine.approve(recovery.id, "bob", scene.now)
    assert (done.stage, done.resolved_by, len(done.approvals)) == ("commanded", "ada, bob", 2)
    assert [entry.kind for entry in scene.engine.audit(3)] == ["approved", "approved", "alert_planned"]


def test_another_spelling_of_a_name_is_not_another_person(ladder: Callable[..., Scene]) -> None:
    scene = ladder(mode="approve", approval={"checkpoint": Approvers(approvals=2)})
    recovery = scene.fail_with(failure())
    scene.engine.approve(recovery.id, "Ada  Lovelace", scene.now)
    for again in ("ada lovelace", "ADA LOVELACE", "Ada\u00a0Lovelace"):
        with pytest.raises(WrongStage, match="approved recovery"):
            scene.engine.approve(recovery.id, again, scene.now)
    assert scene.engine.approve(recovery.id, "grace", scene.now).stage == "commanded"


def test_the_same_failure_soon_after_a_success_goes_on_with_the_next_rung(ladder: Callable[..., Scene]) -> None:
    scene = ladder(no_progress_steps=20)
    first = scene.carry_out(scene.fail_with(failure()), attempt=3)
    assert first.stage == "succeeded"
    scene.now += 10_000
    again = failure(3, onset=first.last_step + 5 if first.last_step else 0)
    scene.facts = replace(scene.facts, incidents=(again,), step=again.onset)
    assert scene.alert(again, starts_at="2026-01-02T00:00:00Z").outcome == "planned"
    second = newest(scene)
    assert (second.rung, second.climbed_from, scene.recovery(first.id).climbed_to) == ("config", first.id, second.id)
    planned, followed, *_ = scene.engine.audit(2)
    assert (planned.kind, planned.data["climbed_from"]) == ("alert_planned", first.id)
    assert (followed.kind, followed.recovery_id, followed.data) == ("followed", first.id, {"climbed_to": second.id})


@pytest.mark.parametrize(("signal", "there", "target"), [("loss", (20, 40, 45), 40), ("loss", (45,), 45)])
def test_a_failure_that_is_back_is_left_from_where_it_was_found_first(
    ladder: Callable[..., Scene], signal: str, there: tuple[int, ...], target: int
) -> None:
    scene = ladder(no_progress_steps=20)
    first = scene.carry_out(scene.fail_with(failure()), attempt=3)
    assert first.not_after_step == 43
    again = replace(failure(3, onset=50), signal=signal)
    # Step 45 was saved by the attempt in which the failure came back.
    saved = tuple(replace(checkpoint(step), attempt=3 if step == 45 else 1) for step in there)
    scene.facts = replace(scene.facts, incidents=(again,), step=50, checkpoints=saved)
    scene.now += 10_000
    scene.alert(again, starts_at="2026-01-02T00:00:00Z")
    assert newest(scene).planned_target_step == target


@pytest.mark.parametrize(
    ("detector", "signal", "rung"),
    [
        ("reward", "reward", "config"),  # training collapsed again, and this time it shows here first
        ("trainer_exited", "process", "checkpoint"),
        ("memory", "gpu_memory", "checkpoint"),
    ],
)
def test_a_collapse_that_shows_in_another_signal_is_the_same_failure_and_a_crash_is_not(
    ladder: Callable[..., Scene], detector: str, signal: str, rung: str
) -> None:
    scene = ladder(no_progress_steps=20, triggers=(Trigger(detectors=("non_finite", detector)),), agreement=1)
    first = scene.carry_out(scene.fail_with(failure()), attempt=3)
    scene.now += 10_000
    other = replace(failure(3, onset=(first.last_step or 0) + 5), detector=detector, signal=signal)
    scene.facts = replace(scene.facts, incidents=(other,), step=other.onset)
    assert scene.alert(other, starts_at="2026-01-02T00:00:00Z").outcome == "planned"
    assert newest(scene).rung == rung


def test_the_same_failure_long_after_a_success_begins_at_the_bottom(ladder: Callable[..., Scene]) -> None:
    scene = ladder(no_progress_steps=20)
    first = scene.carry_out(scene.fail_with(failure()), attempt=3)
    scene.now += 10_000
    again = failure(3, onset=(first.last_step or 0) + 21)
    scene.facts = replace(scene.facts, incidents=(again,), step=again.onset)
    assert scene.alert(again, starts_at="2026-01-02T00:00:00Z").outcome == "planned"
    assert (newest(scene).rung, newest(scene).episode) == ("checkpoint", "")


def test_a_ladder_that_has_ended_is_for_a_person_until_that_is_acknowledged(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(no_progress_steps=20, cooldown_seconds=0.0)
    scene.carry_out(scene.fail_with(failure(attempt=1)))
    again = failure(2, onset=52)
    scene.facts = replace(scene.facts, incidents=(again,))
    assert scene.alert(again, starts_at="b").outcome == "refused"
    told = newest(scene)
    assert (told.failed_by, told.refused_by_policy) == ("ladder", True)
    assert scene.engine.state_of(RUN).failed
    other = replace(failure(2, onset=53), id="other", signal="grad_norm")
    scene.facts = replace(scene.facts, incidents=(again, other))
    assert scene.alert(other, starts_at="c").outcome == "pending"
    scene.engine.acknowledge(told.id, "ada", scene.now)
    scene.tick()
    assert newest(scene).rung == "checkpoint"
    assert newest(scene).active


def test_at_the_end_of_the_ladder_a_run_that_trains_is_stopped_where_the_policy_says_so(
    scene_with: Callable[..., Scene],
) -> None:
    scene = scene_with(at_end="stop")
    recovery = scene.fail_with(failure(attempt=1))
    scene.report(recovery, "accepted", "starting", target=40)
    scene.start_attempt(2, 40)
    again = failure(2, onset=43)
    scene.facts = replace(scene.facts, incidents=(again,))
    scene.engine.on_incident(again, scene.facts, scene.now)
    last = newest(scene)
    assert (last.action, last.stage, last.climbed_from) == ("stop", "commanded", recovery.id)
    assert not scene.engine.state_of(RUN).failed
    scene.report(last, "accepted", "stopping", "stopped", "succeeded")
    assert scene.recovery(last.id).failed_by == "ladder"
    assert scene.engine.state_of(RUN).failed


def test_a_new_attempt_by_hand_ends_the_episode(ladder: Callable[..., Scene]) -> None:
    scene = ladder(ladder=("checkpoint",), cooldown_seconds=0.0)
    relapse(scene, scene.fail_with(failure()))
    scene.facts = replace(scene.facts, attempt=9, incidents=(failure(9, onset=44),))
    assert scene.alert(scene.facts.incidents[0], starts_at="b").outcome == "planned"
    assert (newest(scene).rung, newest(scene).episode) == ("checkpoint", "")


def test_a_trigger_may_have_a_ladder_of_its_own(ladder: Callable[..., Scene]) -> None:
    scene = ladder(triggers=(Trigger(detectors=("non_finite",), ladder=("checkpoint", "infra")),))
    relapse(scene, scene.fail_with(failure()))
    assert newest(scene).rung == "infra"


def test_a_configuration_from_git_is_taken_as_far_as_the_policy_allows(ladder: Callable[..., Scene]) -> None:
    rung = ConfigRung(source="git", git=GitSource(repository="/srv/configs"))
    scene = ladder(config=rung, ladder=("config",))
    stable = StableConfig(
        {**GOOD, LR: 3e-6, "data.train_files": "/x", "algorithm.kl_ctrl.kl_coef": 0.01}, origin="here"
    )
    scene.facts = replace(scene.facts, stable_config=stable)
    recovery = scene.fail_with(failure())
    assert recovery.protocol_changes.settings == {"algorithm.kl_ctrl.kl_coef": 0.01, LR: 3e-6}
    assert "here" in reasons(recovery)["config"]


def test_a_configuration_in_git_that_cannot_be_read_is_said_and_nothing_is_guessed(
    ladder: Callable[..., Scene],
) -> None:
    rung = ConfigRung(source=("git", "adjust"), git=GitSource(repository="/srv"), adjust={LR: Adjustment(multiply=0.5)})
    scene = ladder(config=rung, ladder=("config",))
    scene.facts = replace(scene.facts, stable_config=StableConfig(error="no such branch"))
    assert scene.fail_with(failure()).protocol_changes.settings == {LR: 5e-3}
    only = ConfigRung(source="git", git=GitSource(repository="/srv"))
    scene = ladder(config=only, ladder=("config",))
    scene.facts = replace(scene.facts, stable_config=StableConfig(error="no such branch"), incidents=(failure(),))
    scene.alert(failure())
    assert "no such branch" in reasons(newest(scene))["config"]
    assert newest(scene).refused_by_policy


def test_a_pinned_version_and_an_executor_that_leaves_nothing_out(ladder: Callable[..., Scene]) -> None:
    scene = ladder(version=VersionRung(source="pinned", version="0.7.1"), ladder=("infra", "version"))
    first, second = scene.facts.attempts
    scene.facts = replace(scene.facts, attempts=(first, replace(second, executor="local")))
    recovery = scene.fail_with(failure())
    assert (recovery.rung, recovery.protocol_changes.verl_version) == ("version", "0.7.1")
    assert "local executor" in reasons(recovery)["infra"]


def test_more_nodes_at_fault_than_the_policy_leaves_out_are_for_a_person(ladder: Callable[..., Scene]) -> None:
    scene = ladder(infra=InfraRung(most=1), ladder=("infra", "checkpoint"))
    scene.facts = replace(scene.facts, nodes_at_fault=(LOST, replace_node("node-c")))
    recovery = scene.fail_with(failure())
    assert recovery.rung == "checkpoint"
    assert "2 nodes" in reasons(recovery)["infra"]


def replace_node(name: str) -> object:
    from msgspec.structs import replace as with_fields

    return with_fields(LOST, node=name)


def test_batches_that_led_into_the_failure_are_left_out_once(ladder: Callable[..., Scene]) -> None:
    scene = ladder(skip_steps=100)
    scene.facts = replace(scene.facts, step=47)
    recovery = scene.fail_with(failure())
    assert recovery.protocol_changes.skip_steps == 7
    assert {it.name: it.new for it in recovery.changes}["skip_steps"] == 7
    live = ladder(skip_steps=100)
    crash = replace(failure(), detector="trainer_exited", signal="process")
    assert live.fail_with(crash).protocol_changes.skip_steps == 0, "no batch led into the death of a process"


def test_where_more_batches_lie_between_than_may_be_left_out_none_is_and_that_is_said(
    ladder: Callable[..., Scene],
) -> None:
    """The first of them would be left out, and the last ones led into the failure."""
    scene = ladder(skip_steps=6)
    scene.facts = replace(scene.facts, step=47)
    recovery = scene.fail_with(failure())
    assert recovery.protocol_changes.skip_steps == 0
    assert "no batches are skipped: 7 lie between, and the policy skips at most 6" in reasons(recovery)["checkpoint"]


def test_batches_that_an_attempt_has_left_out_already_are_left_out_with_its_own(ladder: Callable[..., Scene]) -> None:
    """Attempt 3 began at 40 without 7 batches and failed at 42: nine batches were seen or left out since."""
    scene = ladder(skip_steps=100, no_progress_steps=50)
    scene.facts = replace(scene.facts, step=47)
    again = relapse(scene, scene.fail_with(failure()))
    climbed = next(it for it in scene.store.history(RUN) if it.climbed_from == again.id)
    assert climbed.planned_target_step == 40
    assert climbed.protocol_changes.skip_steps == 9


def test_a_restart_saves_first_and_goes_on_from_what_it_saved(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(triggers=(Trigger(detectors=("memory",), action="restart", agreement=1),))
    leak = replace(failure(1, onset=10, confidence=0.7), detector="memory", signal="host_memory", step=50)
    recovery = scene.fail_with(leak)
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert (command.action, command.not_after_step, command.target_step) == ("restart", None, 48)
    scene.report(recovery, "accepted", "stopping", "stopped", "starting", target=50)
    scene.start_attempt(2, 50)
    scene.steps(2, 49, 50, 51, 52, 53)
    done = scene.recovery(recovery.id)
    assert (done.stage, done.target_step, done.first_healthy_step) == ("succeeded", 50, 51)


def test_a_restart_that_could_not_save_goes_back_to_a_checkpoint(scene_with: Callable[..., Scene]) -> None:
    restart = Trigger(detectors=("memory",), action="restart", agreement=1, ladder=("checkpoint",))
    scene = scene_with(triggers=(restart,))
    leak = replace(failure(1, onset=10, confidence=0.7), detector="memory", signal="host_memory", step=50)
    recovery = scene.fail_with(leak)
    scene.report(recovery, "accepted", "stopping", "stopped")
    scene.report(recovery, "failed", detail="it did not save", code=10)
    back = newest(scene)
    assert (back.action, back.rung, back.planned_target_step) == ("rollback", "checkpoint", 48)
    assert back.climbed_from == recovery.id
    scene.report(back, "failed", detail="the trainer cannot be started", code=6)
    assert not newest(scene).active
    assert scene.engine.state_of(RUN).failed


def test_weights_in_doubt_are_not_saved_by_a_restart(scene_with: Callable[..., Scene]) -> None:
    restart = Trigger(detectors=("memory", "non_finite"), action="restart", agreement=1)
    scene = scene_with(triggers=(restart,))
    leak = replace(failure(1, onset=10, confidence=1.0), detector="memory", signal="host_memory", id="leak", step=50)
    recovery = scene.fail_with(leak, failure(1, onset=45))
    assert (recovery.action, recovery.planned_target_step) == ("rollback", 40)


def test_an_attempt_that_was_not_healthy_for_long_enough_is_no_model(ladder: Callable[..., Scene]) -> None:
    scene = ladder(healthy_steps=41, ladder=("config", "version", "checkpoint"))
    recovery = scene.fail_with(failure())
    assert recovery.rung == "checkpoint"
    assert "healthy for 41 steps" in reasons(recovery)["config"]


def test_what_was_saved_after_the_new_onset_is_no_target_of_the_climb(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    first = scene.fail_with(failure())
    number = next_attempt(scene, first)
    saved = (*scene.facts.checkpoints, checkpoint(42, attempt=number), checkpoint(41, attempt=number))
    again = failure(number, onset=43)
    scene.facts = replace(scene.facts, checkpoints=saved, incidents=(again,), step=44)
    scene.engine.on_incident(again, scene.facts, scene.now)
    assert newest(scene).planned_target_step == 41


def test_a_climb_names_the_attempt_that_failed_last_and_its_facts(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    relapse(scene, scene.fail_with(failure()))
    assert newest(scene).attempt == 3
    assert {data["attempt"] for data in newest(scene).incidents} == {2, 3}


def test_success_on_a_higher_rung_takes_the_failures_before_it_back(ladder: Callable[..., Scene]) -> None:
    scene = ladder()
    relapse(scene, scene.fail_with(failure()))
    second = newest(scene)
    number = next_attempt(scene, second)
    prove(scene)
    scene.steps(number, 41, 42, 43)
    assert scene.recovery(second.id).stage == "succeeded"
    state = scene.engine.state_of(RUN)
    assert (state.failed, state.outcomes) == (False, {"failed": 1, "succeeded": 1})


def died_on(scene: Scene, rung: str) -> tuple[Recovery, OpenIncident]:
    """A recovery on that rung whose attempt died, and the finding that it did."""
    relapse(scene, scene.fail_with(failure()))
    tried = newest(scene)
    assert tried.rung == rung
    scene.exit_attempt(next_attempt(scene, tried), 1)
    assert scene.recovery(tried.id).failed_by == "died"
    scene.now += 61
    return tried, incident("trainer_exited", "process", 41, attempt=scene.facts.attempt, id="crash")


def own(recovery: Recovery) -> set[tuple[str, object]]:
    """What the rung itself makes different."""
    return {(it.name, it.new) for it in recovery.changes if it.name in ("verl_version", "left_out", LR)} | {
        (it.name, it.new) for it in recovery.changes if "node-b" in it.name
    }


@pytest.mark.parametrize("rung", ["version", "infra"])
def test_a_rung_whose_attempt_died_is_tried_once_more_though_it_is_in_force(
    ladder: Callable[..., Scene], rung: str
) -> None:
    scene = ladder(ladder=("checkpoint", rung), cooldown_seconds=60.0)
    tried, crash = died_on(scene, rung)
    scene.facts = replace(scene.facts, incidents=(crash,), running=False)
    assert scene.alert(crash, starts_at="b").outcome == "planned"
    again = newest(scene)
    assert (again.rung, again.protocol_changes) == (rung, tried.protocol_changes)
    assert own(again) == own(tried) != set(), "a person sees it, and it has to be proved again"
    assert "once more" in reasons(again)[rung]
    scene.exit_attempt(next_attempt(scene, again), 1)
    assert scene.recovery(again.id).climbed_to == ""
    assert scene.engine.state_of(RUN).failed


def test_what_a_fresh_look_finds_goes_before_trying_the_same_once_more(ladder: Callable[..., Scene]) -> None:
    scene = ladder(ladder=("checkpoint", "infra"), cooldown_seconds=60.0)
    _, crash = died_on(scene, "infra")
    other = Excluded(node="node-b", gpu="GPU-2", reason="the GPU is lost")
    scene.facts = replace(scene.facts, incidents=(crash,), running=False, nodes_at_fault=(other, LOST))
    assert scene.alert(crash, starts_at="b").outcome == "planned"
    assert newest(scene).protocol_changes.exclude == [LOST, other]


def test_an_attempt_that_a_person_started_without_the_change_is_no_try_of_the_rung(
    ladder: Callable[..., Scene],
) -> None:
    scene = ladder(ladder=("checkpoint", "version"), cooldown_seconds=60.0)
    relapse(scene, scene.fail_with(failure()))
    tried = newest(scene)
    assert scene.engine.pending_command(RUN, scene.now) is not None
    number = scene.facts.attempt + 1
    scene.facts = replace(scene.facts, incidents=())
    scene.start_attempt(number, 20)
    scene.exit_attempt(number, 1)
    assert scene.recovery(tried.id).failed_by == "died"
    scene.now += 61
    crash = incident("trainer_exited", "process", 21, attempt=number, id="crash")
    scene.facts = replace(scene.facts, incidents=(crash,), running=False)
    assert scene.alert(crash, starts_at="b").outcome == "planned"
    assert newest(scene).protocol_changes.verl_version == "0.8.0"
    assert "once more" not in reasons(newest(scene))["version"]


def test_trying_once_more_that_waits_for_approval_stays_so_when_an_earlier_onset_is_found(
    ladder: Callable[..., Scene],
) -> None:
    scene = ladder(ladder=("checkpoint", "version"), cooldown_seconds=60.0)
    tried, crash = died_on(scene, "version")
    scene.policy = msgspec.structs.replace(scene.policy, modes={"version": "approve"})
    scene.restart()
    scene.facts = replace(scene.facts, incidents=(crash,), running=False)
    assert scene.alert(crash, starts_at="b").outcome == "planned"
    found = failure(scene.facts.attempt, onset=30)
    scene.facts = replace(scene.facts, incidents=(crash, found))
    scene.engine.on_incident(found, scene.facts, scene.now)
    scene.tick()
    again = newest(scene)
    assert (again.stage, again.action, again.planned_target_step) == ("awaiting_approval", "rollback", 20)
    assert again.protocol_changes == tried.protocol_changes


def test_a_rung_that_was_not_carried_out_is_looked_at_afresh(ladder: Callable[..., Scene]) -> None:
    scene = ladder(ladder=("checkpoint", "version"), cooldown_seconds=60.0)
    relapse(scene, scene.fail_with(failure()))
    tried = newest(scene)
    assert scene.engine.pending_command(RUN, scene.now) is not None
    scene.report(tried, "accepted", "failed", code=1)
    assert scene.recovery(tried.id).failed_by == "not_carried_out"
    scene.now += 61
    found = incident("surge", "kl", 44, attempt=scene.facts.attempt, id="kl")
    scene.facts = replace(scene.facts, incidents=(*scene.facts.incidents, found))
    assert scene.alert(found, starts_at="b").outcome == "planned"
    assert newest(scene).protocol_changes.verl_version == "0.8.0"
    assert "once more" not in reasons(newest(scene))["version"]
