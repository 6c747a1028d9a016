"""Runs of every kind, pushed to an exporter over HTTP: what the console has to show. Used by its tests and by hand
(``python tests/console/console_fleet.py URL [TOKEN]``)."""

from __future__ import annotations

import json
import math
import random
import sys
import urllib.request
from collections.abc import Iterator
from itertools import count
from typing import Any

HOSTILE = "<script>alert(1)</script> \"q' %2F/a?b=c&d#e\\ 训练"
"""A run id with everything that an address or a page could be broken with."""
GIB = 1024**3


class Fleet:
    """Pushes as trainers do."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        self._token = token
        self._seq = count(1)
        self._named: dict[str, tuple[str, str]] = {}

    def push(self, run: str, *, attempt: int = 1, sender: str = "", role: str = "trainer", **more: Any) -> None:
        project, experiment = self._named.setdefault(
            run, (more.pop("project", "math"), more.pop("experiment", "experiment-of-the-test"))
        )
        body = {
            "protocol": 1,
            "run": {
                "run_id": run,
                "attempt": attempt,
                "project": project,
                "experiment": experiment,
                "trainer": "ppo_v1",
                "verl_version": "0.9.1",
            },
            "sender": {"id": sender or f"{run}-{attempt}", "role": role},
            "seq": next(self._seq),
            **more,
        }
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._url}/api/v1/push", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=30).close()

    def steps(self, run: str, first: int, last: int, *, attempt: int = 1, surge_from: int | None = None) -> None:
        """Training steps, in pushes of 25; from ``surge_from`` on the KL runs away."""
        rows = list(steps(first, last, surge_from=surge_from, seed=f"{run}{attempt}"))
        for place in range(0, len(rows), 25):
            self.push(run, attempt=attempt, steps=rows[place : place + 25])

    def start(self, run: str, *, attempt: int = 1, resume: int = 0, total: int = 400) -> None:
        """The supervisor starts the trainer, and the trainer tells of itself."""
        began = {"type": "attempt_started", "time": 1.7e9, "pid": 7, "resume_step": resume}
        self.push(run, attempt=attempt, sender=f"{run}-supervisor", role="supervisor", events=[began])
        self.push(
            run,
            attempt=attempt,
            events=[
                {"type": "run_started", "time": 1.7e9, "config": configuration(total)},
                {"type": "hooks_reported", "time": 1.7e9, "installed": ["steps", "phases", "rollout"], "missing": []},
            ],
            gpus=[gpu(index) for index in range(8)],
            rollout={"succeeded": 4096, "failed": 3, "in_flight": 64},
            phase={"step": 1, "open": [{"name": "step", "seconds": 12.0}, {"name": "gen", "seconds": 9.5}]},
        )

    def saved(self, run: str, step: int, *, attempt: int = 1, verified: bool = True) -> None:
        event = {
            "type": "checkpoint_saved",
            "time": 1.7e9,
            "step": step,
            "path": f"/checkpoints/{run[:40]}/global_step_{step}",
            "verified": verified,
            "bytes": 15 * GIB,
            "save_seconds": 21.0,
            **({} if verified else {"reason": "no space left on device: the manifest was not written"}),
        }
        self.push(run, attempt=attempt, events=[event])

    def exited(self, run: str, code: int, *, expected: bool, attempt: int = 1) -> None:
        event = {
            "type": "attempt_exited",
            "time": 1.7e9,
            "exit_code": code,
            "expected": expected,
            "seconds": 5400.0,
            "last_output": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
        }
        self.push(run, attempt=attempt, sender=f"{run}-supervisor", role="supervisor", events=[event])


def steps(first: int, last: int, *, surge_from: int | None = None, seed: str = "") -> Iterator[dict[str, Any]]:
    """What verl logs, of a run that learns."""
    rng = random.Random(seed)
    for step in range(first, last + 1):
        bad = surge_from is not None and step >= surge_from
        worse = 1.0 + (0.8 * (step - surge_from + 1) if bad and surge_from is not None else 0.0)
        generation = 17.0 * rng.uniform(0.95, 1.1)
        metrics = {
            "actor/loss": 0.004 * rng.gauss(1, 0.2) * worse,
            "actor/grad_norm": 0.7 * rng.uniform(0.85, 1.2) * worse,
            "actor/lr": 1e-6,
            "actor/kl_loss": (0.02 + 0.00002 * step) * rng.uniform(0.9, 1.1) * worse * worse,
            "actor/kl_coef": 0.001,
            "actor/entropy": 1.1 * math.exp(-step / 900) * rng.uniform(0.97, 1.03),
            "actor/pg_clipfrac": 0.002 * rng.uniform(0.5, 1.5) * worse,
            "critic/score/mean": (0.3 + 0.4 * (1 - math.exp(-step / 150))) * rng.uniform(0.93, 1.07) / worse,
            "response_length/mean": 800 + 0.6 * step + rng.gauss(0, 25),
            "response_length/clip_ratio": 0.016 * rng.uniform(0.5, 1.5),
            "rollout_corr/kl": 0.0021 * rng.uniform(0.7, 1.3),
            "timing_s/step": generation + 14 * rng.uniform(0.97, 1.05),
            "timing_s/gen": generation,
            "timing_s/reward": 0.7,
            "timing_s/old_log_prob": 2.6,
            "timing_s/ref": 2.4,
            "timing_s/adv": 0.04,
            "timing_s/update_actor": 6.9 * rng.uniform(0.98, 1.04),
            "timing_s/update_weights": 1.1,
            "perf/throughput": 2496 * rng.uniform(0.95, 1.03),
            "perf/total_num_tokens": 622_848,
            "perf/mfu/actor": 0.31,
            "actor/perf/max_memory_reserved_gb": 61.4 + 0.002 * step,
        }
        if step % 20 == 0:
            metrics["val-core/gsm8k/acc/mean@1"] = (0.35 + 0.4 * (1 - math.exp(-step / 150))) / worse
        yield {"step": step, "metrics": metrics}


def configuration(total: int) -> dict[str, Any]:
    return {
        "trainer.total_training_steps": total,
        "trainer.project_name": "math",
        "data.max_response_length": 2048,
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.rollout.n": 8,
        **{f"actor_rollout_ref.section_{n // 20}.setting_{n}": n for n in range(60)},
    }


def gpu(index: int) -> dict[str, Any]:
    return {
        "node": "gpu-node-17",
        "index": index,
        "uuid": f"GPU-0-{index}",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_used_bytes": 66 * GIB + index * 10_000_000,
        "memory_total_bytes": 80 * GIB,
        "utilization_ratio": 0.9 + index / 100,
        "power_watts": 640.0 + index,
        "temperature_celsius": 61.0 + index,
    }


def every_kind(fleet: Fleet) -> None:
    """A run in each state that needs no waiting."""
    good = "grpo-qwen2.5-7b/seed-1"
    fleet.start(good)
    fleet.steps(good, 1, 260)
    for step in (50, 100, 150, 200):
        fleet.saved(good, step)
    fleet.saved(good, 250, verified=False)
    bad = "grpo-qwen2.5-7b/seed-2"
    fleet.start(bad, total=500)
    fleet.steps(bad, 1, 150, surge_from=141)
    for step in (50, 100):
        fleet.saved(bad, step)
    back = "dapo-14b-restarted"
    fleet.start(back, total=300)
    fleet.steps(back, 1, 90, surge_from=84)
    fleet.saved(back, 60)
    fleet.exited(back, 0, expected=True)
    fleet.start(back, attempt=2, resume=60, total=300)
    fleet.steps(back, 61, 140, attempt=2)
    lost = "grpo-qwen2.5-32b-oom"
    fleet.start(lost)
    fleet.steps(lost, 1, 45)
    fleet.exited(lost, 1, expected=False)
    over = "sft-warmup"
    fleet.start(over, total=60)
    fleet.steps(over, 1, 60)
    fleet.exited(over, 0, expected=True)
    fleet.push("just-started", project="code", events=[{"type": "run_started", "time": 1.7e9, "config": {}}])
    fleet.push(HOSTILE, project="<b>code</b>", experiment="<i>x</i>")
    fleet.steps(HOSTILE, 1, 30)


if __name__ == "__main__":
    every_kind(Fleet(*sys.argv[1:3]))
