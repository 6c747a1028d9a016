"""A trainer that obeys verl's contracts, and trains nothing: what the chaos suite puts in place of verl.

Started by the real supervisor. It pushes steps, phases and events with the real push client, saves checkpoints with
real manifests, has a worker process without which it cannot go on, ends when it is asked to, and fails on demand. Its
weights are one number that is in the checkpoint: once they are NaN they stay so, also after a restart from a checkpoint
that was saved since.

What it leaves in ``chaos.evidence`` is what the invariants are judged by (:mod:`tests.chaos.witness`):
``starts.jsonl``, ``steps.jsonl``, ``saves.jsonl``, and ``overlaps.jsonl`` where a second trainer of the run found the
first one alive.

Options, as Hydra words: ``chaos.step_seconds``, ``chaos.save_freq``, ``chaos.start_seconds``, ``chaos.stop_seconds``,
``chaos.steps``, ``chaos.url`` (its way to the exporter), ``chaos.ruin_after``. Faults are read from
``chaos.evidence/faults.json``: a list of ``{"kind": "nan|hang|crash|rate|version", "attempts": [1, 2]}``. With
``rate`` the weights are ruined ``chaos.ruin_after`` steps later, in every attempt whose learning rate is ruinous; with
``version`` in every attempt that does not run on the good version of verl.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from exporter.protocol import CheckpointSaved, HooksReported, Run, RunFinished, RunStarted, SettingApplied
from tests.chaos import versions, weights
from trainer_entry.checkpoints import CheckpointError, discard_manifest, write_manifest
from trainer_entry.push import PushClient
from trainer_entry.settings import read_settings

RATE = "actor_rollout_ref.actor.optim.lr"
RUINOUS_RATE = 1e-5
WORKER = """
import fcntl, json, os, sys, time
lock = os.open(sys.argv[1] + "/worker.lock", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with open(sys.argv[1] + "/overlaps.jsonl", "a") as file:
        file.write(json.dumps({"what": "worker", "attempt": int(sys.argv[2]), "pid": os.getpid()}) + "\\n")
time.sleep(3600)
"""


def words_of(argv: list[str]) -> dict[str, str]:
    """The last value of each key, without Hydra's prefixes and quotes."""
    found: dict[str, str] = {}
    for word in argv:
        key, equals, value = word.lstrip("+").partition("=")
        if equals:
            found[key] = value.strip("'\"")
        elif word.startswith("~"):
            found.pop(word[1:], None)
    return found


class FastTrainer:
    """One start of the training."""

    def __init__(self, argv: list[str]) -> None:
        self.words = words_of(argv)
        self.root = Path(self.words["trainer.default_local_dir"])
        self.evidence = Path(self.words["chaos.evidence"])
        self.attempt = int(os.environ.get("VERL_SENTINEL_ATTEMPT", "1"))
        self.state = Path(os.environ["VERL_SENTINEL_STATE_DIR"])
        self.step_seconds = float(self.words.get("chaos.step_seconds", "0.15"))
        self.step = 0
        self.ruined = False
        self.version = versions.running()
        environ = dict(os.environ)
        if "chaos.url" in self.words:
            environ["VERL_SENTINEL_URL"] = self.words["chaos.url"]
        settings = read_settings(environ)
        assert settings is not None, "VERL_SENTINEL_URL is not set"
        run = Run(
            run_id=settings.run_id,
            attempt=self.attempt,
            project=self.words.get("trainer.project_name", ""),
            experiment=self.words.get("trainer.experiment_name", ""),
            trainer="ppo_v1",
            verl_version=self.version,
        )
        self.client = PushClient(settings, run)
        self.client.phases.step_source = lambda: self.step + 1

    def note(self, name: str, **facts: Any) -> None:
        """One line of evidence, in one write."""
        line = json.dumps({**facts, "attempt": self.attempt, "pid": os.getpid(), "at": time.monotonic()}) + "\n"
        with (self.evidence / name).open("a") as file:
            file.write(line)

    def hold_the_run(self) -> int:
        """The kernel gives the lock to one trainer at a time, whatever anybody else believes."""
        lock = os.open(self.evidence / "trainer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 64, 0).decode()
            self.note("overlaps.jsonl", what="trainer", holder=holder)
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} attempt {self.attempt}".encode(), 0)
        return lock

    def changes(self) -> dict[str, Any]:
        """What the supervisor has in force beyond the command line."""
        found: dict[str, Any] = json.loads(os.environ.get("VERL_SENTINEL_CHANGES", "") or "{}")
        return found

    def restore(self) -> None:
        """As verl does: by the path that is given, or by the tracker, or from scratch in silence."""
        mode = self.words.get("trainer.resume_mode", "auto")
        source: Path | None = None
        if mode == "resume_path":
            source = Path(self.words["trainer.resume_from_path"])
        elif mode == "auto":
            tracker = self.root / "latest_checkpointed_iteration.txt"
            if tracker.exists():
                source = self.root / f"global_step_{tracker.read_text().strip()}"
        if source is not None and source.exists():
            saved = weights.read(source / weights.MODEL)
            self.step, self.ruined = saved["step"], saved["ruined"]

    def fault(self) -> str:
        """The fault that this attempt has now, if any."""
        try:
            faults = json.loads((self.evidence / "faults.json").read_text())
        except (OSError, ValueError):
            return ""
        return next((one["kind"] for one in faults if self.attempt in one["attempts"]), "")

    def stop_asked(self) -> dict[str, Any] | None:
        try:
            request = json.loads((self.state / "stop-request").read_text())
        except (OSError, ValueError):
            return None
        return request if isinstance(request, dict) and request.get("attempt") == self.attempt else None

    def save(self) -> None:
        """A checkpoint whose content depends on the step and the weights only, so that the same one has one hash."""
        directory = self.root / f"global_step_{self.step}"
        began = time.monotonic()
        discard_manifest(directory)
        (directory / "actor").mkdir(parents=True, exist_ok=True)
        for kind in ("model", "optim", "extra_state"):
            path = directory / "actor" / f"{kind}_world_size_1_rank_0.pt"
            weights.write(path, step=self.step, ruined=self.ruined, of=f"{kind} {self.step}" * 400)
        weights.write(directory / "data.pt", step=self.step)
        # verl's order: the shards, then the tracker; the manifest is ours, and last.
        (self.root / "latest_checkpointed_iteration.txt").write_text(str(self.step))
        saved = time.monotonic()
        size, problem = 0, ""
        try:
            size = write_manifest(directory, self.step).bytes
        except (CheckpointError, OSError) as error:
            problem = str(error)
        self.note("saves.jsonl", step=self.step, ruined=self.ruined, verified=not problem)
        self.client.event(
            CheckpointSaved(
                time=time.time(),
                step=self.step,
                path=str(directory),
                verified=not problem,
                bytes=size,
                save_seconds=saved - began,
                manifest_seconds=time.monotonic() - saved,
                reason=problem,
            )
        )

    def metrics(self) -> dict[str, float]:
        wave = math.sin(self.step * 1.7)
        loss = math.nan if self.ruined else 0.5 + 0.01 * wave
        return {
            "actor/pg_loss": loss,
            "actor/grad_norm": math.nan if self.ruined else 1.0 + 0.02 * wave,
            "actor/entropy": math.nan if self.ruined else 2.0 + 0.01 * wave,
            "critic/score/mean": 0.3 + 0.01 * wave,
            "timing_s/step": self.step_seconds,
        }

    def run(self) -> int:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = self.hold_the_run()
        worker = subprocess.Popen([sys.executable, "-S", "-E", "-c", WORKER, str(self.evidence), str(self.attempt)])
        time.sleep(float(self.words.get("chaos.start_seconds", "0.2")))
        self.restore()
        changes = self.changes()
        rate = float(self.words.get(RATE, "1e-6"))
        self.note(
            "starts.jsonl",
            **{"from": self.step},
            ruined=self.ruined,
            worker=worker.pid,
            rate=rate,
            version=self.version,
            changes=changes,
        )
        print(f"Resuming from step {self.step}", flush=True)
        self.client.event(RunStarted(time=time.time(), config={**self.words, RATE: rate}))
        self.client.event(HooksReported(time=time.time(), installed=["step_metrics", "checkpoints"]))
        if RATE in changes.get("settings", {}):
            wanted = changes["settings"][RATE]
            self.client.event(SettingApplied(time=time.time(), name=RATE, wanted=wanted, found=rate, ok=True))
        code = self.loop(worker, rate)
        self.client.event(RunFinished(time=time.time(), exit_code=code))
        self.client.close(2.0)
        worker.kill()
        worker.wait()
        os.close(lock)
        print("done", flush=True)
        return code

    def loop(self, worker: subprocess.Popen[bytes], rate: float) -> int:
        phases = self.client.phases
        steps_to_ruin = int(self.words.get("chaos.ruin_after", "2"))
        while self.step < int(self.words.get("chaos.steps", "100000")):
            token, inner = phases.begin("step"), phases.begin("gen")
            fault = self.fault()
            if fault == "hang":
                self.note("hangs.jsonl", step=self.step)
            while fault == "hang" and self.fault() == "hang":
                time.sleep(0.2)
            if fault == "crash":
                print("RuntimeError: the fault that was asked for", flush=True)
                os._exit(1)
            time.sleep(self.step_seconds)
            if worker.poll() is not None:  # as verl: with one worker gone, the run ends
                print("ray.exceptions.ActorDiedError: the worker died", flush=True)
                os._exit(1)
            self.step += 1
            steps_to_ruin -= fault == "rate" and rate > RUINOUS_RATE
            steps_to_ruin -= fault == "version" and self.version != versions.GOOD
            if fault == "nan" or steps_to_ruin == 0:
                self.ruined = True
            phases.end(inner)
            asked = self.stop_asked()
            wanted = asked is None or asked.get("save", True)
            if wanted and (asked is not None or self.step % int(self.words.get("chaos.save_freq", "5")) == 0):
                self.save()
            phases.end(token)
            self.note("steps.jsonl", step=self.step, ruined=self.ruined)
            self.client.step(self.step, self.metrics())
            if asked is not None:
                time.sleep(float(self.words.get("chaos.stop_seconds", "0.3")))
                break
        return 0


if __name__ == "__main__":
    sys.exit(FastTrainer(sys.argv[1:]).run())
