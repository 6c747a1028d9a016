"""The InfluxDB sink writes to Debian's victoria-metrics, and what it wrote is read back by PromQL."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from sink_scene import Scene, batch, milliseconds, series
from victoria import Labels, Victoria, needs_victoria_metrics, wait_for

from exporter.protocol import (
    AttemptExited,
    Batch,
    CheckpointSaved,
    GpuReading,
    RolloutCounts,
    Step,
)
from exporter.service.sinks.influx import CURSOR_FILE_NAME
from exporter.service.stored import Entry

pytestmark = needs_victoria_metrics

Samples = dict[Labels, set[tuple[int, float]]]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def rounded(samples: Samples) -> Samples:
    """The server keeps about 15 digits, and those of all the numbers that lie in one block from the same place on."""
    return {labels: {(at, float(f"{value:.9g}")) for at, value in points} for labels, points in samples.items()}


def wait_until_read_back(victoria: Victoria, selector: str, expected: Samples) -> None:
    """All the series there are, with all their samples."""
    until = time.monotonic() + 60
    while (found := rounded(victoria.samples(selector))) != rounded(expected):
        if time.monotonic() > until:
            assert found == rounded(expected)
        time.sleep(0.1)


def losses(*entries: Entry, run: str = "r") -> set[tuple[int, float]]:
    """Samples of the loss, of pushes made by :meth:`Scene.step` with steps 1, 2, 3 …"""
    return {(milliseconds(entry), number / 8) for number, entry in enumerate(entries, start=1)}


def test_every_value_of_a_run_is_read_back(scene: Scene, victoria: Victoria) -> None:
    sink = scene.sink(victoria.url, tags={"cluster": "eu 1"})
    sink.start()
    tags = {"cluster": "eu 1"}
    expected: Samples = {}

    def expect(name: str, at: int, value: float, **more: str) -> None:
        expected.setdefault(series(name, "rüns/a, b=c", **tags, **more), set()).add((at, value))

    def push(**fields: object) -> int:
        return milliseconds(scene.push(run="rüns/a, b=c", **fields))

    pick = random.Random(1)
    for number in range(1, 31):
        metrics = {f"actor/metric {i}, of=many": pick.uniform(-9, 9) * 10.0 ** (i - 20) for i in range(40)}
        metrics["actor/grad_norm"] = number / 16
        metrics["response_length/mean"] = float(number)
        at = push(steps=[Step(step=number, metrics=metrics, time=1.7e9 + number)])
        for key, value in metrics.items():
            expect(f"verl_step_{key}", at, value)
        for key, value in {"step": number, "non_finite": 0, "logged_at": 1.7e9 + number}.items():
            expect(f"verl_step_{key}", at, value)
        for key, value in {"step": number, "grad_norm": number / 16, "response_length": number}.items():
            expect(f"verl_signal_{key}", at, value)
    at = push(steps=[Step(step=n, metrics={"actor/lr": n * 1e-6, "actor/kl_loss": "NaN"}) for n in (31, 32, 33)])
    for before, number in ((2, 31), (1, 32), (0, 33)):
        for key, value in {"step": number, "non_finite": 1, "actor/lr": number * 1e-6}.items():
            expect(f"verl_step_{key}", at - before, value)
        for key, value in {"step": number, "lr": number * 1e-6}.items():
            expect(f"verl_signal_{key}", at - before, value)
        expect("verl_non_finite_step", at - before, number, metric="actor/kl_loss", kind="nan")
    at = push(rollout=RolloutCounts(succeeded=7, failed=1, in_flight=3))
    for key, value in {"succeeded": 7, "failed": 1, "cancelled": 0, "in_flight": 3}.items():
        expect(f"verl_rollouts_{key}", at, value, sender="trainer-1")
    at = push(gpus=[GpuReading(node="n1", index=3, uuid="GPU-1", memory_used_bytes=2**36, utilization_ratio=0.75)])
    for key, value in {"memory_used_bytes": 2**36, "utilization_ratio": 0.75, "lost": 0}.items():
        expect(f"verl_gpu_reading_{key}", at, value, node="n1", gpu="3", uuid="GPU-1")
    saved = CheckpointSaved(time=1, step=30, path='/a "b"\n\\', verified=True, bytes=5, save_seconds=1.5)
    at = push(events=[saved, AttemptExited(time=2, exit_code=1, seconds=9.5)])
    kept = {"step": 30, "verified": 1, "bytes": 5, "save_seconds": 1.5, "manifest_seconds": 0, "count": 1, "text": 0}
    for key, value in kept.items():  # this server keeps a text as 0
        expect(f"verl_event_{key}", at - 1, value, event="checkpoint_saved")
    for key, value in {"exit_code": 1, "expected": 0, "seconds": 9.5, "count": 1}.items():
        expect(f"verl_event_{key}", at, value, event="attempt_exited")

    wait_until_read_back(victoria, '{cluster="eu 1"}', expected)
    sink.stop()
    health = sink.health()
    assert (health.up, health.lag_entries, health.failed_writes, health.dropped_entries) == (True, 0, 0, 0)
    assert health.written_points == 30 * 2 + 3 * 3 + 1 + 1 + 2
    assert health.rejected_points == 0


def test_what_is_pushed_while_the_server_is_down_is_there_when_it_is_back(scene: Scene, victoria: Victoria) -> None:
    sink = scene.sink(victoria.url)
    sink.start()
    entries = [scene.step(number) for number in range(1, 101)]
    wait_for("the first hundred are written", lambda: sink.health().written_points == 200)
    victoria.stop()
    entries += [scene.step(number) for number in range(101, 401)]
    wait_for("the sink notices", lambda: not sink.health().up)
    wait_for("its lag is told", lambda: sink.health().lag_entries >= 300)
    assert sink.health().lag_seconds > 0
    assert "does not answer" in sink.health().last_error
    victoria.start()
    entries += [scene.step(number) for number in range(401, 501)]
    wait_until_read_back(
        victoria, '{__name__="verl_step_actor/loss"}', {series("verl_step_actor/loss"): losses(*entries)}
    )
    wait_for("it has caught up", lambda: sink.health().lag_entries == 0)
    sink.stop()
    health = sink.health()
    assert (health.up, health.dropped_entries, health.last_error, health.lag_seconds) == (True, 0, "", 0)
    assert health.failed_writes > 0


def test_beyond_the_bound_the_oldest_are_dropped_and_each_is_counted(scene: Scene, victoria: Victoria) -> None:
    sink = scene.sink(victoria.url, max_lag_entries=200)
    sink.start()
    entries = [scene.step(number) for number in range(1, 51)]
    wait_for("they are written", lambda: sink.health().written_points == 100)
    victoria.stop()
    entries += [scene.step(number) for number in range(51, 551)]
    wait_for("the oldest are dropped", lambda: sink.health().dropped_entries == 300)
    victoria.start()
    kept = losses(*entries)
    kept -= {point for point in kept if 50 < point[1] * 8 <= 350}
    wait_until_read_back(victoria, '{__name__="verl_step_actor/loss"}', {series("verl_step_actor/loss"): kept})
    sink.stop()
    assert sink.health().dropped_entries == 300


def test_a_sink_that_is_killed_at_any_moment_loses_nothing(scene: Scene, victoria: Victoria) -> None:
    pick = random.Random(7)
    entries: list[Entry] = []
    path = os.pathsep.join([str(ROOT), str(HERE)])
    for _ in range(5):
        argv = [sys.executable, str(HERE / "sink_process.py"), str(scene.folder), victoria.url]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
        assert process.stdout is not None
        process.stdout.readline()
        until = time.monotonic() + pick.uniform(0.0, 0.8)
        while time.monotonic() < until:
            entries.append(scene.step(len(entries) + 1))
        process.kill()
        process.wait()
        process.stdout.close()
    assert (scene.folder / CURSOR_FILE_NAME).exists()
    sink = scene.sink(victoria.url)
    sink.start()
    wait_until_read_back(
        victoria, '{__name__="verl_step_actor/loss"}', {series("verl_step_actor/loss"): losses(*entries)}
    )
    sink.stop()
    assert sink.health().dropped_entries == 0


def test_two_pushes_of_one_millisecond_are_both_there(scene: Scene, victoria: Victoria) -> None:
    now = time.time()
    for run in ("a", "b"):
        for number in (1, 2):
            scene.push(run=run, at=now, steps=[Step(step=number, metrics={f"part/{number}": number / 2})])
    sink = scene.sink(victoria.url)
    sink.start()
    at = int(now * 1000)
    expected = {series(f"verl_step_part/{n}", run): {(at, n / 2)} for run in ("a", "b") for n in (1, 2)}
    wait_until_read_back(victoria, '{__name__=~"verl_step_part.*"}', expected)
    sink.stop()


def test_a_push_of_full_size_is_written_whole(scene: Scene, victoria: Victoria) -> None:
    steps = [Step(step=n, metrics={f"{'k' * 180}/{i}": n + i / 4 for i in range(2000)}) for n in range(1, 21)]
    entry = scene.push(steps=steps)
    assert isinstance(batch(steps=steps), Batch)
    sink = scene.sink(victoria.url)
    sink.start()
    at = milliseconds(entry)
    expected = {
        series(f"verl_step_{'k' * 180}/{i}"): {(at - 20 + n, n + i / 4) for n in range(1, 21)} for i in (0, 999, 1999)
    }
    wait_until_read_back(victoria, '{__name__=~"verl_step_k+/(0|999|1999)"}', expected)
    sink.stop()
    assert sink.health().rejected_points == 0
