"""A rollback command from the exporter, with real processes: once, from a verified checkpoint, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from supervised_run import FakeExporter, Scene, read, until

MANIFEST = "verl_sentinel_manifest.json"


def paused(scene: Scene, *words: str, **fake: object) -> list[str]:
    """A trainer that hangs after its fifteenth step, with checkpoints at 5, 10 and 15, and goes on after a rollback."""
    return scene.trainer(*words, **{"hang_at": 16, "only_first": 1, **fake})


def test_a_rollback_resumes_before_the_onset_and_tells_each_stage(watched: Scene) -> None:
    watched.run(paused(watched, "trainer.resume_mode=auto", "++trainer.resume_from_path=null"))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="stalled_phase on gen", not_after_step=12, target_step=14)
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.target_step) == ("succeeded", 10)
    assert watched.exporter.states("c1") == ["accepted", "stopping", "stopped", "starting", "started", "succeeded"]
    started = watched.started(2)
    assert (started["attempt"], started["from"]) == (2, 10)
    resume = [word for word in started["argv"] if word.startswith("trainer.resume")]
    assert resume == [
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={watched.checkpoints}/global_step_10",
    ]
    starts = watched.exporter.events("attempt_started")
    assert [(attempt, e.resume_step, e.command_id) for attempt, e in starts] == [(1, None, ""), (2, 10, "c1")]
    [(attempt, exited)] = watched.exporter.events("attempt_exited")
    assert (attempt, exited.signal, exited.expected) == (1, signal.SIGTERM, True)
    assert watched.attempts() == 2


def test_a_trainer_that_is_well_ends_cleanly_for_a_rollback_and_saves_nothing_more(watched: Scene) -> None:
    watched.run(watched.trainer(step_seconds=0.1, save_freq=2))
    watched.saved(4)
    watched.command("c1", reason="surge on kl", not_after_step=3)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").target_step == 2
    assert [p.detail for p in watched.exporter.progress("c1") if "(clean" in p.detail]


def test_the_same_command_again_acts_once(watched: Scene) -> None:
    supervisor = watched.run(paused(watched))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    watched.exporter.final("c1")
    before = len(watched.exporter.progress("c1"))
    watched.command("c1", reason="hang")  # a webhook that came twice, or an exporter that forgot
    until(lambda: watched.exporter and len(watched.exporter.progress("c1")) > before, "the end to be told again")
    assert {p.state for p in watched.exporter.progress("c1")[before:]} == {"succeeded"}
    assert watched.attempts() == 2
    supervisor.kill()
    supervisor.wait()
    watched.run(paused(watched))
    again = len(watched.exporter.progress("c1"))
    until(lambda: watched.exporter and len(watched.exporter.progress("c1")) > again, "the next supervisor to tell it")
    assert watched.attempts() == 2


def test_a_command_for_an_attempt_that_is_over_fails_and_changes_nothing(watched: Scene) -> None:
    watched.run(paused(watched))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    watched.exporter.final("c1")
    watched.command("c2", attempt=1, reason="hang")
    last = watched.exporter.final("c2")
    assert last.state == "failed"
    assert last.detail == "It is for attempt 1, which is over; this is attempt 2."
    assert watched.attempts() == 2


def damage_truncate(directory: Path) -> None:
    os.truncate(directory / "actor" / "model_world_size_1_rank_0.pt", 50)


def damage_manifest(directory: Path) -> None:
    (directory / MANIFEST).unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_manifest, shutil.rmtree])
def test_when_the_newest_checkpoint_is_damaged_the_one_before_is_taken(watched: Scene, damage: object) -> None:
    watched.run(paused(watched))
    watched.output_has(1, "hanging")
    assert callable(damage)
    damage(watched.saved(15))
    watched.command("c1", reason="hang", target_step=15)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").target_step == 10
    assert watched.started(2)["from"] == 10


def test_with_no_checkpoint_left_the_run_stops_is_told_and_stays_held(watched: Scene) -> None:
    supervisor = watched.run(paused(watched), wait="0.5")
    watched.output_has(1, "hanging")
    for step in (5, 10, 15):
        damage_truncate(watched.saved(step))
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert last.state == "failed"
    assert "No verified checkpoint that may be restored is left; the trainer stays stopped." in last.detail
    assert watched.ended(supervisor) == 70
    assert watched.of_attempts() == []
    # Nor does a restart by somebody's automation begin anew, or from what is damaged.
    again = watched.run(paused(watched))
    assert watched.ended(again) == 70
    assert "The run is held" in watched.said()
    assert "step 15: The file actor/model_world_size_1_rank_0.pt is truncated" in watched.said()
    assert watched.attempts() == 1
    # A person who says so explicitly may.
    watched.run(paused(watched, "trainer.resume_mode=disable"))
    assert watched.started(2)["from"] == 0


def test_an_operator_can_put_a_checkpoint_back_while_the_supervisor_waits(watched: Scene) -> None:
    watched.run(paused(watched))
    watched.output_has(1, "hanging")
    for step in (10, 15):
        damage_manifest(watched.saved(step))
    kept = watched.saved(5).rename(watched.folder / "kept")
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "failed"
    status = watched.cli("status", "--state-dir", str(watched.state), "--json")
    assert '"state": "held"' in status.stdout
    target = kept.rename(watched.checkpoints / "global_step_5")
    resumed = watched.cli("resume", "--state-dir", str(watched.state), "--target", str(target))
    assert resumed.returncode == 0, resumed.stderr
    assert watched.started(2)["from"] == 5


def test_a_crash_waits_for_the_command_that_rolls_it_back(watched: Scene) -> None:
    watched.run(watched.trainer(crash_at=12, only_first=1))
    until(lambda: "waiting up to 30 s for a command" in watched.said(), "the supervisor to wait")
    watched.command("c1", reason="trainer_exited")
    assert watched.exporter is not None
    assert watched.exporter.final("c1").target_step == 10
    assert watched.started(2)["from"] == 10


def test_checkpoints_that_a_rollback_went_behind_are_not_taken_later(watched: Scene) -> None:
    supervisor = watched.run(paused(watched, later_hang_at=8), "--clean-stop-seconds", "0.2")
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang", not_after_step=7)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").target_step == 5
    watched.output_has(2, "hanging")
    # Nor by verl itself, should somebody start it without us.
    assert (watched.checkpoints / "latest_checkpointed_iteration.txt").read_text() == "5"
    watched.command("c2", attempt=2, reason="hang")
    assert watched.exporter.final("c2").target_step == 5
    watched.output_has(3, "hanging")
    assert "step 15 is refused: It was left behind by a rollback to step 5" in watched.said()
    supervisor.send_signal(signal.SIGTERM)
    watched.ended(supervisor)
    # Once the new branch has saved there, it may be chosen again.
    watched.run(watched.trainer())
    assert watched.started(4)["from"] == 5
    listed = watched.saved(10)
    assert watched.cli("checkpoints", "verify", str(listed)).returncode == 0


def test_a_stop_command_stops_the_run_and_the_supervisor(watched: Scene) -> None:
    supervisor = watched.run(watched.trainer(step_seconds=0.05))
    watched.started()
    watched.command("c1", action="stop", reason="the budget of recoveries is used up")
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    assert watched.ended(supervisor) == 0
    assert watched.of_attempts() == []


def test_the_exporters_death_stops_neither_training_nor_a_rollback_and_it_is_told_later(watched: Scene) -> None:
    watched.run(paused(watched))
    assert watched.exporter is not None
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    until(lambda: watched.exporter and "accepted" in watched.exporter.states("c1"), "the command to be taken")
    port = watched.exporter.port
    watched.exporter.close()
    assert watched.started(2)["from"] == 15
    watched.exporter = FakeExporter(port)
    until(lambda: watched.exporter and "succeeded" in watched.exporter.states("c1"), "the end, from the spool")


def test_a_command_with_a_hostile_id_stays_inside_the_state_directory(watched: Scene) -> None:
    watched.run(paused(watched))
    watched.output_has(1, "hanging")
    hostile = "../../$(touch x);`id`"
    watched.command(hostile, reason="hang; $(touch y) --dry-run")
    assert watched.exporter is not None
    assert watched.exporter.final(hostile).state == "succeeded"
    assert sorted(p.name for p in watched.folder.iterdir()) == ["checkpoints", "state", "supervisor-0.log"]
    [record] = (watched.state / "commands").iterdir()
    assert read(record)["id"] == hostile


def test_a_command_that_no_program_can_be_given_fails_and_the_supervisor_lives(watched: Scene) -> None:
    supervisor = watched.run(watched.trainer())
    watched.started()
    watched.command("c\0d", reason="hang")
    assert watched.exporter is not None
    last = watched.exporter.final("c\0d")
    assert (last.state, "cannot be run: embedded null byte" in last.detail) == ("failed", True)
    assert supervisor.poll() is None


@pytest.mark.parametrize("tracker", ["99", None])
def test_a_tracker_that_would_start_from_scratch_in_silence_is_overruled(scene: Scene, tracker: str | None) -> None:
    first = scene.run(scene.trainer(steps=12))
    assert scene.ended(first) == 0
    path = scene.checkpoints / "latest_checkpointed_iteration.txt"
    path.unlink() if tracker is None else path.write_text(tracker)
    scene.run(scene.trainer())
    assert scene.started(2)["from"] == 10
    assert "resuming from step 10" in scene.said()


def test_a_stale_tracker_with_nothing_verified_is_refused(scene: Scene) -> None:
    assert scene.ended(scene.run(scene.trainer(steps=7))) == 0
    damage_manifest(scene.saved(5))
    (scene.checkpoints / "latest_checkpointed_iteration.txt").write_text("6")
    second = scene.run(scene.trainer())
    assert scene.ended(second) == 70
    assert "names global_step_6, which is not there, and it would start from scratch in silence" in scene.said()
    assert scene.attempts() == 1


def test_a_first_start_gets_the_users_own_words(scene: Scene) -> None:
    scene.run(scene.trainer("trainer.resume_mode=auto", "+note='a b'"))
    assert scene.started()["argv"] == scene.trainer("trainer.resume_mode=auto", "+note='a b'")[2:]


def test_a_hold_outlives_the_same_words_again_and_a_start_that_fails(watched: Scene) -> None:
    """Words that said "from scratch" before the hold, and come again by somebody's automation, decide nothing."""
    scratch = paused(watched, "trainer.resume_mode=disable")
    supervisor = watched.run(scratch, wait="0.5")
    watched.output_has(1, "hanging")
    for step in (5, 10, 15):
        damage_truncate(watched.saved(step))
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "failed"
    assert watched.ended(supervisor) == 70
    for words in (scratch, None):
        assert watched.ended(watched.run(words)) == 70
        assert "its trainer.resume_mode is no new decision" in watched.said()
    assert watched.attempts() == 1
    # A person's new words may start from scratch; when that start fails, the run is still held.
    assert watched.ended(watched.run(["no-such-program", *scratch[1:]])) == 71
    assert watched.ended(watched.run(paused(watched))) == 70
    assert "The run is held" in watched.said()
    assert len(watched.starts()) == 1


