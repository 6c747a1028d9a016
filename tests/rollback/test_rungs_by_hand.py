"""The scripts of the higher rungs by hand: with the exporter down, with the supervisor dead, and dry."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from supervised_run import Scene, alive, read, until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "environments"))

from small_verl import unpacked

RATE = "actor_rollout_ref.actor.optim.lr"


def hanging(scene: Scene, *words: str, **fake: object) -> list[str]:
    return scene.trainer(f"{RATE}=0.1", *words, **{"hang_at": 12, "only_first": 1, **fake})


def rates(started: dict[str, Any]) -> list[str]:
    return [word for word in started["argv"] if RATE in word]


def stop(scene: Scene) -> None:
    """End a supervisor that a script has started."""
    scene.cli("stop", "--state-dir", str(scene.state))
    until(lambda: scene.of_attempts() == [], "nothing to be left")


def test_a_dry_run_shows_the_difference_and_changes_nothing(scene: Scene) -> None:
    scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    words = ("--state-dir", str(scene.state), "--set", f"{RATE}=5e-7", "--remove", "actor.clip", "--dry-run")
    done = scene.script(*words, name="config")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rollback:   {RATE}: 0.1 -> 5e-07\n" in done.stdout
    assert "rollback:   actor.clip: (not there) -> (taken out)\n" in done.stdout
    assert alive(scene.started()["pid"])
    assert (scene.attempts(), list((scene.state / "commands").iterdir())) == (1, [])


def test_the_settings_of_the_target_come_from_its_manifest(scene: Scene) -> None:
    """The checkpoints up to step 10 were saved under one configuration, the trainer now runs under another."""
    assert scene.ended(scene.run(scene.trainer(f"{RATE}=0.01", "data.seed=1", steps=10))) == 0
    scene.run(hanging(scene, "+actor.extra=1", "data.seed=1", later_hang_at=12))
    scene.output_has(2, "hanging")
    words = ("--state-dir", str(scene.state), "--from-manifest", "--reason", "hang")
    done = scene.script(*words, name="config")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{RATE}: 0.1 -> 0.01" in done.stdout
    assert "data.seed" not in done.stdout
    started = scene.started(3)
    assert (started["from"], rates(started)) == (10, [f"++{RATE}=0.01"])
    assert [word for word in started["argv"] if "extra" in word] == [], "what was added since is taken out"
    scene.output_has(3, "Resuming")
    again = scene.script(*words, "--dry-run", name="config")
    assert again.returncode == 9
    assert "the two configurations are the same; there is nothing to change" in again.stderr


def test_with_the_supervisor_dead_the_changes_are_recorded_for_the_next(scene: Scene) -> None:
    supervisor = scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    supervisor.kill()
    supervisor.wait()
    words = ("--state-dir", str(scene.state), "--set", f"{RATE}=5e-7", "--reason", "stuck")
    done = scene.script(*words, name="config")
    assert done.returncode == 7, done.stdout + done.stderr
    assert scene.attempts() == 1
    scene.run(None)
    started = scene.started(2)
    assert (started["from"], rates(started)) == (10, [f"++{RATE}=5e-07"])
    assert read(scene.state / "run.json")["changes"] == {"settings": {RATE: 5e-7}}
    assert scene.cli("stop", "--state-dir", str(scene.state)).returncode == 0
    scene.run(None, "--forget-changes")
    assert rates(scene.started(3)) == [f"{RATE}=0.1"], "a person may drop them"


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("config", [], "It is not said what to change"),
        ("config", ["--from-git", "a", "b"], "--from-git needs 3 values."),
        ("version", [], "--version is missing."),
        ("infra", [], "--exclude is missing."),
        ("rollback_verl", [], "VERSION is missing"),
        ("rollback_verl", ["0.9.0", "--wait-seconds", "x"], "--wait-seconds needs a whole number, not 'x'."),
        ("checkpoint", ["--skip-steps", "-3"], "--skip-steps needs a number of batches, not '-3'."),
    ],
)
def test_unusable_arguments_do_nothing(scene: Scene, name: str, words: list[str], sentence: str) -> None:
    scene.state.mkdir()
    state = ["--state-dir", str(scene.state)]
    done = scene.script(*words[:1], *state, *words[1:], name=name) if name == "rollback_verl" else None
    done = done or scene.script(*state, *words, name=name)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert list(scene.state.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("config", ["--set", "trainer.resume_mode=disable"], "the supervisor decides where a run starts from"),
        ("config", ["--set", "no-key"], "'no-key' is not KEY=VALUE."),
        ("config", ["--from-git", "/no/such/repository", "main", "a.yaml"], "git cannot get the configuration from"),
        ("config", ["--from-git", ".", "main", "../../etc/passwd"], "is no path inside the repository"),
        ("infra", ["--exclude", "gpu-17"], "gpu-17 is not this machine"),
        ("version", ["--version", "../x"], "is no version of verl"),
    ],
)
def test_what_cannot_be_changed_stops_nothing(scene: Scene, name: str, words: list[str], sentence: str) -> None:
    scene.run(hanging(scene))
    scene.output_has(1, "hanging")
    done = scene.script("--state-dir", str(scene.state), *words, name=name)
    assert done.returncode == 9, done.stdout + done.stderr
    assert sentence in done.stderr
    assert alive(scene.started()["pid"])
    assert scene.attempts() == 1


@pytest.mark.parametrize("name", ["checkpoint", "config", "version", "infra", "rollback_verl"])
def test_help_tells_every_exit_code(scene: Scene, name: str) -> None:
    done = scene.script("--help", name=name)
    assert done.returncode == 0
    for code in (0, 2, 4, 5, 6, 7, 8, 9):
        assert f"\n  {code}  " in done.stdout


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A checkpoint's files that torch can load."""
    torch = pytest.importorskip("torch")
    folder = tmp_path / "shards"
    (folder / "actor").mkdir(parents=True)
    torch.save({"w": torch.zeros(2)}, folder / "actor" / "model_world_size_1_rank_0.pt")
    torch.save({"state": {}, "param_groups": []}, folder / "actor" / "optim_world_size_1_rank_0.pt")
    torch.save({"lr_scheduler": None}, folder / "actor" / "extra_state_world_size_1_rank_0.pt")
    torch.save({"_num_yielded": 1}, folder / "data.pt")
    return folder


