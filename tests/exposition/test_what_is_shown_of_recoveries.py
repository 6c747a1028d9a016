"""The newest recovery with the seconds of its stages and its target, what is left of the budget, and the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exporter_scene import Scene
from pages import exposition, samples

from exporter.protocol import AttemptStarted, CheckpointSaved, CommandProgress
from exporter.recovery.facts import Alert
from exporter.recovery.policy import RecoveryPolicy, Trigger
from exporter.recovery.record import Recovery, Timeline
from exporter.recovery.timing import STAGES, stage_seconds

TRIGGERS = (Trigger(detectors=("scripted_step",)),)


class Failing:
    """A run under a supervisor that can fail again and again."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        options = {"success_steps": 1, "triggers": TRIGGERS, "cooldown_seconds": 0.0, "no_progress_steps": 0, **policy}
        self.scene = Scene(folder, policy=RecoveryPolicy(**options))
        self.shown = exposition(self.scene)
        self.attempt = 0

    def supervisor(self, *events: Any) -> Any:
        pushed = self.scene.push(sender="sup", role="supervisor", attempt=self.attempt, events=list(events))
        return pushed.command

    def start(self) -> None:
        self.attempt += 1
        self.supervisor(AttemptStarted(time=0.0, pid=1))

    def fail(self) -> None:
        for step in (1, 2):
            self.scene.step(step, attempt=self.attempt)
        saved = CheckpointSaved(time=0.0, step=1, path="/c/global_step_1", verified=True)
        self.scene.push(attempt=self.attempt, events=[saved])
        self.scene.step(3, attempt=self.attempt, grad=500.0)
        labels = {"run": "r", "detector": "scripted_step", "signal": "grad_norm", "action": "rollback"}
        alert = Alert(fingerprint="f", starts_at=f"2026-01-0{self.attempt}T00:00:00Z", status="firing", labels=labels)
        self.scene.core.alert(alert, self.scene.now)

    def progress(self, state: Any, seconds: float) -> None:
        self.scene.now += seconds
        command_id = self.scene.engine.recoveries()[0].id
        self.supervisor(CommandProgress(time=0.0, command_id=command_id, state=state))

    def recover(self) -> None:
        self.supervisor()
        for state in ("accepted", "stopping", "stopped"):
            self.progress(state, 1.0)
        self.start()
        self.scene.step(2, attempt=self.attempt)

    def page(self, name: str) -> dict[str, float]:
        """Values of a metric of this run, by the label that it has besides."""
        found = samples(self.shown.render().body.decode())
        return {
            next((v for k, v in labels if k != "run"), ""): value for (n, labels), value in found.items() if n == name
        }


