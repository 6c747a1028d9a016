"""``verl-sentinel-train checkpoints backup|restore|prune|drill`` at the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from exporter.protocol import CheckpointChecked
from tests.checkpoints.tiers.conftest import Save
from trainer_entry.checkpoints import verify
from trainer_entry.checkpoints.tiers.jobs import RunNote, Workplace
from trainer_entry.cli import main
from trainer_entry.supervisor.hand import Hand
from trainer_entry.supervisor.starting import leave_behind
from trainer_entry.supervisor.state import AttemptRequest, StateDir, write_record


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yml"
    path.write_text(
        f"own_directory: {{keep_last: 1}}\n"
        f"snapshot: {{place: {tmp_path}/near, every_steps: 10}}\n"
        f"milestone: {{place: {tmp_path}/far, second_place: {tmp_path}/farther}}\n"
    )
    return path


def run(state_dir: Path, policy: Path, *words: str) -> int:
    return main(["checkpoints", *words, "--state-dir", os.fspath(state_dir), "--checkpoint-policy", os.fspath(policy)])


def test_backup_copies_the_newest_good_one_into_every_place_of_the_tier(
    save: Save, root: Path, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(10)
    save(20)
    (root / "global_step_20" / "data.pt").unlink()
    assert run(state_dir, policy, "backup", "--tier", "milestone") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].split("-step")[1][:2] for line in lines] == ["10", "10"]
    assert [place for line in lines for place in line.split() if place.startswith(str(tmp_path))] == [
        f"{tmp_path}/far",
        f"{tmp_path}/farther",
    ]
    assert run(state_dir, policy, "backup", "--tier", "milestone", "--step", "10") == 0
    assert capsys.readouterr().out.count("nothing to send") == 2


def test_backup_says_what_it_cannot_do(
    save: Save, root: Path, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(10)
    assert run(state_dir, policy, "backup", "--tier", "archive") == 2
    assert "has no tier archive" in capsys.readouterr().err
    assert run(state_dir, policy, "backup") == 2
    assert run(state_dir, policy, "backup", "--tier", "snapshot", "--step", "30") == 4
    assert "is not copied" in capsys.readouterr().err
    (tmp_path / "farther").write_text("a file in the way")
    assert run(state_dir, policy, "backup", "--tier", "milestone") == 11
    assert "could not be copied" in capsys.readouterr().err
    (tmp_path / "farther").unlink()
    assert run(state_dir, policy, "backup", "--waiting") == 0
    assert f"is at {tmp_path}/farther" in capsys.readouterr().out
    assert run(state_dir, policy, "backup", "--waiting") == 0
    assert "Nothing waits" in capsys.readouterr().out
    assert main(["checkpoints", "prune", "--state-dir", os.fspath(state_dir)]) == 2
    assert "There is no checkpoint policy" in capsys.readouterr().err


def test_the_policy_that_a_run_was_started_with_is_found_again(save: Save, state_dir: Path, policy: Path) -> None:
    save(10)
    Workplace(state_dir).note_run(RunNote(run_id="a", policy=os.fspath(policy)))
    assert main(["checkpoints", "backup", "--tier", "snapshot", "--state-dir", os.fspath(state_dir)]) == 0


def test_a_copy_is_restored_where_nothing_of_the_run_is_left(
    save: Save, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(10)
    run(state_dir, policy, "backup", "--tier", "milestone")
    capsys.readouterr()
    place = os.fspath(tmp_path / "far")
    assert main(["checkpoints", "restore", "--from", place, "--list"]) == 0
    assert capsys.readouterr().out.split("\t")[:2] == ["a", "10"]
    assert main(["checkpoints", "restore", "--from", place]) == 2
    assert main(["checkpoints", "restore", "--from", place, "--to", os.fspath(tmp_path / "back")]) == 0
    assert verify(tmp_path / "back" / "global_step_10").ok
    assert main(["checkpoints", "restore", "--from", place, "--to", os.fspath(tmp_path / "back")]) == 4
    assert "is there already" in capsys.readouterr().err
    assert main(["checkpoints", "restore", "--from", place, "--to", os.fspath(tmp_path / "b"), "--step", "20"]) == 4
    assert "no copy of run a of step 20" in capsys.readouterr().err


def test_a_copy_that_a_rollback_went_behind_is_not_restored_before_the_keeper_has_marked_it(
    save: Save, root: Path, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20):
        save(step)
        run(state_dir, policy, "backup", "--tier", "milestone", "--step", str(step))
    leave_behind(os.fspath(root), 10, "the loss is NaN")
    assert not list((tmp_path / "far").rglob("*left_behind*"))
    back = ("--to", os.fspath(tmp_path / "back"))
    capsys.readouterr()
    assert run(state_dir, policy, "restore", "--tier", "milestone", *back) == 0
    assert "rolled back behind" in capsys.readouterr().err
    assert verify(tmp_path / "back" / "global_step_10").ok
    assert run(state_dir, policy, "restore", "--tier", "milestone", "--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert ["left behind" in line for line in listed] == [True, False]
    drilled(state_dir, tmp_path)
    assert run(state_dir, policy, "drill", "--tier", "milestone", "--step", "20") == 4
    assert "rolled back behind" in capsys.readouterr().err
    # Into the run's own directory, with nothing else of it on this machine.
    (root / "global_step_20").rename(tmp_path / "aside")
    words = ["checkpoints", "restore", "--from", os.fspath(tmp_path / "far"), "--to", os.fspath(root), "--beside"]
    assert main([*words, "--step", "20"]) == 4
    (name,) = {line.split("\t")[2] for line in listed if "left behind" in line}
    assert main([*words, "--name", name]) == 0


def test_a_copy_that_does_not_come_back_whole_is_told_to_the_exporter(
    save: Save, state_dir: Path, policy: Path, tmp_path: Path
) -> None:
    save(10)
    run(state_dir, policy, "backup", "--tier", "milestone")
    with Workplace(state_dir).reports():
        pass
    (rotten,) = (tmp_path / "far").rglob("data.pt")
    body = rotten.read_bytes()
    rotten.unlink()  # it may be linked with the run's own
    rotten.write_bytes(bytes(len(body)))
    assert run(state_dir, policy, "restore", "--tier", "milestone", "--to", os.fspath(tmp_path / "back")) == 4
    assert not list((tmp_path / "back").iterdir())
    with Workplace(state_dir).reports() as events:
        (event,) = events
    assert isinstance(event, CheckpointChecked)
    assert (event.ok, event.tier, event.depth) == (False, "milestone", "content")


def test_prune_says_each_decision_and_a_dry_run_only_says(
    save: Save, root: Path, state_dir: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20):
        save(step)
    assert run(state_dir, policy, "prune", "--dry-run") == 0
    assert "would go" in capsys.readouterr().out
    assert (root / "global_step_10").exists()
    assert run(state_dir, policy, "prune") == 0
    out = capsys.readouterr().out
    assert "deleted\t" in out
    assert "it is among the newest 1" in out
    assert not (root / "global_step_10").exists()


TRAINER = """
import re, sys
words = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:])
step = int(words["trainer.resume_from_path"].rpartition("_")[2])
open(words["trainer.resume_from_path"] + "/data.pt", "rb").read()
assert words["trainer.save_freq"] == "-1"
assert words["trainer.default_local_dir"] != "/the/runs/own"
for number in range(step + 1, int(words["trainer.total_training_steps"]) + 1 - int(words.get("short", 0))):
    print(f"(TaskRunner pid=1) step:{number} - train/loss:1.0", flush=True)