@pytest.mark.parametrize("supervised", [True, False])
def test_the_one_shot_puts_a_run_on_another_version(scene: Scene, shards: Path, supervised: bool) -> None:
    supervisor = scene.run(hanging(scene, shards=shards))
    first = scene.started()
    scene.output_has(1, "hanging")
    scene.saved(10)
    if not supervised:
        supervisor.kill()
        supervisor.wait()
    source = unpacked(scene.folder / "source", "77.1.0")
    words = ("77.1.0", "--state-dir", str(scene.state), "--from", str(source), "--reason", "stuck")
    dry = scene.script(*words, "--dry-run", name="rollback_verl", seconds=400)
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert alive(first["pid"]), "an environment was built and checked, and nothing else"
    try:
        done = scene.script(*words, "--wait-seconds", "300", name="rollback_verl", seconds=400)
        assert done.returncode == 0, done.stdout + done.stderr
        for step in range(1, 7):
            assert f"rollback: step {step} of 6" in done.stdout
        assert f"the run is back from {scene.checkpoints}/global_step_10, on verl 77.1.0" in done.stdout
        started = scene.started(2)
        assert started["from"] == 10
        assert started["python"] == f"{scene.folder}/environments/verl-77.1.0/bin/python"
        assert json.loads(started["changes"])["verl_version"] == "77.1.0"
        assert (supervisor.poll() is None) is supervised
        assert scene.attempts() == 2
        # The next attempt stays on it.
        again = scene.script("--state-dir", str(scene.state), "--reason", "stuck")
        assert again.returncode == 0, again.stdout + again.stderr
        assert scene.started(3)["python"] == started["python"]
    finally:
        if not supervised:
            stop(scene)


def test_a_version_that_the_checkpoint_does_not_load_in_stops_nothing(scene: Scene) -> None:
    scene.run(hanging(scene))  # whose shards are no files of torch's
    scene.output_has(1, "hanging")
    source = unpacked(scene.folder / "source", "77.1.0")
    words = ("--state-dir", str(scene.state), "--version", "77.1.0", "--from", str(source))
    done = scene.script(*words, name="version", seconds=400)
    assert done.returncode == 9, done.stdout + done.stderr
    assert "verl 77.1.0 cannot take this run over" in done.stdout
    assert alive(scene.started()["pid"])
    assert scene.attempts() == 1


def test_a_supervisor_without_an_exporter_stays_for_the_resume_of_a_script(scene: Scene) -> None:
    """It waits for no command after a crash, but a script by hand is between its stop and its start."""
    supervisor = scene.run(hanging(scene), wait="0")
    scene.output_has(1, "hanging")
    state = ("--state-dir", str(scene.state))
    assert scene.cli("stop", "--for-rollback", *state, "--reason", "hang").returncode == 0
    until(lambda: "waiting up to 900 s" in scene.said(), "the supervisor to wait")
    target = str(scene.checkpoints / "global_step_5")
    assert scene.cli("resume", *state, "--target", target).returncode == 0
    assert scene.started(2)["from"] == 5
    assert supervisor.poll() is None
