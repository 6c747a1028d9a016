"""A run that has something on every rung: a configuration and a version that ran healthy before, a broken GPU."""

from __future__ import annotations

from dataclasses import replace

from recovery_scene import Scene, checkpoint, incident

from exporter.detectors.base import Severity
from exporter.protocol import Excluded, Scalar, SettingApplied
from exporter.recovery.facts import AttemptFacts, OpenIncident
from exporter.recovery.record import Recovery

LR = "actor_rollout_ref.actor.optim.lr"
GOOD = {LR: 1e-6, "data.seed": 1, "trainer.default_local_dir": "/ckpt"}
BAD = {LR: 1e-2, "data.seed": 2, "trainer.default_local_dir": "/elsewhere"}
LOST = Excluded(node="node-b", gpu="GPU-1", reason="the GPU is lost")


def with_every_rung(scene: Scene) -> Scene:
    """Attempt 1 ran 40 steps healthy on verl 0.8.0 with the good rate; attempt 2 is on 0.9.1 with the bad one."""
    first = AttemptFacts(1, 0, config=GOOD, verl_version="0.8.0", healthy_steps=40)
    second = AttemptFacts(2, 40, config=BAD, verl_version="0.9.1", healthy_steps=3, executor="ray")
    scene.facts = replace(
        scene.facts,
        attempt=2,
        attempts=(first, second),
        checkpoints=tuple(checkpoint(step) for step in (20, 40)),
        config=BAD,
        verl_version="0.9.1",
        nodes_at_fault=(LOST,),
    )
    return scene


def failure(attempt: int = 2, onset: int = 45, **fields: object) -> OpenIncident:
    return incident("non_finite", "loss", onset, attempt=attempt, id=f"loss-{attempt}", **fields)


def next_attempt(scene: Scene, recovery: Recovery) -> int:
    """The supervisor carries the command out; a new attempt runs with what it changes. Its number."""
    command = scene.engine.pending_command(recovery.run_id, scene.now)
    assert command is not None
    assert command.id == recovery.id
    number = scene.facts.attempt + 1
    target = command.target_step or 0
    scene.report(recovery, "accepted", "stopping", "stopped", "starting", target=target)
    scene.facts = replace(scene.facts, incidents=(), config={**scene.facts.config, **command.changes.settings})
    scene.start_attempt(number, target)
    changed = replace(scene.facts.attempts[-1], changes=command.changes, executor="ray", config=scene.facts.config)
    scene.facts = replace(
        scene.facts,
        attempts=(*scene.facts.attempts[:-1], changed),
        verl_version=command.changes.verl_version or scene.facts.verl_version,
        step=target,
    )
    scene.report(recovery, "started", "succeeded", target=target)
    return number


def relapse(scene: Scene, recovery: Recovery) -> Recovery:
    """The recovery is carried out, and the same failure is there again in the new attempt."""
    number = next_attempt(scene, recovery)
    found = failure(number, onset=(recovery.planned_target_step or 0) + 2, opened_at=scene.now)
    scene.facts = replace(scene.facts, incidents=(found,), step=found.onset)
    scene.now += 1
    scene.engine.on_incident(found, scene.facts, scene.now)
    return scene.recovery(recovery.id)


def prove(scene: Scene, name: str = LR, wanted: Scalar = 1e-6, *, ok: bool = True, reason: str = "") -> None:
    scene.now += 1
    event = SettingApplied(time=scene.now, name=name, wanted=wanted, restored=1e-2, found=wanted, ok=ok, reason=reason)
    scene.engine.on_setting_applied(scene.facts.run_id, scene.facts.attempt, event, scene.now, scene.known)


def warning(detector: str) -> OpenIncident:
    return incident(detector, "kl", severity=Severity.WARNING, attempt=2)
