"""A page as a scraper reads it, and a run of which everything is known."""

from __future__ import annotations

import math
from typing import Any

from exporter_scene import Scene
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from exporter.protocol import (
    AttemptStarted,
    CheckpointChecked,
    CheckpointCopied,
    CheckpointPruned,
    CheckpointSaved,
    ClosedPhase,
    GpuReading,
    GradientHistogram,
    HookMissing,
    HooksReported,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    RunStarted,
    SettingApplied,
)
from exporter.service.archivist import ArchivistHealth
from exporter.service.exposition import Exposition, Ingest
from exporter.service.sinks.contract import SinkHealth

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Key = tuple[str, tuple[tuple[str, str], ...]]


def exposition(scene: Scene, ingest: Ingest | None = None, **more: Any) -> Exposition:
    return Exposition(scene.core, ingest or Ingest(), lambda: scene.now, "1.2.3", lambda: True, **more)


def everything(scene: Scene) -> Exposition:
    """One that has every part of the exporter's own health to show."""
    return exposition(
        scene,
        Ingest(rejected={"token": 2}, seconds=0.1, answered=3),
        sinks=lambda: [SinkHealth(name="influxdb", lag_entries=3, lag_seconds=1.5, written_points=7)],
        archive=lambda: ArchivistHealth(journal_bytes=10, history_bytes=20, moved_entries=5),
    )


def samples(page: str, openmetrics: bool = False) -> dict[Key, float]:
    """Every sample by its name and labels; fails where one is there twice."""
    found: dict[Key, float] = {}
    for family in (parse_openmetrics if openmetrics else parse_classic)(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(page: str, name: str, **labels: str) -> float:
    """The value of the one sample of that name whose labels include these."""
    (found,) = (v for (n, pairs), v in samples(page).items() if n == name and labels.items() <= dict(pairs).items())
    return found


def text(scene: Scene) -> str:
    return exposition(scene).render().body.decode()


def rich(scene: Scene) -> None:
    """A run of which everything is known, and a second one."""
    scene.push(sender="sup", role="supervisor", events=[AttemptStarted(time=0.0, pid=1)])
    scene.push(events=[RunStarted(time=0.0, config={"trainer.total_training_steps": 50})])
    scene.step(1, grad=1.0, loss=0.5, time=0.7, val=0.3)
    scene.step(2, grad=500.0, loss=0.4, time=90.0)
    scene.step(1, grad=500.0)
    scene.push(
        phase=PhaseReport(
            step=3, open=[OpenPhase(name="gen", seconds=2.0)], closed=[ClosedPhase(name="reward", seconds=0.5)]
        ),
        rollout=RolloutCounts(succeeded=9, failed=1, cancelled=2, in_flight=3),
        gpus=[
            GpuReading(
                node="n",
                index=0,
                uuid="GPU-1",
                memory_used_bytes=5,
                memory_total_bytes=9,
                utilization_ratio=0.5,
                power_watts=300.0,
                temperature_celsius=60.0,
                xid_errors=1,
                last_xid=94,
            )
        ],
        events=[
            CheckpointSaved(time=0.0, step=1, path="/c/1", verified=True),
            CheckpointSaved(time=0.0, step=2, path="/c/2", verified=False, bytes=7, save_seconds=1.5),
            CheckpointCopied(time=0.0, step=1, tier="snapshot", name="toy-step1-aa", place="/s", bytes=7),
            CheckpointCopied(time=0.0, step=2, tier="milestone", name="toy-step2-bb", ok=False, reason="full"),
            CheckpointChecked(time=0.0, step=1, depth="load", ok=True),
            CheckpointChecked(time=0.0, step=1, depth="drill", ok=False, tier="snapshot", reason="torn"),
            CheckpointPruned(time=0.0, step=1, tier="snapshot", name="toy-step1-aa", bytes=7),
            CheckpointPruned(time=0.0, step=1),
            SettingApplied(time=0.0, name="actor_rollout_ref.actor.optim.lr", wanted=1e-6, found=1e-5, ok=False),
            GradientHistogram(time=0.0, step=2, file="/g/2.npz", layers=3, norm=500.0, largest_norm=499.0),
            HooksReported(time=0.0, installed=["a", "b"], missing=[HookMissing(name="c", reason="moved")]),
        ],
    )
    scene.step(1, run="other", grad=math.nan)
