"""Kill the exporter with SIGKILL at random moments, under load, and compare with one that was left alone.

Each run has one sender that goes on in order, as the trainer's does, and one whose pushes come in any order and more
than once, some of them twice at the same time. Whatever was acknowledged has to be there once. The short form is a
test; the long one is started by hand:

    python tests/durability/kill_often.py --kills 200
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exporter"))

from exporter_process import PUSH, ExporterProcess
from exporter_scene import batch

from exporter.protocol import (
    CheckpointSaved,
    ClosedPhase,
    PhaseReport,
    RolloutCounts,
    RunStarted,
    Step,
    encode,
)

CONFIG = """\
retention:
  snapshot_seconds: 0.3
  journal_megabytes: 0.05
limits:
  requests_per_second: 100000
"""
RUNS = 3
METRICS = 40
NEWEST = 120
"""Incidents of a run that are compared. The exporter remembers 200, and live ones are among them."""


def in_order(run: int, seq: int) -> Any:
    """The ``seq``-th push of the trainer of a run."""
    if seq == 1:
        return batch(run=f"run {run}", sender=f"trainer {run}", seq=1, events=[RunStarted(time=0.0, config={"a": 1})])
    step = seq - 1
    draw = random.Random(run * 1_000_003 + step)
    metrics: dict[str, Any] = {f"own/metric_{i}": draw.random() for i in range(METRICS)}
    norm = draw.lognormvariate(0.0, 0.2) * (40.0 if step % 200 in (90, 91, 92, 93) else 1.0)
    metrics |= {"actor/grad_norm": norm, "actor/loss": math.nan if step % 300 == 250 else draw.random()}
    metrics |= {"timing_s/step": draw.uniform(0.05, 30.0), "actor/entropy": 1.0 + draw.random()}
    events: list[Any] = []
    if step % 20 == 0:
        events = [CheckpointSaved(time=0.0, step=step, path=f"/c/{step}", verified=True)]
    return batch(
        run=f"run {run}",
        sender=f"trainer {run}",
        seq=seq,
        steps=[Step(step=step, metrics=metrics)],
        events=events,
    )


def in_any_order(run: int, seq: int) -> Any:
    """The ``seq``-th push of a rollout worker of a run: totals and phases, for which order means nothing."""
    return batch(
        run=f"run {run}",
        sender=f"worker {run}",
        role="worker",
        seq=seq,
        rollout=RolloutCounts(succeeded=1000 * seq, failed=seq),
        phase=PhaseReport(step=1, closed=[ClosedPhase(name="gen", seconds=0.1 + seq % 7)]),
    )


@dataclass
class Load:
    """Senders that never give up a push before it is acknowledged."""

    port: int
    stop: threading.Event = field(default_factory=threading.Event)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    """Highest number of acknowledged pushes by (kind, run); all up to it are."""
    duplicates: int = 0
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> list[threading.Thread]:
        threads = []
        for run in range(RUNS):
            threads += [threading.Thread(target=self._trainer, args=(run,), daemon=True)]
            threads += [threading.Thread(target=self._worker, args=(run,), daemon=True)]
        for thread in threads:
            thread.start()
        return threads

    def _trainer(self, run: int) -> None:
        seq = 1
        connection: http.client.HTTPConnection | None = None
        while not self.stop.is_set():
            connection = self._until_taken(connection, in_order(run, seq))
            if connection is None:
                return
            self.acknowledged["trainer", run] = seq
            seq += 1

    def _worker(self, run: int) -> None:
        draw = random.Random(run)
        connection: http.client.HTTPConnection | None = None
        block = 0
        while not self.stop.is_set():
            seqs = list(range(block * 8 + 1, block * 8 + 9))
            draw.shuffle(seqs)
            again = draw.sample(seqs, 2)
            twins = [
                threading.Thread(target=self._until_taken, args=(None, in_any_order(run, seq)), daemon=True)
                for seq in again
            ]
            for twin in twins:
                twin.start()
            for seq in seqs:
                connection = self._until_taken(connection, in_any_order(run, seq))
            for twin in twins:
                twin.join()
            if self.stop.is_set():
                return
            block += 1
            self.acknowledged["worker", run] = block * 8

    def _until_taken(
        self, connection: http.client.HTTPConnection | None, what: Any
    ) -> http.client.HTTPConnection | None:
        """Send it until it is acknowledged; None where the load ends before."""
        body = encode(what)
        while not self.stop.is_set():
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                connection.request(
                    "POST", PUSH, body, {"Content-Type": "application/msgpack", "Accept": "application/json"}
                )
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.01)
                continue
            if response.status == 200:
                self.duplicates += answer.get("duplicate", False)
                return connection
            if response.status != 503:
                self.errors.append(f"{response.status}: {answer}")
                self.stop.set()
            time.sleep(0.01)
        return None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def seen(exporter: ExporterProcess) -> dict[str, Any]:
    """What an exporter says of the runs, without what depends on the moment: times, and what live detectors say."""
    moments = (
        *("verl_last_push_timestamp", "verl_last_step_timestamp", "verl_checkpoint_last_saved_timestamp"),
        "verl_checkpoint_tier_last_timestamp",
        *("verl_checkpoint_last_verified_timestamp", "verl_phase_open_seconds", "verl_run_time_seconds"),
    )
    lines = exporter.get("/metrics").body.decode().splitlines()
    found: dict[str, Any] = dict(
        line.rsplit(" ", 1)
        for line in lines
        if 'run="' in line and not line.startswith(moments) and "silent_run" not in line and "stalled_phase" not in line
    )
    for run in range(RUNS):
        name = quote(f"run {run}", safe="")
        detail = exporter.get(f"/api/v1/runs/{name}").json
        found[f"checkpoints {run}"] = [(c["step"], c["path"], c["verified"]) for c in detail["checkpoints"]]
        found[f"recent steps {run}"] = [(s["step"], s["signals"]) for s in detail["steps"]]
        found[f"rollouts {run}"] = detail["rollouts"]
        found[f"incidents {run}"] = [
            [i[key] for key in ("id", "state", "severity", "onset", "first_step", "last_step", "count", "worst_score")]
            for i in detail["incidents"]
            if i["kind"] == "step"
        ][:NEWEST]
        exported = exporter.get(f"/api/v1/runs/{name}/steps?format=jsonl")
        assert exported.status == 200, exported.body
        found[f"export {run}"] = exported.body
    return found


def check(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill ``kills`` times; raise ``AssertionError`` where the exporter differs from one that was left alone."""
    draw = random.Random(seed)
    port = free_port()
    (folder / "config.yml").write_text(CONFIG)
    arguments = ("--config", str(folder / "config.yml"), "--listen", f"127.0.0.1:{port}")
    exporter = ExporterProcess(folder, (*arguments, "--data-dir", str(folder / "data")))
    load = Load(port)
    threads: list[threading.Thread] = []
    try:
        exporter.start()
        threads = load.start()
        for _ in range(kills):
            # Most of them while pushes are taken, some while the journal is read.
            until = time.monotonic() + draw.choice([draw.uniform(0.0, 0.2), draw.uniform(0.2, 2.0)])
            while time.monotonic() < until and not load.stop.is_set():
                time.sleep(0.005)
            exporter.kill()
            exporter.start(until_ready=draw.random() < 0.9)
        assert not load.errors, load.errors
        load.stop.wait(0.5)
        load.stop.set()
        for thread in threads:
            thread.join()
        exporter.kill()
        exporter.start()
        return _compare(folder, exporter, load)
    finally:
        load.stop.set()
        if exporter.process is not None and exporter.process.poll() is None:
            exporter.kill()


