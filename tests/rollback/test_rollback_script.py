"""rules/rollback/checkpoint.sh by hand: with the exporter down, with the supervisor dead, and with bad arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest
from supervised_run import SCRIPT, SCRIPTS, FakeExporter, Scene, alive, read, until


def hanging(scene: Scene) -> list[str]:
    return scene.trainer(hang_at=12, only_first=1)


def test_by_hand_with_no_exporter_at_all(scene: Scene) -> None:
    supervisor = scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    done = scene.script("--state-dir", str(scene.state), "--not-after-step", "7", "--reason", "it hangs; $(date) 'x'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rollback: step 1 of 3" in done.stdout
    assert "step 10 is refused: It was saved at step 10, after step 7" in done.stderr
    assert f"the trainer was started from {scene.checkpoints}/global_step_5" in done.stdout
    assert scene.started(2)["from"] == 5
    assert supervisor.poll() is None


def test_the_same_request_again_starts_nothing_more(scene: Scene) -> None:
    scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    words = ("--state-dir", str(scene.state), "--request-id", "night-shift-1", "--reason", "hang")
    assert scene.script(*words).returncode == 0
    done = scene.script(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Attempt 2 was already started for command night-shift-1; nothing is stopped." in done.stdout
    assert alive(scene.started(2)["pid"])
    target = scene.checkpoints / "global_step_10"
    again = scene.cli(
        "resume", "--state-dir", str(scene.state), "--request-id", "night-shift-1", "--target", str(target)
    )
    assert (again.returncode, again.stdout) == (0, "Attempt 2 was already started for command night-shift-1.\n")
    assert scene.attempts() == 2


def test_with_the_supervisor_dead_it_stops_the_trainer_and_says_how_to_go_on(scene: Scene) -> None:
    supervisor = scene.run(hanging(scene))
    started = scene.started()
    scene.output_has(1, "hanging")
    supervisor.kill()
    supervisor.wait()
    done = scene.script("--state-dir", str(scene.state), "--reason", "stuck")
    assert done.returncode == 7, done.stdout + done.stderr
    assert not alive(started["pid"])
    assert f"start from it with: verl-sentinel-train run --state-dir {scene.state}" in done.stdout
    assert scene.attempts() == 1
    scene.run(None)
    assert scene.started(2)["from"] == 10


def test_what_a_person_recorded_with_the_supervisor_dead_goes_before_the_exporters_command(scene: Scene) -> None:
    scene.exporter = FakeExporter()
    gate = scene.folder / "scripts"
    gate.mkdir()
    (gate / "checkpoint.sh").write_text(f"touch {scene.folder}/arrived; sleep 60\n")
    supervisor = scene.run(hanging(scene), "--rollback-scripts", str(gate))
    scene.output_has(1, "hanging")
    scene.command("c1", reason="hang")
    until((scene.folder / "arrived").exists, "the script to be run")
    supervisor.kill()
    supervisor.wait()
    done = scene.script("--state-dir", str(scene.state), "--not-after-step", "5", "--reason", "stuck")
    assert done.returncode == 7, done.stdout + done.stderr
    scene.run(None)
    assert scene.started(2)["from"] == 5
    last = scene.exporter.final("c1")
    assert (last.state, last.detail) == ("failed", "Meanwhile a person recorded that the run goes on from step 5.")
    assert scene.attempts() == 2


def test_with_the_supervisor_dead_it_starts_a_new_one_when_asked(scene: Scene) -> None:
    supervisor = scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    supervisor.kill()
    supervisor.wait()
    done = scene.script("--state-dir", str(scene.state), "--start-supervisor", "--reason", "stuck")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert scene.started(2)["from"] == 10
        assert "Attempt 2 started by a new supervisor" in done.stdout
    finally:
        stopped = scene.cli("stop", "--state-dir", str(scene.state))
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: scene.of_attempts() == [], "nothing to be left")


@pytest.mark.parametrize("supervised", [True, False])
def test_with_nothing_verified_the_trainer_is_stopped_and_nothing_started(scene: Scene, supervised: bool) -> None:
    supervisor = scene.run(hanging(scene))
    started = scene.started()
    scene.output_has(1, "hanging")
    if not supervised:
        supervisor.kill()
        supervisor.wait()
    for step in (5, 10):
        os.truncate(scene.saved(step) / "data.pt", 1)
    done = scene.script("--state-dir", str(scene.state), "--reason", "stuck")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "there is no checkpoint to go back to" in done.stdout
    assert "data.pt is truncated: 1 of 8 bytes" in done.stderr
    assert not alive(started["pid"])
    assert scene.attempts() == 1


def test_a_dry_run_names_the_target_and_changes_nothing(scene: Scene) -> None:
    scene.run(hanging(scene))
    started = scene.started()
    scene.saved(10)
    done = scene.script("--state-dir", str(scene.state), "--target-step", "9", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"the target is {scene.checkpoints}/global_step_5" in done.stdout
    assert alive(started["pid"])
    assert list((scene.state / "commands").iterdir()) == []
    os.truncate(scene.checkpoints / "global_step_5" / "data.pt", 1)
    assert scene.script("--state-dir", str(scene.state), "--target-step", "9", "--dry-run").returncode == 4
    assert alive(started["pid"])


def test_a_target_that_vanishes_while_the_trainer_stops_is_replaced_by_the_one_before(scene: Scene) -> None:
    """verl's own retention may delete the target with the save of a clean end."""
    edited = scene.folder / "checkpoint.sh"  # in a folder without lib.sh: the shipped one is found by the environment
    mark = 'say "step 3 of 3'
    edited.write_text(SCRIPT.read_text().replace(mark, f'rm -r "{scene.checkpoints}/global_step_10"\n{mark}', 1))
    scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    done = subprocess.run(
        ["bash", str(edited), "--state-dir", str(scene.state), "--reason", "stuck"],
        capture_output=True,
        text=True,
        env={**scene.environ, "VERL_SENTINEL_ROLLBACK_SCRIPTS": str(SCRIPTS)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert scene.started(2)["from"] == 5


@pytest.mark.parametrize(
    ("choices", "words", "sentence"),
    [
        (0, [], "nothing was done"),
        (1, [], "the trainer is stopped, and was not started"),
        (1, ["--save-first"], "the trainer is stopped, and was not started"),
    ],
)
def test_a_choice_that_fails_says_whether_the_trainer_is_stopped_by_then(
    scene: Scene, choices: int, words: list[str], sentence: str
) -> None:
    """The commands are stood in for: a file system that fails after so many choices, and a start that fails."""
    tool = scene.folder / "python"
    tool.write_text(f"""#!/bin/sh
cd {scene.folder}
case "$*" in
    *" checkpoints choose "*) [ -e chosen-{choices} ] && exit 6; touch chosen-1; echo /c/global_step_5 ;;
    *" stop "*) touch stopped ;;
    *" resume "*) exit 6 ;;
esac
""")
    tool.chmod(0o755)
    if not choices:
        (scene.folder / "chosen-0").touch()
    scene.state.mkdir()
    scene.environ["VERL_SENTINEL_PYTHON"] = str(tool)
    done = scene.script("--state-dir", str(scene.state), *words)
    assert done.returncode == 6
    assert done.stdout.splitlines()[-1] == f"rollback: choosing failed (code 6); {sentence}"
    assert (scene.folder / "stopped").exists() == (choices > 0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--state-dir is missing."),
        (["--state-dir"], "--state-dir needs a value."),
        (["--state-dir", "/no/such dir"], "The state directory '/no/such dir' does not exist."),
        (["--state-dir", ".", "--target-step", "-1"], "--target-step needs a step, a whole number from 0, not '-1'."),
        (["--state-dir", ".", "--not-after-step", "5; touch x"], "not '5; touch x'."),
        (["--state-dir", ".", "--request-id", ""], "--request-id needs 1 to 200 characters."),
        (["--frobnicate"], "'--frobnicate' is not an option."),
    ],
)
def test_unusable_arguments_do_nothing(scene: Scene, words: list[str], sentence: str) -> None:
    done = scene.script(*words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stdout == ""
    assert list(scene.folder.iterdir()) == []


def test_a_state_directory_without_a_run_is_a_sentence(scene: Scene) -> None:
    scene.state.mkdir()
    done = scene.script("--state-dir", str(scene.state))
    assert done.returncode == 6
    assert f"There is no run in {scene.state}" in done.stderr


def test_help_tells_every_exit_code_that_the_script_uses(scene: Scene) -> None:
    done = scene.script("--help")
    assert done.returncode == 0
    for code in (0, 2, 4, 5, 6, 7, 8, 9):
        assert f"\n  {code}  " in done.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", "-x", *map(str, sorted(SCRIPTS.glob("*.sh")))], check=True, cwd=SCRIPTS.parent.parent)


@pytest.mark.parametrize("rung", ["checkpoint", "config", "version", "infra"])
def test_the_supervisor_runs_these_very_scripts(rung: Any, scene: Scene) -> None:
    from trainer_entry.supervisor.script import script_of

    shipped = SCRIPTS / f"{rung}.sh"
    assert script_of(rung, SCRIPTS) == shipped
    assert script_of(rung, scene.folder) == shipped, "a folder without that script: the shipped one"
    own = scene.folder / f"{rung}.sh"
    own.touch()
    assert script_of(rung, scene.folder) == own
    assert os.access(shipped, os.X_OK)


def test_an_operators_rollback_command_goes_through_the_supervisor_or_without_it(scene: Scene) -> None:
    supervisor = scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    words = ("rollback", "--state-dir", str(scene.state), "--not-after-step", "8", "--reason", "stuck")
    done = scene.cli(*words, "--request-id", "r1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Attempt 2 started from step 5.\n"
    assert "stopping" in done.stderr
    assert scene.started(2)["from"] == 5
    assert read(scene.state / "commands" / "r1.json")["state"] == "succeeded"
    assert scene.cli(*words, "--request-id", "r1").stdout == done.stdout
    supervisor.kill()
    supervisor.wait()
    done = scene.cli(*words, "--request-id", "r2")
    assert done.returncode == 7, done.stdout + done.stderr
    assert scene.attempts() == 2


def test_settings_for_another_number_of_ranks_are_refused_before_anything_is_stopped(scene: Scene) -> None:
    program, *words = hanging(scene)
    scene.run([program, words[0], "+entry=main_ppo", "trainer.n_gpus_per_node=1", *words[1:]])
    scene.output_has(1, "hanging")
    done = scene.script("--state-dir", str(scene.state), "--set", "trainer.n_gpus_per_node=2", "--reason", "it hangs")
    assert done.returncode == 9, done.stdout + done.stderr
    assert "saved by 1 rank" in done.stderr
    assert done.stdout.strip().endswith("no checkpoint fits what is to be changed; nothing was done")
    assert alive(scene.started()["pid"])
    same = scene.script("--state-dir", str(scene.state), "--set", "trainer.n_gpus_per_node=1", "--reason", "it hangs")
    assert same.returncode == 0, same.stdout + same.stderr
    assert scene.started(2)["from"] == 10


def stand_in(scene: Scene, cases: str) -> None:
    """Stand-ins for the commands that a script runs, by what they are called with; each call is a line of ``calls``."""
    tool = scene.folder / "python"
    tool.write_text(f'#!/bin/sh\ncd {scene.folder}\necho "$*" >> calls\ncase "$*" in\n{cases}\nesac\n')
    tool.chmod(0o755)
    patient = scene.folder / "bin" / "sleep"
    patient.parent.mkdir()
    patient.write_text(f'#!/bin/sh\necho "sleep $*" >> {scene.folder}/calls\n')
    patient.chmod(0o755)
    scene.state.mkdir()
    scene.environ["VERL_SENTINEL_PYTHON"] = str(tool)
    scene.environ["PATH"] = f"{patient.parent}:{scene.environ.get('PATH', os.defpath)}"


def called(scene: Scene) -> list[str]:
    """The commands in their order: a word of each."""
    lines = (scene.folder / "calls").read_text().splitlines()
    words = ("choose", " stop ", " resume ", "sleep")
    return [next((word.strip() for word in words if word in line), line) for line in lines]


@pytest.mark.parametrize(("failures", "code", "waits"), [(3, 0, 2), (9, 6, 3)])
def test_a_start_that_fails_for_a_while_is_tried_again_and_not_for_ever(
    scene: Scene, failures: int, code: int, waits: int
) -> None:
    """A disk that is full for some seconds: what is to be written down with a start cannot be."""
    fails = f"[ $(grep -c ' resume ' calls) -gt {failures} ] || exit 6"
    stand_in(scene, f'    *" choose "*) echo /c/global_step_5 ;;\n    *" resume "*) {fails} ;;')
    done = scene.script("--state-dir", str(scene.state))
    assert done.returncode == code, done.stdout + done.stderr
    again = ["sleep", "resume"]
    assert called(scene) == ["choose", "stop", "resume", "choose", "resume", *again * waits]


def test_a_stop_that_was_killed_is_not_told_as_one_that_failed(scene: Scene) -> None:
    stand_in(scene, '    *" choose "*) echo /c/global_step_5 ;;\n    *" stop "*) kill -KILL $$ ;;')
    assert scene.script("--state-dir", str(scene.state)).returncode == 137


def test_other_ranks_are_refused_before_the_stop_also_where_it_is_to_save_first(scene: Scene) -> None:
    fits = '    *" choose "*--set=trainer.nnodes=*) exit 4 ;;\n    *" choose "*) echo /c/global_step_5 ;;'
    stand_in(scene, fits)
    done = scene.script("--state-dir", str(scene.state), "--save-first", "--set", "trainer.nnodes=2")
    assert (done.returncode, called(scene)) == (9, ["choose", "choose"]), done.stdout + done.stderr
    other = scene.script("--state-dir", str(scene.state), "--set", "data.seed=2")
    assert other.returncode == 0, other.stdout + other.stderr
