"""A run has one state at any time, the first that holds; the page, the console and the list of dormant runs agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exporter_scene import Scene
from pages import exposition, samples

from exporter.detectors.registry import build_detectors
from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    CheckpointSaved,
    CommandProgress,
    OpenPhase,
    PhaseReport,
    RunFinished,
)
from exporter.recovery.facts import Alert
from exporter.recovery.policy import RecoveryPolicy, Trigger
from exporter.recovery.record import Recovery
from exporter.recovery.record import RunState as RecoveryState
from exporter.service import snapshot
from exporter.service.run_state import STATES, run_state

TRIGGERS = (Trigger(detectors=("scripted_step",)),)


class Watched:
    """A run in a scene, under a supervisor unless it is told otherwise."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._shown = exposition(scene)

    @property
    def state(self) -> str:
        """On the page; it is there once."""
        page = samples(self._shown.render().body.decode())
        found = [dict(labels) for (name, labels), value in page.items() if name == "verl_run_state" and value == 1]
        (labels,) = [labels for labels in found if labels["run"] == "r"]
        assert labels["state"] in STATES
        return labels["state"]

    def supervisor(self, *events: Any, attempt: int = 1) -> Any:
        return self.scene.push(sender="sup", role="supervisor", attempt=attempt, events=list(events)).command

    def start(self, attempt: int = 1) -> None:
        self.supervisor(AttemptStarted(time=0.0, pid=1), attempt=attempt)

    def exit(self, attempt: int = 1, **how: Any) -> None:
        self.supervisor(AttemptExited(time=0.0, **how), attempt=attempt)

    def beat(self, attempt: int = 1) -> None:
        self.scene.push(attempt=attempt, phase=PhaseReport(step=1, open=[OpenPhase(name="step", seconds=1.0)]))

    def fail(self, *steps: int) -> None:
        """A checkpoint, then steps of which the last is critical, and its alert."""
        for step in steps[:-1]:
            self.scene.step(step)
        saved = CheckpointSaved(time=0.0, step=1, path="/c/global_step_1", verified=True)
        self.scene.push(events=[saved])
        self.scene.step(steps[-1], grad=500.0)
        labels = {"run": "r", "detector": "scripted_step", "signal": "grad_norm", "action": "rollback"}
        alert = Alert(fingerprint="f", starts_at="2026-01-01T00:00:00Z", status="firing", labels=labels)
        self.scene.core.alert(alert, self.scene.now)

    @property
    def recovery(self) -> Recovery:
        return self.scene.engine.recoveries()[0]


@pytest.fixture
def watched(scene: Scene) -> Watched:
    return Watched(scene)


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Watched]:
    def watched(**options: Any) -> Watched:
        scene = Scene(tmp_path, **options)
        request.addfinalizer(scene.close)
        return Watched(scene)

    return watched


def test_an_attempt_is_starting_until_its_first_step(watched: Watched) -> None:
    watched.supervisor()
    assert watched.state == "starting"
    watched.start()
    watched.beat()
    assert watched.state == "starting"
    watched.scene.step(1)
    assert watched.state == "training"
    watched.exit(exit_code=1)
    watched.start(attempt=2)
    assert watched.state == "starting"


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ({"exit_code": 0, "expected": True}, "finished"),
        ({"exit_code": None, "signal": 15, "expected": True}, "stopped"),
        ({"exit_code": 143, "expected": True}, "stopped"),
        ({"exit_code": 1}, "failed"),
        ({"exit_code": None, "signal": 9}, "failed"),
        ({"exit_code": None}, "failed"),
    ],
)
def test_the_supervisor_says_how_it_ended(watched: Watched, how: dict[str, Any], state: str) -> None:
    watched.start()
    watched.scene.step(1)
    watched.exit(**how)
    assert watched.state == state


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (None, "finished"), (1, "failed")])
def test_without_a_supervisor_verl_says_how_it_ended(watched: Watched, code: int | None, state: str) -> None:
    watched.scene.step(1)
    watched.scene.push(events=[RunFinished(time=0.0, exit_code=code)])
    assert watched.state == state


def test_a_trainer_that_says_it_failed_keeps_its_state_until_the_supervisor_says_why(watched: Watched) -> None:
    watched.start()
    watched.scene.step(1)
    watched.scene.push(events=[RunFinished(time=0.0, exit_code=1)])
    assert watched.state == "training"
    watched.exit(exit_code=1, expected=True)
    assert watched.state == "stopped"
    watched.scene.step(1, run="r", attempt=2)
    watched.scene.push(attempt=2, events=[RunFinished(time=0.0, exit_code=1)])
    assert watched.state == "training"
    watched.scene.now += 31.0  # and a supervisor that died says nothing any more
    assert watched.state == "failed"


def test_it_is_silent_while_the_detector_says_so(make: Callable[..., Watched]) -> None:
    watched = make(detectors=build_detectors)
    watched.start()
    for step in range(1, 4):
        watched.scene.step(step)
    watched.scene.tick(times=59)
    assert watched.state == "training"
    watched.scene.tick(times=3)
    assert watched.state == "silent"
    watched.beat()
    watched.scene.tick()
    assert watched.state == "training", "it is heard, though the incident is open for a while yet"
    assert "silent_run" in watched.scene.incidents()


