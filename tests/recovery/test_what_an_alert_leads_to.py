"""Alerts: which make a recovery, which wait, which are refused, and that none makes two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs
from recovery_scene import RUN, Scene, alert_of, incident

from exporter.detectors.base import Severity
from exporter.recovery.facts import OpenIncident
from exporter.recovery.policy import RecoveryPolicy, Trigger


def test_a_certain_finding_makes_a_recovery_with_its_evidence(scene: Scene) -> None:
    recovery = scene.fail_with(incident(score=float("inf")))
    assert (recovery.stage, recovery.planned_target_step, recovery.attempt) == ("commanded", 48, 1)
    assert recovery.incidents[0]["score"] == "Infinity"
    planned = scene.engine.audit()[0]
    assert planned.kind == "alert_planned"
    assert [c["step"] for c in planned.data["candidates"]] == [48, 40, 20]
    assert planned.data["alert"]["labels"]["run"] == RUN


@pytest.mark.parametrize("times", [1, 5])
def test_a_duplicate_alert_makes_one_recovery(scene: Scene, times: int) -> None:
    found = incident()
    first = scene.fail_with(found)
    for _ in range(times):
        scene.now += 30
        decision = scene.alert(found)
        assert (decision.outcome, decision.recovery_id) == ("duplicate", first.id)
    assert [r.id for r in scene.engine.recoveries()] == [first.id]
    assert scene.kinds() == ["alert_planned"]


def test_a_duplicate_after_the_recovery_is_over_makes_no_other(scene: Scene) -> None:
    found = incident()
    scene.carry_out(scene.fail_with(found))
    scene.now += 10_000
    assert scene.alert(found).outcome == "duplicate"
    assert len(scene.engine.recoveries()) == 1


def test_an_alert_that_never_stopped_firing_counts_for_a_failure_of_the_next_attempt(scene: Scene) -> None:
    found = incident()
    scene.carry_out(scene.fail_with(found))
    scene.now += 10_000
    scene.facts = replace(scene.facts, incidents=(replace(found, attempt=2, onset=60),))
    assert scene.alert(found).outcome == "planned"
    second, first = scene.engine.recoveries()
    assert (second.attempt, first.attempt) == (2, 1)
    assert second.times.alert_received == scene.now


def test_another_alert_of_the_run_is_attached_while_a_recovery_is_in_progress(scene: Scene) -> None:
    other = incident("surge", "kl", onset=49)
    recovery = scene.fail_with(incident())
    scene.open(other)
    decision = scene.alert(other)
    assert (decision.outcome, decision.recovery_id) == ("attached", recovery.id)
    assert [i["detector"] for i in scene.recovery(recovery.id).incidents] == ["non_finite", "surge"]
    assert scene.alert(other).outcome == "duplicate"


def test_an_incident_is_answered_by_one_recovery_even_under_a_new_alert(scene: Scene) -> None:
    found = incident()
    recovery = scene.report(scene.fail_with(found), "failed", detail="no permission")
    scene.now += 10_000
    decision = scene.alert(found, starts_at="2026-01-01T09:00:00Z")
    assert (decision.outcome, decision.recovery_id) == ("attached", recovery.id)
    assert len(scene.engine.recoveries()) == 1


def test_one_signal_alone_waits_until_a_second_agrees(scene: Scene) -> None:
    kl, grad = incident("surge", "kl", onset=49), incident("gradient_instability", "grad_norm", onset=50)
    scene.open(kl)
    assert scene.alert(kl).outcome == "pending"
    for _ in range(20):
        scene.tick()
    assert scene.kinds() == ["alert_agreement"], "waiting is said once"
    assert scene.engine.recoveries() == []
    received = scene.now - 20
    scene.open(grad)
    scene.tick()
    (recovery,) = scene.engine.recoveries()
    assert {i["signal"] for i in recovery.incidents} == {"kl", "grad_norm"}
    assert recovery.times.alert_received == received


def test_a_second_signal_counts_as_soon_as_its_incident_opens(scene: Scene) -> None:
    kl, grad = incident("surge", "kl"), incident("gradient_instability", "grad_norm")
    scene.open(kl)
    scene.alert(kl)
    scene.open(grad)
    assert scene.engine.on_incident(grad, scene.facts, scene.now) is None
    assert len(scene.engine.recoveries()) == 1


def test_the_same_signal_twice_is_no_agreement(scene: Scene) -> None:
    kl = incident("surge", "kl")
    scene.open(kl, replace(kl, id="again"))
    assert scene.alert(kl).outcome == "pending"


@pytest.mark.parametrize(
    "second",
    [
        incident("gradient_instability", "grad_norm"),
        incident("surge", "grad_norm", id="again"),
    ],
)
def test_one_signal_seen_by_two_detectors_is_no_agreement(scene: Scene, second: OpenIncident) -> None:
    grad = incident("surge", "grad_norm")
    scene.open(grad, second)
    decision = scene.alert(grad)
    assert decision.outcome == "pending"
    assert "2 signals have to agree or one be certain; so far it is 1: surge on grad_norm" in decision.reason
    assert scene.alert(second).outcome == "pending"
    assert scene.engine.recoveries() == []
    scene.open(incident("surge", "kl"))
    scene.tick()
    (recovery,) = scene.engine.recoveries()
    assert len(recovery.incidents) >= 2


@pytest.mark.parametrize(("one", "other"), [("kl", "ppo_kl"), ("loss", "pg_loss"), ("kl", "rollout_kl")])
def test_two_signals_that_say_nearly_the_same_are_no_agreement(scene: Scene, one: str, other: str) -> None:
    first = incident("surge", one)
    scene.open(first, incident("surge", other))
    assert scene.alert(first).outcome == "pending"


def test_two_findings_that_cannot_come_of_one_fault_are_no_agreement(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(triggers=(Trigger(detectors=("surge", "memory")),))
    kl = incident("surge", "kl")
    scene.open(kl, incident("memory", "gpu_memory"))
    assert scene.alert(kl).outcome == "pending"


SITUATION = "surge/kl"


def test_the_alert_of_a_situation_stands_for_what_is_left_of_it_when_its_first_finding_is_over(scene: Scene) -> None:
    first = incident("surge", "kl", situation=SITUATION)
    scene.open(*(incident("surge", s, situation=SITUATION) for s in ("grad_norm", "entropy")))
    assert scene.alert(first).outcome == "planned"
    (recovery,) = scene.engine.recoveries()
    assert {i["signal"] for i in recovery.incidents} == {"grad_norm", "entropy"}


def test_the_alert_of_a_situation_that_became_worse_is_judged_by_the_finding_that_did(scene: Scene) -> None:
    mild = incident("surge", "kl", severity=Severity.WARNING, situation=SITUATION)
    scene.open(mild, incident(situation=SITUATION))
    assert scene.alert(mild).outcome == "planned"


def test_an_alert_does_not_stand_for_another_situation(scene: Scene) -> None:
    scene.open(incident("surge", "kl", severity=Severity.WARNING, situation=SITUATION), incident(situation="other/one"))
    decision = scene.alert(incident("surge", "kl"))
    assert (decision.outcome, scene.engine.recoveries()) == ("refused", [])
    assert "trigger nothing" in decision.reason


def test_a_finding_that_joins_a_situation_joins_its_recovery_with_the_repeat_of_the_alert(scene: Scene) -> None:
    first = incident(situation="non_finite/loss")
    recovery = scene.fail_with(first)
    scene.report(recovery, "accepted", "stopping")
    scene.open(incident("surge", "kl", situation="non_finite/loss"))
    scene.now += 60
    assert scene.alert(first).outcome == "attached"
    assert {i["signal"] for i in scene.recovery(recovery.id).incidents} == {"loss", "kl"}
    assert scene.alert(first).outcome == "duplicate"
    assert len(scene.engine.recoveries()) == 1


def test_a_finding_that_joins_after_a_recovery_failed_is_answered_afresh_and_once(scene: Scene) -> None:
    first = incident(situation="non_finite/loss")
    scene.report(scene.fail_with(first), "failed", detail="no permission")
    scene.now += 10_000
    assert scene.alert(first).outcome == "duplicate"
    scene.open(incident("surge", "kl", situation="non_finite/loss"))
    assert scene.alert(first).outcome == "planned"
    assert scene.alert(first).outcome == "duplicate"
    assert len(scene.engine.recoveries()) == 2


def test_an_alert_that_waits_is_dropped_when_its_incident_is_over(scene: Scene) -> None:
    kl = incident("surge", "kl")
    scene.open(kl)
    scene.alert(kl)
    scene.facts = replace(scene.facts, incidents=())
    scene.tick()
    scene.tick()
    assert scene.kinds() == ["alert_agreement", "alert_no_incident"]


def test_a_resolved_alert_is_noted_and_does_nothing(scene: Scene) -> None:
    found = incident()
    scene.open(found)
    for _ in range(2):
        assert scene.alert(found, status="resolved").outcome == "resolved"
    assert scene.engine.recoveries() == []
    assert scene.kinds() == ["alert_resolved"]


def test_resolved_after_a_recovery_is_noted_once_and_changes_nothing(scene: Scene) -> None:
    found = incident()
    recovery = scene.fail_with(found)
    for _ in range(3):
        scene.alert(found, status="resolved")
    assert scene.kinds() == ["alert_planned", "alert_resolved"]
    assert scene.recovery(recovery.id) == recovery
    assert scene.alert(found).outcome == "duplicate"


def test_a_forged_or_stale_alert_finds_nothing_to_act_on(scene: Scene) -> None:
    for _ in range(3):
        assert scene.alert(incident()).outcome == "refused"
    assert scene.engine.recoveries() == []
    assert scene.kinds() == ["alert_no_incident"]


def test_an_alert_for_an_unknown_run_is_refused_and_noted(scene: Scene) -> None:
    decision = scene.engine.on_alert(alert_of(incident()), None, scene.now)
    assert decision.outcome == "refused"
    assert RUN in decision.reason
    assert scene.kinds() == ["alert_unknown_run"]


def test_an_alert_refused_as_unknown_is_judged_afresh_when_it_comes_again(scene: Scene) -> None:
    found = incident()
    scene.engine.on_alert(alert_of(found), None, scene.now)
    scene.open(found)
    assert scene.alert(found).outcome == "planned"


def test_an_alert_without_the_rollback_action_triggers_nothing(scene: Scene) -> None:
    found = incident()
    scene.open(found)
    alert = alert_of(found)
    labels = {k: v for k, v in alert.labels.items() if k != "action"}
    assert scene.engine.on_alert(replace(alert, labels=labels), scene.facts, scene.now).outcome == "refused"


def test_an_incident_of_a_former_attempt_triggers_nothing(scene: Scene) -> None:
    scene.facts = replace(scene.facts, attempt=2)
    found = incident(attempt=1)
    scene.open(found)
    assert scene.alert(found).outcome == "refused"


def test_the_policy_says_which_detectors_and_severities_trigger(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(triggers=(Trigger(detectors=("surge",), severity="critical"),))
    nan, kl = incident(), incident("surge", "kl", severity=Severity.WARNING, confidence=1.0)
    scene.open(nan, kl)
    assert scene.alert(nan).outcome == "refused"
    assert scene.alert(kl).outcome == "refused"


def test_direct_mode_needs_no_alertmanager_and_no_second_signal_is_skipped(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(trigger="direct")
    kl, grad = incident("surge", "kl"), incident("gradient_instability", "grad_norm")
    scene.open(kl)
    first = scene.engine.on_incident(kl, scene.facts, scene.now)
    assert first is not None
    assert first.outcome == "pending"
    scene.open(grad)
    scene.tick()
    assert len(scene.engine.recoveries()) == 1
    second = scene.engine.on_incident(grad, scene.facts, scene.now)
    assert second is not None
    assert second.outcome == "attached"


def test_observe_records_what_it_would_do_and_commands_nothing(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="observe")
    recovery = scene.fail_with(incident())
    assert (recovery.stage, recovery.planned_target_step) == ("observed", 48)
    assert scene.engine.pending_command(RUN, scene.now) is None
    state = scene.engine.state_of(RUN)
    assert (state.failed, state.in_progress, state.outcomes) == (False, False, {"observed": 1})


def test_what_was_only_observed_is_carried_out_once_the_mode_allows(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="observe")
    found = incident()
    scene.fail_with(found)
    scene.policy = RecoveryPolicy(mode="auto")
    scene.restart()
    assert scene.alert(found).outcome == "planned"
    assert scene.alert(found).outcome == "duplicate"
    assert [recovery.stage for recovery in scene.engine.recoveries()] == ["commanded", "observed"]


def test_the_cooldown_holds_the_next_recovery_back_and_then_lets_it_go(scene: Scene) -> None:
    done = scene.carry_out(scene.fail_with(incident()))
    assert done.stage == "succeeded"
    again = incident("non_finite", "grad_norm", onset=50, id="second", attempt=2)
    scene.facts = replace(scene.facts, incidents=(again,))
    assert scene.alert(again).outcome == "pending"
    scene.tick(50)
    assert len(scene.engine.recoveries()) == 1
    scene.tick(20)
    assert len(scene.engine.recoveries()) == 2


def test_a_spent_budget_refuses_and_tells_a_person(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(budget_per_day=1, cooldown_seconds=0.0)
    scene.carry_out(scene.fail_with(incident()))
    again = incident(id="second", attempt=2)
    scene.facts = replace(scene.facts, incidents=(again,))
    decision = scene.alert(again, starts_at="2026-01-01T02:00:00Z")
    assert decision.outcome == "refused"
    assert "budget of 1" in decision.reason
    assert scene.engine.state_of(RUN).failed
    assert decision.recovery_id is not None
    scene.engine.acknowledge(decision.recovery_id, "ada", scene.now)
    assert not scene.engine.state_of(RUN).failed


def test_an_alert_that_never_stopped_firing_counts_for_the_next_incident_of_the_same_attempt(scene: Scene) -> None:
    found = incident()
    scene.report(scene.fail_with(found), "failed", detail="no permission")
    scene.now += 10_000
    scene.facts = replace(scene.facts, incidents=(incident(id="the next", opened_at=scene.now),))
    assert scene.alert(found).outcome == "planned"


def test_in_observe_mode_a_spent_budget_is_written_down_and_nobody_is_paged(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="observe", budget_per_day=1, cooldown_seconds=0.0)
    scene.fail_with(incident())
    second = incident("non_finite", "grad_norm", id="second")
    scene.open(second)
    assert "budget of 1" in scene.alert(second).reason
    assert not scene.engine.state_of(RUN).failed
    scene.policy = structs.replace(scene.policy, mode="auto")
    scene.restart()
    assert scene.alert(second).outcome == "planned", "what was only observed stands in the way of nothing"


def test_an_incident_of_a_journal_that_was_lost_does_not_stand_in_the_way_of_its_namesake(scene: Scene) -> None:
    scene.carry_out(scene.fail_with(incident()))
    scene.now += 100_000
    scene.facts = replace(scene.facts, attempt=1, incidents=(incident(opened_at=scene.now),))
    assert scene.alert(scene.facts.incidents[0], starts_at="2026-03-01T00:00:00Z").outcome == "planned"


@pytest.mark.parametrize(
    ("field", "value"),
    [("agreement", 0), ("certainty", 1.5), ("margin_steps", -1), ("budget_per_day", 0), ("cooldown_seconds", -1.0),
     ("success_steps", 0), ("triggers", ())],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused_with_a_sentence(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        RecoveryPolicy(**{field: value})  # type: ignore[arg-type]


def test_a_clock_that_was_set_back_far_does_not_stretch_the_cooldown(scene: Scene) -> None:
    scene.report(scene.fail_with(incident()), "failed")
    second = incident("non_finite", "grad_norm", id="second")
    scene.open(second)
    scene.now -= 1.0
    assert scene.alert(second).outcome == "pending", "a little back is no end of the cooldown"
    scene.now -= 50_000
    scene.tick()
    assert len(scene.engine.recoveries()) == 2
