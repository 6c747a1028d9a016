"""The stock V1 trainer runs the toy on the CPU, and its signals are alive from the first step."""

import json
import math
import os
import subprocess
import sys

import pytest

from demo.toy import environment, make, overrides
from demo.toy.overrides import REPOSITORY

STEPS = 3


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    """Metrics by step and the folder of a run of three steps that saves at the last."""
    folder = tmp_path_factory.mktemp("toy-run")
    toy = make(folder / "toy")
    log = folder / "metrics.jsonl"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("VERL")}
    command = [sys.executable, "-m", "verl.trainer.main_ppo"]
    command += overrides(toy, folder / "checkpoints", steps=STEPS, save_every=STEPS, validate_every=STEPS)
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment(clean) | {"VERL_FILE_LOGGER_PATH": str(log)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return [json.loads(line)["data"] for line in log.read_text().splitlines()], folder


@pytest.mark.trainer
def test_every_signal_the_detectors_read_is_there_and_finite_in_every_step(toy_run):
    steps, _ = toy_run
    assert len(steps) == STEPS
    for metrics in steps:
        for key in (
            "actor/entropy",
            "actor/kl_loss",
            "actor/ppo_kl",
            "actor/grad_norm",
            "actor/pg_loss",
            "actor/lr",
            "critic/score/mean",
            "response_length/mean",
            "rollout_corr/kl",
            "timing_s/step",
        ):
            assert math.isfinite(metrics[key]), key


@pytest.mark.trainer
def test_the_policy_moves_and_the_rollout_follows_it(toy_run):
    steps, _ = toy_run
    assert steps[-1]["actor/kl_loss"] > steps[0]["actor/kl_loss"] > 0
    assert all(metrics["actor/grad_norm"] > 0 for metrics in steps)
    assert any(metrics["actor/ppo_kl"] != 0 for metrics in steps)
    # The rollout samples from the weights that were just trained: its log-probabilities are the trainer's own.
    assert all(metrics["training/rollout_probs_diff_max"] < 1e-3 for metrics in steps)


@pytest.mark.trainer
def test_the_reward_starts_with_room_in_both_directions(toy_run):
    steps, _ = toy_run
    assert all(0.2 < metrics["critic/score/mean"] < 0.8 for metrics in steps)
    assert any(key.startswith("val-core/") for key in steps[-1])


@pytest.mark.trainer
def test_a_checkpoint_is_small(toy_run):
    _, folder = toy_run
    saved = folder / "checkpoints" / f"global_step_{STEPS}"
    assert (saved / "data.pt").is_file()
    assert sum(path.stat().st_size for path in saved.rglob("*") if path.is_file()) < 4_000_000
