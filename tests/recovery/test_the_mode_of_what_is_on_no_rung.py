"""A stop, and the end of the ladder, are no matter of one rung: the mode of the policy is theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ladder_scene import failure, with_every_rung
from recovery_scene import RUN, Scene, incident

from exporter.recovery.policy import Rule, Trigger

NON_FINITE = ("non_finite",)


def test_a_rule_that_only_observes_asks_nobody_and_stops_nothing_whatever_the_modes_of_the_policy_are(
    scene_with: Callable[..., Scene],
) -> None:
    """The example has such a rule: nothing is left to do on the rungs that are not only observed."""
    modes = {"version": "approve", "infra": "auto"}
    scene = scene_with(modes=modes, at_end="stop", rules=(Rule(run="toy-*", mode="observe"),))
    recovery = scene.fail_with(incident())
    assert (recovery.stage, recovery.rung, recovery.action) == ("observed", "checkpoint", "rollback")
    state = scene.engine.state_of(RUN)
    assert (state.failed, state.awaiting_approval, state.active) == (False, False, None)


@pytest.mark.parametrize("policy", [{}, {"triggers": (Trigger(detectors=NON_FINITE, action="stop"),)}])
def test_a_stop_has_the_mode_of_the_policy_and_not_of_the_first_rung(
    scene_with: Callable[..., Scene], policy: dict[str, object]
) -> None:
    scene = scene_with(modes={"checkpoint": "observe"}, **policy)
    scene.facts = replace(scene.facts, checkpoints=())
    recovery = scene.fail_with(incident())
    assert (recovery.action, recovery.mode, recovery.stage) == ("stop", "auto", "commanded")
    scene.alert(incident())
    assert len(scene.store.history(RUN)) == 1


def test_where_some_rung_acts_though_the_policy_observes_a_person_is_asked_for_a_stop(
    scene_with: Callable[..., Scene],
) -> None:
    scene = scene_with(mode="observe", modes={"checkpoint": "auto"})
    scene.facts = replace(scene.facts, checkpoints=())
    recovery = scene.fail_with(incident())
    assert (recovery.action, recovery.mode, recovery.stage) == ("stop", "approve", "awaiting_approval")


@pytest.mark.parametrize(("mode", "stage"), [("approve", "awaiting_approval"), ("auto", "commanded")])
def test_the_end_of_the_ladder_has_the_mode_of_the_policy(
    scene_with: Callable[..., Scene], mode: str, stage: str
) -> None:
    """Nothing is left on the rungs that act, and the run still trains."""
    scene = scene_with(mode=mode, modes={"checkpoint": "observe", "infra": "observe"}, at_end="stop")
    recovery = scene.fail_with(incident())
    assert (recovery.action, recovery.mode, recovery.stage) == ("stop", mode, stage)


def test_a_spent_budget_is_told_also_where_the_first_rung_is_only_observed(scene_with: Callable[..., Scene]) -> None:
    scene = with_every_rung(
        scene_with(modes={"checkpoint": "observe"}, ladder=("checkpoint", "version"), budget_per_day=1)
    )
    first = scene.carry_out(scene.fail_with(failure()), attempt=3)
    assert (first.rung, first.stage) == ("version", "succeeded")
    scene.tick(100)
    scene.facts = replace(scene.facts, incidents=(), step=45)
    second = scene.fail_with(failure(3, onset=45, opened_at=scene.now))
    assert (second.stage, second.refused_by_policy) == ("refused", True)
    assert scene.engine.state_of(RUN).failed


def test_a_rung_of_a_triggers_own_ladder_acts_where_those_of_the_policy_are_only_observed(
    scene_with: Callable[..., Scene],
) -> None:
    own = Trigger(detectors=NON_FINITE, ladder=("checkpoint", "infra"))
    scene = scene_with(mode="observe", modes={"infra": "auto"}, ladder=("checkpoint",), triggers=(own,))
    recovery = with_every_rung(scene).fail_with(failure())
    assert (recovery.rung, recovery.stage) == ("infra", "commanded")
