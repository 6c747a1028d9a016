"""What a rung changes reaches the trainer, stays for later attempts, and is never half in force."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from supervised_run import Scene, alive, gated, read, until

from exporter.protocol import Changes, Excluded

RATE = "actor_rollout_ref.actor.optim.lr"


def hanging(scene: Scene, *words: str, **fake: object) -> list[str]:
    """A trainer with a rate of 0.1 that hangs after its twelfth step, and in later attempts at 22."""
    return scene.trainer(f"{RATE}=0.1", *words, **{"hang_at": 12, "later_hang_at": 22, "only_first": 1, **fake})


def rates(started: dict[str, Any]) -> list[str]:
    """Every word of a start that says something of the rate."""
    return [word for word in started["argv"] if RATE in word]


def in_force(scene: Scene) -> Any:
    return read(scene.state / "run.json")["changes"]


def test_a_changed_setting_reaches_the_trainer_and_stays_until_a_later_rung_replaces_it(watched: Scene) -> None:
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    assert watched.exporter is not None
    changes = Changes(settings={RATE: 5e-7, "data.name": "it's 1"}, removed=["actor.clip"])
    watched.command("c1", reason="hang", rung="config", changes=changes)
    last = watched.exporter.final("c1")
    assert last.state == "succeeded", last
    second = watched.started(2)
    assert rates(second) == [f"++{RATE}=5e-07"], "in place of the word that was given"
    assert [word for word in second["argv"] if "data.name" in word] == ["++data.name='it\\'s 1'"]
    assert second["argv"].index("~actor.clip") == second["argv"].index("++actor.clip=0") + 1
    assert json.loads(second["changes"])["settings"] == changes.settings
    events = dict(watched.exporter.events("attempt_started"))
    assert events[1].changes is None
    assert (events[2].changes, events[2].executor) == (changes, "local")

    watched.output_has(2, "hanging")  # a rollback of the checkpoint alone does not bring the old rate back
    watched.command("c2", attempt=2, reason="hang")
    assert watched.exporter.final("c2").state == "succeeded"
    assert rates(watched.started(3)) == [f"++{RATE}=5e-07"]

    watched.output_has(3, "hanging")
    watched.command("c3", attempt=3, reason="hang", rung="config", changes=Changes(settings={RATE: 1e-7}))
    assert watched.exporter.final("c3").state == "succeeded"
    assert rates(watched.started(4)) == [f"++{RATE}=1e-07"]
    assert in_force(watched)["settings"] == {RATE: 1e-7, "data.name": "it's 1"}
    status = watched.cli("status", "--state-dir", str(watched.state), "--json")
    assert json.loads(status.stdout)["changes"].startswith(f"{RATE}=1e-07")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (Changes(settings={"trainer.resume_mode": "disable"}), "the supervisor decides where a run starts from"),
        (Changes(verl_version="0.9.1; rm -rf /"), "is no version of verl"),
    ],
)
def test_what_may_not_be_changed_is_refused_and_the_trainer_goes_on(watched: Scene, changes: Changes, why: str) -> None:
    watched.run(hanging(watched))
    trainer = watched.started()["pid"]
    watched.command("c1", reason="hang", rung="config", changes=changes)
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.code, last.running) == ("failed", 9, True)
    assert why in last.detail
    assert alive(trainer)
    assert watched.attempts() == 1
    assert in_force(watched) == {}


def test_a_version_that_was_never_built_stops_nothing(watched: Scene) -> None:
    watched.environ["PIP_NO_INDEX"] = "1"
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang", rung="version", changes=Changes(verl_version="0.0.7"))
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.code, last.running) == ("failed", 9, True)
    assert any("verl 0.0.7 cannot be installed" in line for line in last.output), last.output
    assert watched.attempts() == 1


def test_the_last_lines_of_the_script_are_told_with_the_end(watched: Scene) -> None:
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang", rung="config", changes=Changes(settings={RATE: 0.01}))
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert f"rollback:   {RATE}: 0.1 -> 0.01" in last.output
    assert last.output[-1] == f"rollback: the trainer was started from {watched.checkpoints}/global_step_10"
    assert all(p.output == [] for p in watched.exporter.progress("c1") if p.state not in ("succeeded", "failed"))


@pytest.mark.parametrize("stage", ["choose", "stop", "resume", "end"])
def test_a_supervisor_killed_at_any_stage_changes_the_settings_once(watched: Scene, stage: str) -> None:
    arrived, gate = watched.folder / "arrived", watched.folder / "gate"
    scripts = gated(watched.folder / "scripts", stage, arrived, gate, rung="config")
    first = watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang", rung="config", changes=Changes(settings={RATE: 0.01}))
    until(arrived.exists, "the script to come to its gate")
    assert (in_force(watched) != {}) == (stage == "end")
    first.kill()
    first.wait()
    gate.touch()
    watched.run(hanging(watched))
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    assert rates(watched.started(2)) == [f"++{RATE}=0.01"]
    assert watched.attempts() == 2
    assert in_force(watched) == {"settings": {RATE: 0.01}}


def test_a_start_that_fails_leaves_in_force_what_was(watched: Scene) -> None:
    trainer = hanging(watched)
    broken = watched.folder / "trainer.sh"
    broken.write_text(f'#!/bin/sh\nexec "{trainer[0]}" "$@"\n')
    broken.chmod(0o755)
    watched.run([str(broken), *trainer[1:]])
    watched.output_has(1, "hanging")
    broken.unlink()
    watched.command("c1", reason="hang", rung="config", changes=Changes(settings={RATE: 0.01}))
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "failed"
    assert in_force(watched) == {}


def test_the_target_is_held_for_the_time_of_the_command(watched: Scene) -> None:
    arrived, gate = watched.folder / "arrived", watched.folder / "gate"
    scripts = gated(watched.folder / "scripts", "resume", arrived, gate)
    watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    hold = watched.checkpoints / "global_step_10" / "verl_sentinel_hold.json"
    watched.command("c1", reason="hang")
    until(arrived.exists, "the script to come to its gate")
    assert read(hold)["holder"] == "command c1"
    gate.touch()
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    assert not hold.exists()


@pytest.mark.parametrize("gate_at", ["stop", "resume"])
def test_when_the_target_is_deleted_after_it_was_chosen_another_is_chosen(watched: Scene, gate_at: str) -> None:
    arrived, gate = watched.folder / "arrived", watched.folder / "gate"
    scripts = gated(watched.folder / "scripts", gate_at, arrived, gate)
    watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    until(arrived.exists, "the script to come to its gate")
    shutil.rmtree(watched.checkpoints / "global_step_10")
    gate.touch()
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.target_step) == ("succeeded", 5)
    assert "was deleted since it was chosen; another is to be chosen" in watched.said()
    assert list(watched.checkpoints.glob("*/verl_sentinel_hold.json")) == []


def test_a_hold_that_a_killed_supervisor_left_ends_with_its_command(watched: Scene) -> None:
    arrived, gate = watched.folder / "arrived", watched.folder / "gate"
    scripts = gated(watched.folder / "scripts", "resume", arrived, gate)
    first = watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    until(arrived.exists, "the script to come to its gate")
    first.kill()
    first.wait()
    gate.touch()
    watched.run(hanging(watched))
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    assert list(watched.checkpoints.glob("*/verl_sentinel_hold.json")) == []


def test_a_restart_saves_first_and_goes_on_from_there(watched: Scene) -> None:
    watched.run(watched.trainer(step_seconds=0.2, save_freq=1000))
    watched.output_has(1, "step:3")
    watched.command("c1", action="restart", reason="forecast on host_memory")
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert last.state == "succeeded", last
    started = watched.started(2)
    assert started["from"] == last.target_step >= 3, "no checkpoint was due, so the clean end made this one"
    done = (watched.state / "attempts/1/output.log").read_text().splitlines()
    assert done[-2:] == [f"step:{started['from']}", "done"], "no step was lost"
    [(_, exited)] = watched.exporter.events("attempt_exited")
    assert (exited.exit_code, exited.expected) == (0, True)


def test_a_restart_that_does_not_end_cleanly_goes_back_within_its_limits(watched: Scene) -> None:
    watched.run(hanging(watched), "--clean-stop-seconds", "0.3")
    watched.output_has(1, "hanging")
    watched.command("c1", action="restart", reason="forecast on host_memory", not_after_step=7)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").target_step == 5
    assert "it did not end cleanly" in watched.said()
    assert watched.started(2)["from"] == 5


@pytest.mark.parametrize("stage", ["stop", "resume"])
def test_a_restart_that_was_half_carried_out_loses_no_step(watched: Scene, stage: str) -> None:
    arrived, gate = watched.folder / "arrived", watched.folder / "gate"
    scripts = gated(watched.folder / "scripts", stage, arrived, gate)
    trainer = watched.trainer(step_seconds=0.2, save_freq=1000)
    first = watched.run(trainer, "--rollback-scripts", str(scripts))
    watched.output_has(1, "step:2")
    watched.command("c1", action="restart", reason="forecast on host_memory", not_after_step=1)
    until(arrived.exists, "the script to come to its gate")
    first.kill()
    first.wait()
    gate.touch()
    watched.run(trainer)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    done = (watched.state / "attempts/1/output.log").read_text().splitlines()
    assert done[-2] == f"step:{watched.started(2)['from']}"
    assert watched.attempts() == 2


def test_batches_are_skipped_from_that_step_only(watched: Scene) -> None:
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    assert watched.exporter is not None
    watched.command("c1", reason="hang", changes=Changes(skip_steps=3))
    assert watched.exporter.final("c1").state == "succeeded"
    assert json.loads(watched.started(2)["changes"]) == {"skip_steps": 3}
    watched.output_has(2, "hanging")
    watched.command("c2", attempt=2, reason="hang", target_step=20)  # its data position has the skip in it
    assert watched.exporter.final("c2").target_step == 20
    assert watched.started(3)["changes"] == ""
    watched.output_has(3, "hanging")
    watched.command("c3", attempt=3, reason="hang", target_step=10)
    assert watched.exporter.final("c3").target_step == 10
    assert watched.started(4)["changes"] == "", "a later command from elsewhere has ended it"


def test_a_trainer_that_dies_before_it_saved_skips_the_same_batches_again(watched: Scene) -> None:
    supervisor = watched.run(hanging(watched, later_hang_at=11))
    watched.output_has(1, "hanging")
    assert watched.exporter is not None
    watched.command("c1", reason="hang", changes=Changes(skip_steps=3))
    assert watched.exporter.final("c1").state == "succeeded"
    os.kill(watched.started(2)["pid"], signal.SIGKILL)
    until(lambda: len(watched.exporter.events("attempt_exited")) == 2 if watched.exporter else False, "its end")
    supervisor.kill()
    supervisor.wait()
    watched.run(None)
    until(lambda: watched.attempts() == 3 or "waiting up to" in watched.said(), "the next supervisor")
    if watched.attempts() == 2:  # a crash waits for a command; a person says to go on
        target = str(watched.checkpoints / "global_step_10")
        assert watched.cli("resume", "--state-dir", str(watched.state), "--target", target).returncode == 0
    assert json.loads(watched.started(3)["changes"]) == {"skip_steps": 3}


def test_a_person_forgets_what_earlier_rungs_changed(watched: Scene) -> None:
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    assert watched.exporter is not None
    watched.command("c1", reason="hang", rung="config", changes=Changes(settings={RATE: 0.01}))
    assert watched.exporter.final("c1").state == "succeeded"
    watched.output_has(2, "hanging")
    done = watched.script("--state-dir", str(watched.state), "--reason", "hang", "--forget-changes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"forgotten: {RATE}=0.01" in done.stdout
    assert rates(watched.started(3)) == [f"{RATE}=0.1"]
    assert in_force(watched) == {}


def test_a_machine_is_not_left_out_where_there_is_no_other(watched: Scene) -> None:
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    here = os.uname().nodename
    watched.command("c1", reason="hang", rung="infra", changes=Changes(exclude=[Excluded(node=here)]))
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.code, last.running) == ("failed", 9, True)
    assert any("the only one the trainer runs on" in line for line in last.output), last.output


def test_a_machine_of_a_cluster_is_left_to_the_plugin(watched: Scene) -> None:
    watched.run(hanging(watched, "+ray_kwargs.ray_init.address=auto"))
    watched.output_has(1, "hanging")
    changes = Changes(exclude=[Excluded(node="gpu-17", gpu="GPU-8f", reason="Xid 79")])
    watched.command("c1", reason="hang", rung="infra", changes=changes)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    assert json.loads(watched.started(2)["changes"])["exclude"][0]["node"] == "gpu-17"


def test_an_operator_gives_a_rung_as_a_whole(scene: Scene) -> None:
    scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    words = ("rollback", "--state-dir", str(scene.state), "--rung", "config", "--reason", "hang")
    refused = scene.cli(*words)
    assert refused.returncode != 0
    assert "It is not said what to change" in refused.stderr
    done = scene.cli(*words, "--set", f"{RATE}=0.01")
    assert (done.returncode, done.stdout) == (0, "Attempt 2 started from step 10.\n"), done.stderr
    assert rates(scene.started(2)) == [f"++{RATE}=0.01"]


def repository(folder: Path, content: str) -> Path:
    """A repository with a branch ``prod-stable`` that has the file ``train.yaml``."""
    folder.mkdir()
    (folder / "train.yaml").write_text(content)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "prod-stable"], ["add", "."], ["commit", "-q", "-m", "stable"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    return folder


def test_the_configuration_of_a_branch_is_compared_and_applied(scene: Scene) -> None:
    scene.run(hanging(scene, "data.train_batch_size=64"))
    scene.output_has(1, "hanging")
    yaml = "actor_rollout_ref: {actor: {optim: {lr: 2.0e-07}}}\ndata: {train_batch_size: 64}\n"
    source = repository(scene.folder / "configurations", yaml)
    words = (
        "--state-dir",
        str(scene.state),
        "--reason",
        "hang",
        "--from-git",
        str(source),
        "prod-stable",
        "train.yaml",
    )
    dry = scene.script(*words, "--dry-run", name="config")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert f"rollback:   {RATE}: 0.1 -> 2e-07" in dry.stdout
    assert "train_batch_size" not in dry.stdout
    assert scene.attempts() == 1
    done = scene.script(*words, name="config")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rates(scene.started(2)) == [f"++{RATE}=2e-07"]