def _compare(folder: Path, exporter: ExporterProcess, load: Load) -> dict[str, int]:
    """Send all that was acknowledged to a second exporter, and the same once more to the first: all duplicates."""
    calm_folder = folder / "calm"
    calm_folder.mkdir()
    calm = ExporterProcess(
        calm_folder, ("--config", str(folder / "config.yml"), "--data-dir", str(calm_folder / "data"))
    )
    pushes = 0
    try:
        calm.start()
        for (kind, run), upto in sorted(load.acknowledged.items()):
            make = in_order if kind == "trainer" else in_any_order
            for seq in range(1, upto + 1):
                body = encode(make(run, seq))
                again = exporter.post(PUSH, body, Accept="application/json")
                assert again.json.get("duplicate"), f"{kind} {run} lost push {seq}, which was acknowledged"
                assert calm.post(PUSH, body, Accept="application/json").status == 200
                pushes += 1
            # What was on its way when the load ended may be there or not; let it be there in both.
            for seq in range(upto + 1, upto + (2 if kind == "trainer" else 9)):
                for one in (exporter, calm):
                    assert one.post(PUSH, encode(make(run, seq))).status == 200
        rough, smooth = seen(exporter), seen(calm)
        assert rough.keys() == smooth.keys(), rough.keys() ^ smooth.keys()
        unlike = [
            f"{key}: {rough[key]!r:.2000} and {smooth[key]!r:.2000}" for key in rough if not _same(rough, smooth, key)
        ]
        assert not unlike, unlike
        incidents = sum(len(smooth[f"incidents {run}"]) for run in range(RUNS))
        return {"pushes": pushes, "duplicates": load.duplicates, "compared": len(rough), "incidents": incidents}
    finally:
        calm.kill()


def _same(one: dict[str, Any], other: dict[str, Any], key: str) -> bool:
    return repr(one[key]) == repr(other[key])  # as text, for a NaN is unlike itself


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"kills": options.kills, **check(Path(folder), options.kills, options.seed)}))


if __name__ == "__main__":
    main()