def test_time_in_which_the_exporter_was_away_makes_no_run_silent(make: Callable[..., Watched]) -> None:
    watched = make(detectors=build_detectors)
    watched.start()
    watched.scene.step(1)
    watched.scene.tick()
    watched.scene.now += 3600.0
    watched.scene.tick()
    assert watched.state == "training"


def test_without_the_detector_its_limits_decide(watched: Watched) -> None:
    watched.start()
    watched.beat()
    watched.scene.now += 899.0
    assert watched.state == "starting"
    watched.scene.now += 2.0
    assert watched.state == "silent"
    watched.scene.step(1)
    watched.scene.now += 119.0
    assert watched.state == "training"
    watched.scene.now += 2.0
    assert watched.state == "silent"


def test_a_plan_waits_then_is_carried_out_then_the_run_trains(make: Callable[..., Watched]) -> None:
    watched = make(policy=RecoveryPolicy(mode="approve", success_steps=1, triggers=TRIGGERS))
    watched.start()
    watched.fail(1, 2, 3)
    assert watched.state == "awaiting_approval"
    watched.scene.now += 300.0  # also where it is silent besides
    assert watched.state == "awaiting_approval"
    watched.scene.engine.approve(watched.recovery.id, "anna", watched.scene.now)
    assert watched.state == "recovering"
    command = watched.supervisor()
    for state in ("accepted", "stopping", "stopped"):
        watched.supervisor(CommandProgress(time=0.0, command_id=command.id, state=state))
    watched.exit(exit_code=None, signal=15, expected=True)
    assert watched.state == "recovering", "that its attempt ended is part of it"
    watched.start(attempt=2)
    watched.supervisor(CommandProgress(time=0.0, command_id=command.id, state="succeeded", target_step=1), attempt=2)
    assert watched.state == "recovering"
    watched.scene.step(2, attempt=2)
    assert watched.recovery.stage == "succeeded"
    assert watched.state == "training"


def test_a_recovery_that_failed_counts_until_a_person_knows_or_a_newer_attempt_runs(
    make: Callable[..., Watched],
) -> None:
    watched = make(policy=RecoveryPolicy(mode="auto", triggers=TRIGGERS))
    watched.start()
    watched.fail(1, 2, 3)
    command = watched.supervisor()
    watched.supervisor(CommandProgress(time=0.0, command_id=command.id, state="failed", detail="no disk"))
    watched.scene.step(4)
    assert watched.state == "failed", "the trainer goes on, and nobody mends it"
    watched.start(attempt=2)
    assert watched.state == "starting", "somebody has started it again"
    watched.scene.step(1, attempt=2)
    assert watched.state == "training"


def test_acknowledging_a_failed_recovery_leaves_the_state_to_the_trainer(make: Callable[..., Watched]) -> None:
    watched = make(policy=RecoveryPolicy(mode="auto", triggers=TRIGGERS))
    watched.start()
    watched.fail(1, 2, 3)
    command = watched.supervisor()
    watched.supervisor(CommandProgress(time=0.0, command_id=command.id, state="failed", detail="no disk"))
    assert watched.state == "failed"
    watched.scene.engine.acknowledge(watched.recovery.id, "anna", watched.scene.now)
    assert watched.state == "training"


def test_a_trainer_that_a_recovery_stopped_is_stopped_whatever_its_exit_code(make: Callable[..., Watched]) -> None:
    stop = (Trigger(detectors=("scripted_step",), action="stop"),)
    watched = make(policy=RecoveryPolicy(mode="auto", triggers=stop))
    watched.start()
    watched.fail(1, 2, 3)
    command = watched.supervisor()
    watched.exit(exit_code=0, expected=True)
    for state in ("accepted", "stopping", "stopped", "succeeded"):
        watched.supervisor(CommandProgress(time=0.0, command_id=command.id, state=state))
    assert watched.recovery.stage == "succeeded"
    assert watched.state == "stopped"


def test_a_store_that_cannot_be_read_leaves_the_state_to_the_trainer(watched: Watched) -> None:
    watched.start()
    watched.scene.step(1)
    run = watched.scene.run()
    assert run_state(run, None, watched.scene.now) == run_state(run, RecoveryState(), watched.scene.now) == "training"


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ({"exit_code": 0, "expected": True}, "finished"),
        ({"exit_code": 143, "expected": True}, "stopped"),
        ({"exit_code": 1}, "failed"),
        (None, "silent"),
    ],
)
def test_a_run_that_is_on_disk_only_keeps_its_last_state(
    watched: Watched, how: dict[str, Any] | None, state: str
) -> None:
    watched.start()
    watched.scene.step(1)
    if how is not None:
        watched.exit(**how)
    summary = snapshot.read_summary(snapshot.summarise(watched.scene.run()))
    assert summary.run_state == state
