"""The configuration diff of a plan: what the supervisor will change, old beside new, and why this checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recovery_scene import RUN, Scene, checkpoint, incident

from exporter.recovery.changes import MOST_CANDIDATES, RESUME_MODE, RESUME_PATH
from exporter.recovery.facts import AttemptFacts
from exporter.recovery.record import Recovery
from trainer_entry.supervisor import overrides

CONFIG = {"trainer.resume_mode": "auto", "trainer.resume_from_path": None, "actor_rollout_ref.actor.optim.lr": 1e-6}


def planned(scene: Scene, **facts: object) -> Recovery:
    scene.facts = replace(scene.facts, config=CONFIG, **facts)  # type: ignore[arg-type]
    return scene.fail_with(incident(onset=42))


def shown(recovery: Recovery) -> dict[str, tuple[object, object, bool]]:
    return {it.name: (it.old, it.new, it.known) for it in recovery.changes}


def test_old_beside_new_of_all_that_the_supervisor_changes_and_of_nothing_else(scene: Scene) -> None:
    recovery = planned(scene)
    assert shown(recovery) == {
        "attempt": (1, 2, True),
        "first_step": (None, 41, False),
        RESUME_MODE: ("auto", "resume_path", True),
        RESUME_PATH: (None, "/ckpt/global_step_40", True),
    }
    assert recovery.planned_at_step == 50


def test_they_are_what_the_supervisor_really_changes(scene: Scene) -> None:
    recovery = planned(scene)
    before = ("python", "-m", "main", "trainer.resume_mode=auto", "x=1")
    command = overrides.TrainerCommand(before, "/")
    after = overrides.TrainerCommand(command.resuming_from(recovery.planned_target_path), "/")
    settings = {it.name: it.new for it in recovery.changes if it.kind == "setting"}
    assert {name: after.override(name) for name in settings} == settings
    changed = {word.split("=")[0] for word in set(after.argv) ^ set(before)}
    assert changed == settings.keys()


def test_an_attempt_that_was_itself_resumed_says_from_where(scene: Scene) -> None:
    attempts = (AttemptFacts(1, 0), AttemptFacts(2, 20))
    scene.facts = replace(scene.facts, attempt=2, attempts=attempts, config={})
    recovery = scene.fail_with(incident(onset=42, attempt=2))
    assert shown(recovery)["first_step"] == (21, 21, True), "the checkpoint of step 40 is of a course that was left"
    assert shown(recovery)[RESUME_MODE] == (None, "resume_path", False)


def test_a_stop_changes_nothing(scene: Scene) -> None:
    recovery = planned(scene, checkpoints=())
    assert (recovery.action, recovery.changes, recovery.candidates) == ("stop", (), ())


def test_every_newer_checkpoint_is_named_with_why_it_is_not_taken(scene: Scene) -> None:
    recovery = planned(scene, checkpoints=(*scene.facts.checkpoints, checkpoint(44, verified=False)))
    verdicts = [(it.step, it.eligible) for it in recovery.candidates]
    assert verdicts == [(48, False), (44, False), (40, True), (20, True)]
    reasons = {it.step: it.reason for it in recovery.candidates}
    assert "newer than step 40" in reasons[48]
    assert "not verified" in reasons[44]


def test_a_run_with_thousands_of_checkpoints_keeps_those_around_the_target(scene: Scene) -> None:
    many = tuple(checkpoint(step) for step in range(1, 3000))
    recovery = planned(scene, checkpoints=many, step=3000)
    assert len(recovery.candidates) == MOST_CANDIDATES
    assert next(it.step for it in recovery.candidates if it.eligible) == recovery.planned_target_step == 40
    assert recovery.candidates[-1].step == 36


def test_both_move_with_a_target_that_moves_back_and_the_audit_says_so(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(mode="approve")
    recovery = planned(scene)
    scene.open(incident("surge", "kl", onset=30, confidence=1.0))
    scene.tick()
    recovery = scene.recovery(recovery.id)
    assert recovery.planned_target_step == 20
    assert shown(recovery)[RESUME_PATH] == (None, "/ckpt/global_step_20", True)
    assert [(it.step, it.eligible) for it in recovery.candidates] == [(48, False), (40, False), (20, True)]
    line = scene.engine.audit()[0]
    assert line.summary == "Still awaiting approval; the target moved back from step 40 to step 20."


def test_it_survives_a_restart(scene: Scene) -> None:
    recovery = planned(scene)
    scene.restart()
    assert scene.recovery(recovery.id) == recovery
    assert scene.engine.state_of(RUN).active == recovery
