"""The stock trainer under the supervisor, with all three tiers; then a drill that trains from the archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.toy import environment, make, sft_overrides
from trainer_entry.checkpoints import step_directories, tracker_step, verify
from trainer_entry.checkpoints.tiers.copies import check_copy, copies_of
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.policy_file import read_policy
from trainer_entry.checkpoints.tiers.stores import open_store

SECONDS = 500


def command(*words: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith("VERL_SENTINEL_")}
    return subprocess.run(
        [sys.executable, "-m", "trainer_entry.cli", *words],
        env=environment(base),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.trainer
def test_a_run_fills_its_tiers_and_can_be_trained_from_its_archive(tmp_path: Path) -> None:
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    (tmp_path / "key").write_text(f"{identity}\n")
    policy = tmp_path / "policy.yml"
    policy.write_text(
        f"own_directory: {{keep_last: 2}}\n"
        f"snapshot: {{every_steps: 10, place: {tmp_path}/snapshots}}\n"
        f"milestone: {{place: {tmp_path}/far}}\n"
        f"archive: {{place: {tmp_path}/archive, recipients: {identity.to_public()}}}\n"
        "limits: {waiting: 10}\n"  # it saves every few seconds, which on a loaded machine is faster than the keeper
    )
    saved, state_dir = tmp_path / "checkpoints", tmp_path / "state"
    trainer = [sys.executable, "-m", "trainer_entry.main_sft"]
    trainer += sft_overrides(make(tmp_path / "toy"), saved, steps=20, save_every=5)
    run = command(
        *("run", "--run-id", "run", "--state-dir", os.fspath(state_dir), "--url", "http://127.0.0.1:9"),
        *("--checkpoint-policy", os.fspath(policy), "--", *trainer),
    )
    assert run.returncode == 0, run.stdout[-3000:]

    # Nothing was ever slowed or broken by it, and the run's own directory holds what it should.
    assert sorted(step for step, _ in step_directories(saved)) == [15, 20]
    assert tracker_step(saved) == 20
    assert not (saved / ".verl_sentinel_staging").exists()
    assert all(verify(path, "content").ok for _, path in step_directories(saved))
    steps = {}
    for tier in read_policy(policy).tiers:
        store = open_store(tier.places[0])
        copies = copies_of(store, "run")
        for copy in copies:
            check_copy(store, copy, "content", Pace())
        steps[tier.tier] = sorted(copy.step for copy in copies)
    assert steps["snapshot"] == [5, 10, 20]
    assert 5 in steps["milestone"]  # the first known loss; which later ones fall enough is the run's own affair
    assert steps["archive"] == [20]

    (tmp_path / "scratch").mkdir()
    drill = command(
        *("checkpoints", "drill", "--state-dir", os.fspath(state_dir), "--tier", "archive", "--json"),
        *("--identity", os.fspath(tmp_path / "key"), "--scratch", os.fspath(tmp_path / "scratch")),
    )
    assert drill.returncode == 0, drill.stdout[-3000:]
    figures = json.loads(drill.stdout.splitlines()[-1])
    assert (figures["step"], figures["steps"]) == (20, 2)
    assert os.listdir(tmp_path / "scratch") == []
    assert sorted(step for step, _ in step_directories(saved)) == [15, 20]