def test_a_start_from_scratch_beside_checkpoints_is_said(scene: Scene) -> None:
    assert scene.ended(scene.run(scene.trainer(steps=6))) == 0
    assert scene.ended(scene.run(scene.trainer("trainer.resume_mode=disable", steps=6))) == 0
    assert scene.starts()[1]["from"] == 0
    assert "starting from scratch, as trainer.resume_mode=disable says, beside the checkpoints in" in scene.said()


def test_a_path_that_verl_does_not_look_at_is_no_reason_to_start_from_scratch(scene: Scene) -> None:
    """In mode auto verl's PPO follows its tracker, whatever resume_from_path says."""
    words = ("trainer.resume_mode=auto", "trainer.resume_from_path=/elsewhere/global_step_9")
    assert scene.ended(scene.run(scene.trainer(*words, steps=6))) == 0
    (scene.checkpoints / "latest_checkpointed_iteration.txt").unlink()
    scene.run(scene.trainer(*words))
    assert scene.started(2)["from"] == 5


def test_how_the_trainer_was_stopped_is_said_once(watched: Scene) -> None:
    watched.run(paused(watched))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    watched.exporter.final("c1")
    until(lambda: "the trainer was started from" in watched.said(), "the script's last line")
    assert watched.said().count("The trainer is stopped (") == 1


def test_a_command_whose_end_could_not_be_written_down_is_ended_and_not_carried_out_again(watched: Scene) -> None:
    watched.run(paused(watched))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    watched.exporter.final("c1")
    path = watched.state / "commands" / "c1.json"
    until(lambda: read(path)["state"] == "succeeded", "the record")
    path.write_text(json.dumps({**read(path), "state": "started"}))  # as a full disk leaves it
    watched.command("c1", reason="hang")
    until(lambda: read(path)["state"] == "succeeded", "the end to be written down")
    assert watched.attempts() == 2