@pytest.fixture
def failing(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def make(**policy: Any) -> Failing:
        run = Failing(tmp_path, **policy)
        request.addfinalizer(run.scene.close)
        run.start()
        return run

    return make


def test_each_stage_is_timed_while_it_lasts_and_after(failing: Any) -> None:
    run = failing(mode="approve")
    assert run.page("verl_recovery_stage_seconds") == {}
    run.fail()
    run.scene.now += 30.0
    assert run.page("verl_recovery_stage_seconds") == {"approval": 30.0, "total": 30.0}
    run.scene.engine.approve(run.scene.engine.recoveries()[0].id, "anna", run.scene.now)
    run.supervisor()
    run.progress("accepted", 2.0)
    run.progress("stopping", 0.0)
    run.scene.now += 4.0
    assert run.page("verl_recovery_stage_seconds") == {"approval": 30.0, "command": 2.0, "stop": 4.0, "total": 36.0}
    run.progress("stopped", 1.0)
    run.scene.now += 10.0
    run.start()
    run.scene.now += 20.0
    run.scene.step(2, attempt=2)
    ended = {"approval": 30.0, "command": 2.0, "stop": 5.0, "start": 10.0, "verify": 20.0, "total": 67.0}
    assert run.page("verl_recovery_stage_seconds") == ended
    run.scene.now += 500.0
    assert run.page("verl_recovery_stage_seconds") == ended


def test_the_target_is_what_is_planned_and_then_what_was_restored(failing: Any) -> None:
    run = failing(mode="auto")
    assert run.page("verl_recovery_target_step") == {}
    run.fail()
    assert run.page("verl_recovery_target_step") == {"": 1.0}
    run.supervisor()
    command_id = run.scene.engine.recoveries()[0].id
    run.supervisor(CommandProgress(time=0.0, command_id=command_id, state="accepted", target_step=0, target_path="/"))
    assert run.page("verl_recovery_target_step") == {"": 0.0}


def test_the_budget_is_spent_and_comes_back_after_a_day(failing: Any) -> None:
    run = failing(mode="auto", budget_per_day=2)
    assert run.page("verl_recovery_budget_remaining") == {"": 2.0}
    run.fail()
    assert run.page("verl_recovery_budget_remaining") == {"": 1.0}
    run.recover()
    run.scene.now += 3600.0
    run.fail()
    run.recover()
    assert run.page("verl_recovery_budget_remaining") == {"": 0.0}
    run.fail()
    assert run.scene.engine.recoveries()[0].refused_by_policy, "the page says what the engine goes by"
    assert run.page("verl_recovery_budget_remaining") == {"": 0.0}
    assert run.page("verl_run_state") == {"failed": 1.0}
    run.scene.now += 86_400.0 - 3600.0 + 10.0
    assert run.page("verl_recovery_budget_remaining") == {"": 1.0}


def test_what_is_only_observed_takes_no_time_and_has_a_target(failing: Any) -> None:
    run = failing(mode="observe")
    run.fail()
    assert run.page("verl_recovery_stage_seconds") == {}
    assert run.page("verl_recovery_target_step") == {"": 1.0}
    assert run.page("verl_run_state") == {"training": 1.0}


def test_the_audit_log_is_counted_by_kind_and_goes_on_after_a_restart(failing: Any, tmp_path: Path) -> None:
    run = failing(mode="auto")
    assert run.page("verl_sentinel_audit_entries_total") == {}
    run.fail()
    run.recover()

    def written() -> dict[str, float]:
        kinds = [entry.kind for entry in run.scene.engine.audit(1000)]
        return {kind: kinds.count(kind) for kind in kinds}

    assert run.page("verl_sentinel_audit_entries_total") == written()
    assert written()["succeeded"] == 1
    run.fail()
    assert run.page("verl_sentinel_audit_entries_total") == written()
    run.scene.restart()
    run.shown = exposition(run.scene)
    assert run.page("verl_sentinel_audit_entries_total") == written()


def test_a_store_that_cannot_be_read_keeps_the_count_of_before(failing: Any) -> None:
    run = failing(mode="auto")
    run.fail()
    before = run.page("verl_sentinel_audit_entries_total")
    run.recover()
    run.scene.store._db.execute("ALTER TABLE audit RENAME TO gone")
    assert run.page("verl_sentinel_audit_entries_total") == before
    assert run.page("verl_grad_norm")


def recovery(**fields: Any) -> Recovery:
    known = {"mode": "auto", "action": "rollback", "stage": "failed", "stage_since": 0.0, "reason": "", **fields}
    return Recovery(id="x", run_id="r", attempt=1, **known)


@pytest.mark.parametrize(
    ("made", "seconds"),
    [
        (
            recovery(times=Timeline(alert_received=0.0, planned=5.0, commanded=5.0, finished=125.0)),
            {"command": 120.0, "total": 125.0},
        ),
        (
            recovery(mode="approve", stage="refused", times=Timeline(planned=0.0, finished=60.0)),
            {"approval": 60.0, "total": 60.0},
        ),
        (
            recovery(
                times=Timeline(planned=0.0, commanded=0.0, accepted=1.0, starting=2.0, started=9.0, finished=20.0)
            ),
            {"command": 1.0, "start": 7.0, "verify": 11.0, "total": 20.0},
        ),
        (
            recovery(times=Timeline(planned=0.0, commanded=0.0, accepted=1.0, started=9.0, finished=20.0)),
            {"command": 1.0, "start": 8.0, "verify": 11.0, "total": 20.0},
        ),
        (
            recovery(
                action="stop",
                stage="succeeded",
                times=Timeline(planned=0.0, commanded=0.0, accepted=1.0, stopping=1.0, stopped=4.0, finished=4.0),
            ),
            {"command": 1.0, "stop": 3.0, "total": 4.0},
        ),
        (
            recovery(stage="refused", refused_by_policy=True, times=Timeline(planned=0.0, finished=0.0)),
            {},
        ),
    ],
)
def test_a_stage_that_did_not_happen_is_absent(made: Recovery, seconds: dict[str, float]) -> None:
    found = stage_seconds(made, 1000.0)
    assert found == seconds
    assert set(found) <= set(STAGES)