"""


def drilled(state_dir: Path, tmp_path: Path, *more: str) -> None:
    state = StateDir(state_dir)
    record = state.read_run()
    assert record is not None
    (tmp_path / "trainer.py").write_text(TRAINER)
    words = [sys.executable, os.fspath(tmp_path / "trainer.py"), "trainer.default_local_dir=/the/runs/own"]
    words += ["trainer.save_freq=5", "trainer.resume_mode=auto", *more]
    state.write_run(msgspec.structs.replace(record, argv=words))


def test_a_drill_trains_from_a_copy_times_it_and_leaves_nothing(
    save: Save, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(10)
    drilled(state_dir, tmp_path)
    run(state_dir, policy, "backup", "--tier", "milestone")
    with Workplace(state_dir).reports():
        pass
    capsys.readouterr()
    (tmp_path / "scratch").mkdir()
    scratch = ("--scratch", os.fspath(tmp_path / "scratch"))
    assert run(state_dir, policy, "drill", "--tier", "milestone", "--json", "--steps", "3", *scratch) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step"], figures["steps"]) == (10, 3)
    assert 0 < figures["restore_seconds"] < figures["total_seconds"]
    assert os.listdir(tmp_path / "scratch") == []
    with Workplace(state_dir).reports() as events:
        (event,) = events
    assert isinstance(event, CheckpointChecked)
    assert (event.depth, event.ok, event.tier, event.step) == ("drill", True, "milestone", 10)


@pytest.mark.parametrize("hand", [Hand("ray", "/etc/ray.yml"), Hand("slurm")])
def test_a_drill_of_a_run_on_a_cluster_trains_here_with_the_trainers_own_words(
    save: Save, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], hand: Hand
) -> None:
    save(10)
    drilled(state_dir, tmp_path)
    state = StateDir(state_dir)
    record = state.read_run()
    assert record is not None
    request = AttemptRequest(attempt=1, argv=hand.words(record.argv), cwd=record.cwd, marker="m")
    state.attempt_dir(1).mkdir()
    write_record(state.attempt_dir(1) / "request.json", request)
    state.write_run(msgspec.structs.replace(record, attempt=1, executor=hand.name))
    run(state_dir, policy, "backup", "--tier", "milestone")
    capsys.readouterr()
    assert run(state_dir, policy, "drill", "--tier", "milestone", "--json", "--steps", "3") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3


def test_a_drill_whose_trainer_trains_too_little_has_failed_and_says_so(
    save: Save, state_dir: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(10)
    drilled(state_dir, tmp_path, "short=1")
    run(state_dir, policy, "backup", "--tier", "milestone")
    with Workplace(state_dir).reports():
        pass
    (tmp_path / "scratch").mkdir()
    scratch = ("--scratch", os.fspath(tmp_path / "scratch"))
    assert run(state_dir, policy, "drill", "--tier", "milestone", *scratch) == 4
    assert "after 1 of 2 steps" in capsys.readouterr().err
    assert os.listdir(tmp_path / "scratch") == []
    with Workplace(state_dir).reports() as events:
        (event,) = events
    assert isinstance(event, CheckpointChecked)
    assert not event.ok
