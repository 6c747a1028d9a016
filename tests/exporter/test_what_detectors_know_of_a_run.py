"""Detectors are told what the trainer's configuration and the GPU readings say of a run, with every step and look."""

from __future__ import annotations

from typing import Any

import pytest
from exporter_scene import Scene

from exporter.detectors.setup import UNKNOWN, RunSetup
from exporter.incidents import Rules
from exporter.protocol import GpuReading, RunStarted
from exporter.service import known, snapshot

CONFIG = {"actor_rollout_ref.actor.optim.lr": 1e-6, "trainer.total_training_steps": 100}
GIB = 1024**3


def started(scene: Scene, config: dict[str, Any], sender: str = "trainer-1") -> None:
    scene.push(sender=sender, events=[RunStarted(time=scene.now, config=config)])


def reading(index: int, total: int | None = 80 * GIB, node: str = "n", **more: Any) -> GpuReading:
    return GpuReading(node=node, index=index, memory_total_bytes=total, **more)


def last_setup(scene: Scene) -> RunSetup:
    found = scene.run().detectors.step[0].seen[-1].setup
    assert isinstance(found, RunSetup)
    return found


def test_a_step_brings_what_the_configuration_promises(scene: Scene) -> None:
    scene.step(1)
    assert last_setup(scene) == UNKNOWN
    started(scene, CONFIG)
    scene.step(2)
    setup = last_setup(scene)
    assert setup.total_steps == 100
    assert setup.lr is not None
    assert setup.lr.peak == 1e-6


def test_the_configuration_of_a_new_attempt_takes_the_place_of_the_old_one(scene: Scene) -> None:
    started(scene, CONFIG)
    scene.step(1)
    scene.push(attempt=2, sender="trainer-2", events=[RunStarted(time=1.0, config={"optim.lr": 0.1})])
    scene.step(1, attempt=2, sender="trainer-2")
    setup = last_setup(scene)
    assert setup.lr is not None
    assert setup.lr.peak == 0.1
    assert setup.total_steps is None


def test_a_later_part_of_a_step_brings_it_too(scene: Scene) -> None:
    started(scene, CONFIG)
    scene.step(1)
    scene.step(1, val=0.5)
    assert last_setup(scene).total_steps == 100


def test_a_gpus_memory_is_that_of_the_smallest_that_tells(scene: Scene) -> None:
    scene.push(gpus=[reading(0), reading(1, 24 * GIB), reading(2, None)])
    scene.step(1)
    assert last_setup(scene).gpu_memory_bytes == 24 * GIB
    scene.push(gpus=[reading(1)])
    scene.step(2)
    assert last_setup(scene).gpu_memory_bytes == 80 * GIB


def test_a_look_shows_all_gpus_and_when_they_were_read(scene: Scene) -> None:
    scene.step(1)
    scene.push(gpus=[reading(10, utilization_ratio=0.5, memory_used_bytes=GIB), reading(2, lost=True)])
    scene.now += 7.0
    scene.push(gpus=[reading(0, node="a", temperature_celsius=70.0, power_watts=300.0)])
    view = scene.run().state.view(scene.now)
    ages = [(gpu.node, gpu.index, scene.now - gpu.read_at) for gpu in view.gpus]
    assert ages == [("a", 0, 0.0), ("n", 2, 7.0), ("n", 10, 7.0)]
    assert (view.gpus[0].temperature, view.gpus[0].power) == (70.0, 300.0)
    assert view.gpus[1].lost
    assert (view.gpus[2].utilization, view.gpus[2].memory_used) == (0.5, float(GIB))
    assert view.setup.gpu_memory_bytes == 80 * GIB


def test_a_look_shows_the_newest_reading_of_each_gpu(scene: Scene) -> None:
    for busy in (0.5, 0.9):
        scene.push(gpus=[reading(0, utilization_ratio=busy)])
        (gpu,) = scene.run().state.view(scene.now).gpus
        assert (gpu.utilization, gpu.read_at) == (busy, scene.now)
        scene.now += 5.0


def test_what_an_attempt_had_is_not_told_of_the_next(scene: Scene) -> None:
    scene.push(gpus=[reading(0)])
    scene.step(1)
    scene.step(1, attempt=2, sender="trainer-2")
    assert last_setup(scene).gpu_memory_bytes is None
    assert scene.run().state.view(scene.now).gpus == ()


def test_what_is_given_counts_in_place_of_what_the_run_tells(scene: Scene) -> None:
    started(scene, CONFIG)
    given = RunSetup(total_steps=7)
    scene.run().state.setup_override = given
    scene.step(1)
    assert last_setup(scene) == given
    assert scene.run().state.view(scene.now).setup == given


def test_a_restart_knows_the_same(scene: Scene) -> None:
    started(scene, CONFIG)
    scene.push(gpus=[reading(0)])
    scene.step(1)
    before = last_setup(scene)
    scene.restart()
    assert scene.run().state.setup == before


def test_a_snapshot_keeps_what_was_given(scene: Scene) -> None:
    scene.step(1)
    run = scene.run()
    given = RunSetup(total_steps=7, gpu_memory_bytes=float(80 * GIB), lr=None, uses_kl=True)
    run.state.setup_override = given
    again = snapshot.restore(snapshot.take(run), type(run.detectors), Rules())
    assert again.state.setup == given


def test_it_is_made_once_and_not_with_every_step(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = known.setup_of
    monkeypatch.setattr("exporter.service.state.setup_of", lambda *args: calls.append(1) or whole(*args))
    started(scene, CONFIG)
    for step in range(1, 20):
        scene.push(gpus=[reading(0, utilization_ratio=step / 20)])
        scene.step(step)
    assert len(calls) <= 2
