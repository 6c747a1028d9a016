"""What an operator asks of the exporter: what comes in, what is refused, the journal, the detectors, sinks, faults."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from exporter_scene import Scene, Scripted
from pages import everything, exposition, samples, text, value

from exporter.protocol import AttemptStarted, CheckpointSaved, CommandProgress
from exporter.recovery.facts import Alert
from exporter.recovery.policy import RecoveryPolicy, Trigger
from exporter.service.admission import Limits
from exporter.service.exposition import Ingest
from exporter.service.sinks.contract import SinkHealth


def test_what_comes_in_is_counted_once(scene: Scene) -> None:
    scene.push(seq=1, steps=[])
    scene.step(1, grad=1.0, loss=0.5)
    scene.push(seq=1, steps=[])
    page = text(scene)
    assert value(page, "verl_sentinel_batches_total", outcome="accepted") == 2
    assert value(page, "verl_sentinel_batches_total", outcome="duplicate") == 1
    assert value(page, "verl_sentinel_ingested_steps_total") == 1
    assert value(page, "verl_sentinel_ingested_samples_total") == 2
    assert value(page, "verl_sentinel_runs") == 1
    assert value(page, "verl_sentinel_runs_limit") == Limits().runs


def test_what_is_refused_is_counted_by_reason(scene: Scene) -> None:
    ingest = Ingest()
    for reason in ("token", "too_large", "token"):
        ingest.reject(reason)
    page = exposition(scene, ingest).render().body.decode()
    assert value(page, "verl_sentinel_rejected_total", reason="token") == 2
    assert value(page, "verl_sentinel_rejected_total", reason="too_large") == 1


def test_the_journal_tells_how_long_its_transactions_take(scene: Scene) -> None:
    scene.step(1)
    scene.core.recorder.health.committed(3, 0, 0.03)
    scene.core.recorder.health.queued = 7
    page = text(scene)
    assert value(page, "verl_sentinel_journal_queue_entries") == 7
    assert value(page, "verl_sentinel_journal_entries_total") == 4
    name = "verl_sentinel_journal_commit_duration_seconds"
    assert value(page, f"{name}_count") == 2
    assert value(page, f"{name}_bucket", le="0.05") - value(page, f"{name}_bucket", le="0.025") == 1
    assert value(page, f"{name}_sum") == pytest.approx(0.03)
    scene.core.journal_error = "The disk is full."
    page = text(scene)
    assert value(page, "verl_sentinel_journal_error") == 1
    assert value(page, "verl_sentinel_ready") == 0


def test_the_time_of_each_detector_adds_up_over_the_runs(scene: Scene) -> None:
    for run in ("a", "b"):
        scene.step(1, run=run)
        scene.step(2, run=run)
    scene.tick()
    page = text(scene)
    name = "verl_sentinel_detector_duration_seconds"
    assert value(page, f"{name}_count", detector="scripted_step") == 4
    assert value(page, f"{name}_count", detector="scripted_live") == 2
    assert value(page, f"{name}_sum", detector="scripted_step") > 0


def test_a_sink_tells_how_far_it_is_behind(scene: Scene) -> None:
    behind = SinkHealth(name="influxdb", up=False, lag_entries=3, lag_seconds=1.5, dropped_entries=2, failed_writes=4)
    page = exposition(scene, sinks=lambda: [behind]).render().body.decode()
    assert value(page, "verl_sentinel_sink_up", sink="influxdb") == 0
    assert value(page, "verl_sentinel_sink_lag_seconds", sink="influxdb") == 1.5
    assert value(page, "verl_sentinel_sink_lag_entries", sink="influxdb") == 3
    assert value(page, "verl_sentinel_sink_dropped_entries_total", sink="influxdb") == 2
    assert value(page, "verl_sentinel_sink_failed_writes_total", sink="influxdb") == 4
    assert not [name for name, _ in samples(text(scene)) if "_sink_" in name]


def test_a_scrape_tells_of_the_ones_before_it(scene: Scene) -> None:
    shown = everything(scene)
    name = "verl_sentinel_scrape_duration_seconds"
    assert value(shown.render().body.decode(), f"{name}_count", stage="render") == 0
    shown.render("", "gzip")
    page = shown.render().body.decode()
    assert value(page, f"{name}_count", stage="render") == 2
    assert value(page, f"{name}_count", stage="compress") == 1
    assert value(page, f"{name}_sum", stage="render") > 0


def test_the_process_tells_of_its_memory_and_its_files(scene: Scene) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("there is no /proc here")
    page = text(scene)
    assert value(page, "process_resident_memory_bytes") > 1e6
    assert value(page, "process_cpu_seconds_total") > 0
    assert value(page, "process_open_fds") > 2


class Broken:
    """A detector whose expectation cannot be had."""

    name = "broken"

    def observe(self, sample: Any) -> list[Any]:
        return []

    def expected(self) -> dict[str, Any]:
        raise ZeroDivisionError

    def resumed(self, step: int, attempt: int) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        return None


def test_a_run_that_cannot_be_shown_does_not_hide_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = iter([Scripted(step=(Broken(),)), Scripted()])  # type: ignore[arg-type]
    scene = Scene(tmp_path, detectors=lambda: next(sets))
    scene.step(1, run="bad")
    scene.step(1, run="good")
    shown = exposition(scene)
    with caplog.at_level(logging.ERROR):
        shown.render()
        page = shown.render().body.decode()
    assert value(page, "verl_grad_norm", run="good") == 1
    assert value(page, "verl_run_running", run="bad") == 1
    assert value(page, "verl_sentinel_scrape_faults_total") == 2
    assert len([record for record in caplog.records if "bad" in record.getMessage()]) == 1
    scene.close()


def test_a_recovery_is_shown_from_the_scrape_after_it_changed(tmp_path: Path) -> None:
    policy = RecoveryPolicy(mode="auto", success_steps=1, triggers=(Trigger(detectors=("scripted_step",)),))
    scene = Scene(tmp_path, policy=policy)
    shown = exposition(scene)

    def supervisor(attempt: int, *events: Any) -> Any:
        return scene.push(sender="sup", role="supervisor", attempt=attempt, events=list(events)).command

    def seen(name: str, **labels: str) -> float:
        return value(shown.render().body.decode(), name, run="r", **labels)

    supervisor(1, AttemptStarted(time=0.0, pid=1))
    scene.step(1)
    scene.step(2)
    scene.push(events=[CheckpointSaved(time=0.0, step=1, path="/c/global_step_1", verified=True)])
    scene.step(3, grad=500.0)
    assert (seen("verl_recovery_in_progress"), seen("verl_recovery_failed")) == (0, 0)
    labels = {"run": "r", "detector": "scripted_step", "signal": "grad_norm", "action": "rollback"}
    scene.core.alert(
        Alert(fingerprint="f", starts_at="2026-01-01T00:00:00Z", status="firing", labels=labels), scene.now
    )
    assert seen("verl_recovery_in_progress") == 1
    assert "verl_recoveries_total" not in shown.render().body.decode()
    command = supervisor(1)
    supervisor(1, CommandProgress(time=0.0, command_id=command.id, state="failed", detail="no disk"))
    scene.tick()
    assert (seen("verl_recovery_in_progress"), seen("verl_recovery_failed")) == (0, 1)
    assert seen("verl_recoveries_total", outcome="failed") == 1
    scene.close()
