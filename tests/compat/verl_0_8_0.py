"""The legacy trainer of verl 0.8.0, watched: a few steps on the toy, a clean stop, and a check of all that was pushed.

Run by `verl_0_8_0.sh` in an environment that holds verl 0.8.0. Needs nothing of pytest, which is not installed there.
Prints one line for each promise and ends with exit code 1 when one of them is not kept.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "push")]

from push_receiver import Receiver  # noqa: E402

from demo.toy.make import make  # noqa: E402
from demo.toy.overrides import BATCH_PROMPTS, RESPONSES_PER_PROMPT, environment, overrides  # noqa: E402
from exporter import protocol  # noqa: E402
from trainer_entry.checkpoints import verify  # noqa: E402

ASKED_STEPS = 50
STOP_AFTER_STEP = 4
SAVE_EVERY = 2
DEADLINE_SECONDS = 600.0
UNKNOWN_TO_0_8 = ("trainer.use_v1=", "actor_rollout_ref.rollout.seed=")
PHASES = {"step", "gen", "old_log_prob", "adv", "update_actor", "update_weights", "save_checkpoint"}
HOOKS = {"step_metrics", "phases", "checkpoints", "rollouts", "weight_sync", "run_end", "clean_stop"}


def train(folder: Path, receiver: Receiver) -> int:
    """Start the trainer, ask it to stop once it has logged `STOP_AFTER_STEP`; returns its exit code."""
    state = folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    chosen = overrides(
        make(folder / "toy"), folder / "checkpoints", steps=ASKED_STEPS, use_v1=False, save_every=SAVE_EVERY
    )
    chosen = [override for override in chosen if not override.startswith(UNKNOWN_TO_0_8)]
    watched = {
        # verl 0.8 has no entry points for plugins; ours is added by the entry point, the CPU platform is named here.
        "VERL_USE_EXTERNAL_MODULES": "trainer_entry.cpu",
        "VERL_SENTINEL_URL": receiver.url,
        "VERL_SENTINEL_RUN_ID": "compat-0.8.0",
        "VERL_SENTINEL_STATE_DIR": str(state),
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
    }
    with (folder / "trainer.log").open("wb") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "trainer_entry.main_ppo", *chosen],
            cwd=folder,
            env=environment(os.environ) | watched,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + DEADLINE_SECONDS
        asked = False
        try:
            while trainer.poll() is None and time.monotonic() < deadline:
                if not asked and any(step.step >= STOP_AFTER_STEP for step in receiver.steps()):
                    (state / "stop-request").write_text(json.dumps({"attempt": 1}))
                    asked = True
                time.sleep(0.2)
        finally:
            if trainer.poll() is None:
                os.killpg(trainer.pid, signal.SIGKILL)
        return trainer.wait()


def promises(folder: Path, receiver: Receiver, exit_code: int) -> Iterator[tuple[str, bool, object]]:
    """Each promise with whether it was kept, and what was seen."""
    yield "the trainer ended by itself with exit code 0", exit_code == 0, exit_code
    trainer = [batch for batch in receiver.batches if batch.sender.role == "trainer"]
    runs = {(b.run.run_id, b.run.attempt, b.run.trainer, b.run.verl_version) for b in trainer}
    yield "one run, known by trainer and version", runs == {("compat-0.8.0", 1, "ppo_legacy", "0.8.0")}, runs

    reported = [event for event in receiver.events(protocol.HooksReported)]
    installed = {name for event in reported for name in event.installed}
    missing = [item for event in reported for item in event.missing]
    yield "all hooks in place", installed == HOOKS and not missing, (sorted(installed), missing)

    started = receiver.events(protocol.RunStarted)
    rate = started[0].config.get("actor_rollout_ref.actor.optim.lr") if started else None
    yield "the configuration came with the start", len(started) == 1 and rate == 1e-4, rate

    steps = {step.step: step.metrics for step in receiver.steps()}
    last = max(steps, default=0)
    yield "every step came, in order", bool(steps) and sorted(steps) == list(range(1, last + 1)), sorted(steps)
    wanted = {"actor/grad_norm", "actor/entropy", "actor/ppo_kl", "actor/kl_loss", "actor/lr", "critic/score/mean"}
    lacking = {step: wanted - metrics.keys() for step, metrics in steps.items() if not wanted <= metrics.keys()}
    yield "each with the metrics that signals are made of", bool(steps) and not lacking, lacking
    clean = STOP_AFTER_STEP < last < ASKED_STEPS
    yield f"the clean stop ended it soon after step {STOP_AFTER_STEP} of {ASKED_STEPS}", clean, last

    closed = {phase.name for batch in trainer if batch.phase for phase in batch.phase.closed}
    opened = {phase.name for batch in trainer if batch.phase for phase in batch.phase.open}
    yield "phases ended and were seen open", closed >= PHASES and "step" in opened, sorted(PHASES - closed)

    saved = receiver.events(protocol.CheckpointSaved)
    saved_steps = [event.step for event in saved]
    due = [*range(SAVE_EVERY, last + 1, SAVE_EVERY)]
    due += [last] if last not in due else []
    yield "every checkpoint was reported verified", saved_steps == due and all(e.verified for e in saved), saved
    broken = [result.reason for event in saved if not (result := verify(Path(event.path))).ok]
    yield "and its manifest matches what is on disk", bool(saved) and not broken, broken

    # The newest counts of each sender; validation, at the end of this run, adds its own.
    counts = {batch.sender.id: batch.rollout for batch in receiver.batches if batch.rollout}
    succeeded = sum(count.succeeded for count in counts.values())
    expected = last * BATCH_PROMPTS * RESPONSES_PER_PROMPT
    failed = sum(count.failed for count in counts.values())
    yield "all rollout requests were counted", succeeded >= expected > 0 == failed, (succeeded, expected, failed)

    synced = [event.step for event in receiver.events(protocol.WeightsSynced)]
    yield "weights were synced after every step", bool(synced) and set(synced) >= set(range(1, last)), synced
    ends = [event.exit_code for event in receiver.events(protocol.RunFinished)]
    yield "the end was reported once, as a success", ends == [0], ends
    failures = [line for line in log_lines(folder) if "is ignored:" in line or "not watched" in line]
    yield "no hook failed", not failures, failures


def log_lines(folder: Path) -> list[str]:
    return (folder / "trainer.log").read_text(errors="replace").splitlines()


def main(folder: Path) -> int:
    version = importlib.metadata.version("verl")
    if version != "0.8.0":
        sys.exit(f"compat: this environment holds verl {version}, not 0.8.0; run tests/compat/verl_0_8_0.sh instead.")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with Receiver() as receiver:
        exit_code = train(folder, receiver)
        broken = 0
        for promise, kept, seen in promises(folder, receiver, exit_code):
            broken += not kept
            print(f"{'ok    ' if kept else 'BROKEN'}  {promise}" + ("" if kept else f"; seen: {seen}"), flush=True)
    if broken:
        print("\n".join(log_lines(folder)[-30:]))
        print(f"compat: {broken} promise(s) broken; the whole log is {folder / 'trainer.log'}")
        return 1
    print(f"compat: verl {version} keeps all promises ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: verl_0_8_0.py FOLDER (for model, checkpoints and log)")
    sys.exit(main(Path(sys.argv[1]).resolve()))
