"""The exposition: names, types, values, what leaves it and when; checked with the parser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporter_scene import Scene, Scripted, ScriptedLive
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    CheckpointSaved,
    GpuReading,
    HookMissing,
    HooksReported,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    RunFinished,
)
from exporter.service.exposition import Exposition, Ingest

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def exposition(scene: Scene, ingest: Ingest | None = None, *, ready: bool = True, **more: Any) -> Exposition:
    return Exposition(scene.core, ingest or Ingest(), lambda: scene.now, "1.2.3", lambda: ready, **more)


def text(scene: Scene, ingest: Ingest | None = None) -> str:
    return exposition(scene, ingest).render().body.decode()


def samples(scene: Scene, name: str, **labels: str) -> list[Any]:
    """Samples of that name whose labels include these."""
    families = text_string_to_metric_families(text(scene))
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return [sample for sample in found if labels.items() <= sample.labels.items()]


def value(scene: Scene, name: str, **labels: str) -> float:
    (sample,) = samples(scene, name, **labels)
    return float(sample.value)


def rich(scene: Scene) -> None:
    """A run of which everything is known, and a second one."""
    scene.push(sender="sup", role="supervisor", events=[AttemptStarted(time=0.0, pid=1)])
    scene.step(1, grad=1.0, loss=0.5, time=0.7, val=0.3)
    scene.step(2, grad=500.0, loss=0.4, time=90.0)
    scene.step(1, grad=500.0)
    scene.push(
        phase=PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=2.0)]),
        rollout=RolloutCounts(succeeded=9, failed=1, cancelled=2, in_flight=3),
        gpus=[GpuReading(node="n", index=0, uuid="GPU-1", memory_used_bytes=5, temperature_celsius=60.0)],
        events=[
            CheckpointSaved(time=0.0, step=1, path="/c/1", verified=True),
            CheckpointSaved(time=0.0, step=2, path="/c/2", verified=False),
            HooksReported(time=0.0, installed=["a", "b"], missing=[HookMissing(name="c", reason="moved")]),
        ],
    )
    scene.step(1, run="other", grad=math.nan)


def test_every_metric_that_the_rules_use_is_there(scene: Scene) -> None:
    rich(scene)
    assert value(scene, "verl_training_step", run="r") == 2
    assert value(scene, "verl_training_steps_total", run="r") == 2
    assert value(scene, "verl_training_steps_late_total", run="r") == 1
    assert value(scene, "verl_last_push_timestamp_seconds", run="r") == scene.now
    assert value(scene, "verl_grad_norm", run="r") == 500
    assert value(scene, "verl_validation_reward", run="r") == 0.3
    assert math.isnan(value(scene, "verl_grad_norm", run="other"))
    assert value(scene, "verl_phase_open_seconds", run="r", phase="gen") == 2
    assert value(scene, "verl_rollout_requests_total", run="r", outcome="failed") == 1
    assert value(scene, "verl_rollout_success_rate", run="r") == 0.9
    assert value(scene, "verl_checkpoint_last_saved_step", run="r") == 2
    assert value(scene, "verl_checkpoint_last_verified_step", run="r") == 1
    assert value(scene, "verl_hooks_in_place", run="r") == 2
    assert value(scene, "verl_hooks_expected", run="r") == 3
    assert value(scene, "verl_gpu_memory_used_bytes", run="r", node="n", index="0", uuid="GPU-1") == 5
    assert value(scene, "verl_gpu_lost", run="r") == 0
    assert value(scene, "verl_run_info", run="r", trainer="ppo_v1", verl_version="0.9.1", attempt="1") == 1
    labels = {"detector": "scripted_step", "signal": "grad_norm", "severity": "critical"}
    assert value(scene, "verl_incident_open", run="r", **labels) == 1
    for name in ("verl_recovery_failed", "verl_recovery_awaiting_approval", "verl_recovery_in_progress"):
        assert value(scene, name, run="r") == 0


def test_a_reading_that_a_gpu_does_not_support_is_absent_and_an_old_one_leaves(scene: Scene) -> None:
    rich(scene)
    assert samples(scene, "verl_gpu_power_watts") == []
    scene.now += 121
    assert samples(scene, "verl_gpu_memory_used_bytes") == []


def test_step_durations_are_a_histogram_from_a_tenth_of_a_second_to_two_hours(scene: Scene) -> None:
    rich(scene)
    name = "verl_training_step_duration_seconds"
    assert value(scene, f"{name}_bucket", run="r", le="0.5") == 0
    assert value(scene, f"{name}_bucket", run="r", le="1.0") == 1
    assert value(scene, f"{name}_bucket", run="r", le="120.0") == 2
    assert value(scene, f"{name}_count", run="r") == 2
    assert value(scene, f"{name}_sum", run="r") == 90.7
    bounds = [float(sample.labels["le"]) for sample in samples(scene, f"{name}_bucket", run="r")]
    assert (bounds[0], bounds[-2], bounds[-1]) == (0.1, 7200.0, math.inf)


def test_an_incident_leaves_when_it_is_resolved_and_its_count_stays(scene: Scene) -> None:
    scene.step(1, grad=500.0)
    for step in range(2, 12):
        assert samples(scene, "verl_incident_open")
        scene.step(step)
    assert samples(scene, "verl_incident_open") == []
    assert value(scene, "verl_incidents_total", detector="scripted_step", severity="critical") == 1


def test_a_severity_that_rises_moves_the_series(scene: Scene) -> None:
    scene.step(1, grad=50.0)
    assert [s.labels["severity"] for s in samples(scene, "verl_incident_open")] == ["warning"]
    scene.step(2, grad=500.0)
    assert [s.labels["severity"] for s in samples(scene, "verl_incident_open")] == ["critical"]


class Stalls(ScriptedLive):
    """Under the name of one whose findings hang together with others."""

    name = "stalled_phase"


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, detectors=lambda: Scripted(live=(Stalls(),)))
    yield scene
    scene.close()


def situations_shown(scene: Scene) -> list[tuple[str, str]]:
    found = samples(scene, "verl_situation_open")
    return [(f"{s.labels['detector']}/{s.labels['signal']}", s.labels["severity"]) for s in found]


def test_a_situation_is_one_series_under_the_name_of_its_first_finding_until_the_last_is_over(stalling: Scene) -> None:
    scene = stalling
    scene.step(1, grad=50.0)
    assert situations_shown(scene) == [("scripted_step/grad_norm", "warning")]
    scene.push(phase=PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=58.0)]))
    scene.tick(1.0, times=60)
    assert len(samples(scene, "verl_incident_open")) == 2
    assert situations_shown(scene) == [("scripted_step/grad_norm", "critical")]
    onsets = samples(scene, "verl_incident_onset_step", situation="scripted_step/grad_norm")
    assert {s.labels["signal"]: s.value for s in onsets} == {"grad_norm": 1, "gen": 2}
    for step in range(2, 12):
        scene.step(step)
    assert situations_shown(scene) == [("scripted_step/grad_norm", "critical")], "its first finding is over, it is not"
    scene.push(phase=PhaseReport(step=12, open=[]))
    scene.tick(1.0, times=40)
    assert situations_shown(scene) == []


def test_what_is_left_of_an_attempt_that_is_over_makes_no_page_of_its_own(stalling: Scene) -> None:
    scene = stalling
    scene.step(1, grad=500.0)
    scene.push(phase=PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=100.0)]))
    scene.tick()
    assert situations_shown(scene) == [("scripted_step/grad_norm", "critical")]
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=2)])
    assert situations_shown(scene) == [("scripted_step/grad_norm", "critical")]
    scene.step(1, attempt=2, sender="trainer-2", grad=50.0)
    assert situations_shown(scene) == [("scripted_step/grad_norm", "warning")]


def test_after_a_restart_the_situations_are_the_same(stalling: Scene) -> None:
    scene = stalling
    scene.step(1, grad=50.0)
    scene.push(phase=PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=100.0)]))
    scene.tick()
    before = [samples(scene, name) for name in ("verl_situation_open", "verl_incident_onset_step")]
    scene.restart()
    assert [samples(scene, name) for name in ("verl_situation_open", "verl_incident_onset_step")] == before
    assert before[0]


def test_a_run_that_ended_leaves_after_the_grace_time_and_one_that_fell_silent_stays(scene: Scene) -> None:
    scene.step(1, run="ended")
    scene.push(run="ended", events=[RunFinished(time=0.0, exit_code=0)])
    scene.step(1, run="silent")
    scene.now += 899
    assert samples(scene, "verl_training_step", run="ended")
    scene.now += 2
    assert not samples(scene, "verl_training_step", run="ended")
    scene.now += 86_400
    assert value(scene, "verl_last_push_timestamp_seconds", run="silent") < scene.now - 86_400


def test_a_run_that_died_with_an_open_page_stays_until_a_person_has_seen_it(scene: Scene) -> None:
    scene.step(1, grad=500.0)
    scene.push(sender="sup", role="supervisor", events=[AttemptExited(time=0.0, exit_code=1)])
    scene.now += 5000
    assert samples(scene, "verl_incident_open", run="r")
    scene.core.acknowledge(scene.incidents()["scripted_step"].id, "ada", scene.now, lambda _: None)
    assert not samples(scene, "verl_incident_open", run="r")


def test_a_label_value_with_quotes_and_backslashes_is_read_back_as_it_was(scene: Scene) -> None:
    name = 'a"b\\c{d}=,é'
    scene.step(1, run=name)
    assert value(scene, "verl_training_step", run=name) == 1


def test_nothing_is_said_of_runs_while_the_journal_is_being_read(scene: Scene) -> None:
    rich(scene)
    shown = exposition(scene, ready=False).render().body.decode()
    assert 'run="' not in shown
    assert "verl_sentinel_ready 0\n" in shown


def test_both_formats_parse_and_hold_the_same_names(scene: Scene) -> None:
    rich(scene)
    classic = {s.name for f in text_string_to_metric_families(text(scene)) for s in f.samples}
    new = {s.name for f in parse_openmetrics(exposition(scene).render(OPENMETRICS).body.decode()) for s in f.samples}
    assert classic == new
    assert all(name.startswith(("verl_", "process_")) for name in classic)


def test_no_sample_is_there_twice(scene: Scene) -> None:
    rich(scene)
    lines = [line.rpartition(" ")[0] for line in text(scene).splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
