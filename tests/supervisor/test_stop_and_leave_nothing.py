"""Stopping in three stages, and what is left behind: nothing of the run, and everything else."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from supervised_run import Scene, alive, until


def test_a_run_that_ends_well_ends_the_supervisor_with_zero(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(steps=6))
    assert scene.ended(supervisor) == 0
    assert "step:6" in scene.said()
    assert "the run is finished" in scene.said()
    assert scene.of_attempts() == []


def test_a_stop_lets_the_trainer_end_its_step_and_save(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(step_seconds=0.2, save_freq=1000))
    scene.output_has(1, "step:2")
    stopped = scene.cli("stop", "--state-dir", str(scene.state))
    assert stopped.returncode == 0, stopped.stderr
    assert scene.ended(supervisor) == 0
    assert "(clean" in scene.said()
    assert len(list(scene.checkpoints.glob("global_step_*"))) == 1
    assert not (scene.state / "stop-request").exists()


def test_a_trainer_that_knows_no_clean_stop_gets_sigterm(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(stop="ignore"), "--clean-stop-seconds", "0.3")
    scene.output_has(1, "step:2")
    supervisor.send_signal(signal.SIGTERM)
    assert scene.ended(supervisor) == 143
    assert "rainer is stopped (SIGTERM" in scene.said()


@pytest.mark.parametrize("hide", [0, 1])
def test_a_trainer_and_children_that_ignore_sigterm_are_killed_and_nothing_is_left(scene: Scene, hide: int) -> None:
    trainer = scene.trainer(stop="ignore", term="ignore", children=3, hide=hide)
    supervisor = scene.run(trainer, "--clean-stop-seconds", "0.1", "--term-seconds", "0.2")
    started = scene.started()
    assert all(alive(pid) for pid in started["children"])
    supervisor.send_signal(signal.SIGINT)
    assert scene.ended(supervisor) == 130
    assert "rainer is stopped (SIGKILL" in scene.said()
    assert [pid for pid in [started["pid"], *started["children"]] if alive(pid)] == []
    assert scene.of_attempts() == []


def test_children_that_a_crashed_trainer_left_are_ended(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(crash_at=3, children=2), wait="0")
    assert scene.ended(supervisor) == 3
    assert [pid for pid in scene.started()["children"] if alive(pid)] == []


def test_processes_of_another_run_are_not_touched(scene: Scene) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={"X": "1"})
    other = Scene(scene.folder / "other")
    other.folder.mkdir()
    try:
        other.run(other.trainer(children=1))
        theirs = other.started()
        supervisor = scene.run(scene.trainer(stop="ignore", term="ignore", children=1), "--term-seconds", "0.1")
        scene.started()
        supervisor.send_signal(signal.SIGTERM)
        until(lambda: "stopping the trainer" in scene.said(), "the first signal to be seen")
        supervisor.send_signal(signal.SIGTERM)
        assert scene.ended(supervisor) == 143
        assert scene.of_attempts() == []
        assert alive(stranger.pid)
        assert [alive(pid) for pid in (theirs["pid"], *theirs["children"])] == [True, True]
    finally:
        other.close()
        stranger.kill()
        stranger.wait()


def test_a_second_signal_does_not_wait_for_the_clean_end(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(stop="ignore"))  # the clean stop alone would take five minutes
    scene.started()
    supervisor.send_signal(signal.SIGINT)
    until(lambda: "asking attempt 1 to end" in scene.said(), "the clean stop to begin")
    supervisor.send_signal(signal.SIGINT)
    assert scene.ended(supervisor) == 130


def test_a_crash_without_a_command_ends_with_the_trainers_own_code(watched: Scene) -> None:
    supervisor = watched.run(watched.trainer(crash_at=3), wait="0.3")
    assert watched.ended(supervisor) == 3
    assert watched.exporter is not None
    [(attempt, event)] = watched.exporter.events("attempt_exited")
    assert (attempt, event.exit_code, event.signal, event.expected) == (1, 3, None, False)
    assert event.last_output[-1] == "RuntimeError: the fake fault"


def test_a_trainer_that_is_killed_is_reported_with_the_signal(watched: Scene) -> None:
    supervisor = watched.run(watched.trainer(), wait="0")
    pid = watched.started()["pid"]
    subprocess.run(["kill", "-KILL", str(pid)], check=True)
    assert watched.ended(supervisor) == 137
    assert watched.exporter is not None
    [(_, event)] = watched.exporter.events("attempt_exited")
    assert (event.exit_code, event.signal, event.expected) == (None, 9, False)


def test_a_program_that_does_not_exist_is_a_sentence(scene: Scene) -> None:
    supervisor = scene.run(["no-such-trainer", f"trainer.default_local_dir={scene.checkpoints}"])
    assert scene.ended(supervisor) == 71
    assert "The trainer 'no-such-trainer' cannot be started" in scene.said()
