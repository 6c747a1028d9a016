"""While a plan waits it may be made anew: an earlier onset is found. What people had approved was the plan before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from recovery_scene import RUN, Scene, checkpoint, incident

from exporter.recovery.record import Recovery
from exporter.recovery.rung_settings import Approvers

TWO = {"checkpoint": Approvers(approvals=2)}


def earlier(scene: Scene, recovery: Recovery, onset: int = 30) -> Recovery:
    """A further finding says that it began earlier."""
    scene.open(incident("surge", "kl", onset=onset, confidence=1.0))
    scene.tick()
    return scene.recovery(recovery.id)


def test_an_approval_does_not_count_for_the_plan_that_comes_after_it(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve", approval=TWO)
    recovery = scene.fail_with(incident())
    assert recovery.planned_target_step == 48
    scene.engine.approve(recovery.id, "ada", scene.now)
    recovery = earlier(scene, recovery)
    assert (recovery.planned_target_step, recovery.approvals, recovery.stage) == (20, (), "awaiting_approval")
    line = scene.engine.audit()[0]
    assert line.kind == "awaiting_approval"
    assert line.summary == (
        "The plan is another; the target moved back from step 48 to step 20. ada approved the one before, and it has "
        "to be approved again."
    )
    assert scene.engine.approve(recovery.id, "bob", scene.now).stage == "awaiting_approval"
    assert scene.engine.approve(recovery.id, "ada", scene.now).stage == "commanded"


def test_a_plan_that_was_approved_and_not_handed_out_has_to_be_approved_again(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve")
    recovery = scene.fail_with(incident())
    assert scene.engine.approve(recovery.id, "ada", scene.now).stage == "commanded"
    recovery = earlier(scene, recovery)
    assert (recovery.stage, recovery.resolved_by) == ("awaiting_approval", "")
    assert (recovery.times.approved, recovery.times.commanded) == (None, None)
    assert scene.engine.pending_command(RUN, scene.now) is None
    scene.restart()
    assert scene.engine.approve(recovery.id, "ada", scene.now).stage == "commanded"
    command = scene.engine.pending_command(RUN, scene.now)
    assert command is not None
    assert command.target_step == 20


def test_a_rollback_that_became_a_stop_has_to_be_approved_again(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve")
    recovery = scene.fail_with(incident())
    scene.engine.approve(recovery.id, "ada", scene.now)
    recovery = earlier(scene, recovery, onset=5)
    assert (recovery.action, recovery.stage, recovery.approvals) == ("stop", "awaiting_approval", ())


def test_an_approval_stays_where_what_is_done_is_the_same(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve", approval=TWO)
    scene.facts = replace(scene.facts, checkpoints=(checkpoint(20), checkpoint(40)))
    recovery = scene.fail_with(incident())
    scene.engine.approve(recovery.id, "ada", scene.now)
    moved = earlier(scene, recovery, onset=45)
    assert moved.not_after_step is not None
    assert recovery.not_after_step is not None
    assert moved.not_after_step < recovery.not_after_step
    assert (moved.planned_target_step, [one.who for one in moved.approvals]) == (40, ["ada"])
    assert scene.engine.approve(recovery.id, "bob", scene.now).stage == "commanded"


def test_a_plan_that_nobody_has_to_approve_goes_on_with_an_older_target(scene: Scene) -> None:
    recovery = earlier(scene, scene.fail_with(incident()))
    assert (recovery.stage, recovery.planned_target_step) == ("commanded", 20)


@pytest.mark.parametrize("climb_seconds", [0.0, 100.0])
def test_a_rollback_that_acts_by_itself_and_became_a_stop_is_asked_for_where_a_stop_is(
    scene_with: Callable[..., Scene], climb_seconds: float
) -> None:
    scene = scene_with(mode="approve", modes={"checkpoint": "auto"}, climb_seconds=climb_seconds)
    recovery = scene.fail_with(incident())
    assert recovery.stage == "commanded"
    recovery = earlier(scene, recovery, onset=5)
    assert (recovery.action, recovery.mode, recovery.stage) == ("stop", "approve", "awaiting_approval")
    assert scene.engine.audit()[0].summary.endswith("and none is left. It has to be approved.")
    assert scene.engine.pending_command(RUN, scene.now) is None
    assert scene.engine.approve(recovery.id, "ada", scene.now).stage == "commanded"
