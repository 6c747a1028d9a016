"""A supervisor that a script starts at night is told nothing: it goes on as the one before it was told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from supervised_run import SCRIPTS, Scene, read, until

from trainer_entry.supervisor.keeping import environment_for, kept, limits_of
from trainer_entry.supervisor.state import Kept

POLICY = "snapshot: {{every_steps: 100, place: {place}}}\n"


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_a_supervisor_that_a_script_starts_has_the_options_and_the_identity_of_the_one_before(scene: Scene) -> None:
    own = scene.folder / "own"
    own.mkdir()
    (own / "checkpoint.sh").write_text(f'touch "{own}/was-run"\n' + (SCRIPTS / "checkpoint.sh").read_text())
    policy = scene.folder / "tiers.yml"
    policy.write_text(POLICY.format(place=scene.folder / "copies"))
    token = scene.folder / "token"
    token.write_text("secret-push-token")
    asked = {"VERL_SENTINEL_COHORT": "sweep-7", "VERL_SENTINEL_TOKEN_FILE": "token"}
    scene.environ |= asked
    options = ("--clean-stop-seconds", "1", "--kill-seconds", "7", "--copies-seconds", "3")
    supervisor = scene.run(
        scene.trainer(hang_at=7, later_hang_at=7),
        *("--rollback-scripts", "own", "--checkpoint-policy", "tiers.yml", *options),
    )
    scene.output_has(1, "hanging")
    scene.saved(5)
    supervisor.kill()
    supervisor.wait()
    scene.environ["VERL_SENTINEL_COHORT"] = "the-operators"
    scene.environ["VERL_SENTINEL_URL"] = "http://127.0.0.1:1"
    scene.environ["VERL_SENTINEL_TOKEN"] = "the-operators-token"
    del scene.environ["VERL_SENTINEL_TOKEN_FILE"]
    state = ("--state-dir", str(scene.state))
    done = scene.script(*state, "--start-supervisor", "--reason", "stuck")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        found = environment_of(scene.started(2)["pid"])
        ours = {name: found.get(name) for name in ("VERL_SENTINEL_COHORT", "VERL_SENTINEL_URL", "VERL_SENTINEL_TOKEN")}
        assert ours == {"VERL_SENTINEL_COHORT": "sweep-7", "VERL_SENTINEL_URL": "off", "VERL_SENTINEL_TOKEN": None}
        assert found["VERL_SENTINEL_TOKEN_FILE"] == str(token)
        assert found["VERL_SENTINEL_CHECKPOINTS"] == str(policy)
        scene.output_has(2, "hanging")
        assert scene.cli("rollback", *state, "--reason", "stuck").returncode == 0
        assert (own / "was-run").exists(), "the site's own script"
        scene.output_has(3, "hanging")
    finally:
        scene.cli("stop", *state)
        until(lambda: scene.of_attempts() == [], "nothing to be left")
    assert "(at most 1 s)" in (scene.state / "supervisor.log").read_text()
    assert "secret-push-token" not in (scene.state / "run.json").read_text()


def test_without_a_supervisor_too_a_stop_waits_as_long_as_the_run_was_told_to(scene: Scene) -> None:
    supervisor = scene.run(scene.trainer(hang_at=7), "--clean-stop-seconds", "0.5")
    scene.output_has(1, "hanging")
    supervisor.kill()
    supervisor.wait()
    done = scene.cli("stop", "--state-dir", str(scene.state))
    assert done.returncode == 0
    assert "(at most 0.5 s)" in done.stdout + done.stderr


def test_what_is_given_again_replaces_what_is_kept_and_a_whole_command_line_all_of_it(scene: Scene) -> None:
    first = scene.trainer(steps=1)
    assert scene.ended(scene.run(first, "--kill-seconds", "7", "--clean-stop-seconds", "9")) == 0
    assert scene.ended(scene.run(None, "--kill-seconds", "3")) == 0
    found = read(scene.state / "run.json")["kept"]
    assert (found["kill_seconds"], found["clean_stop_seconds"]) == (3.0, 9.0)
    assert scene.ended(scene.run(first)) == 0
    assert "clean_stop_seconds" not in read(scene.state / "run.json")["kept"]


def test_a_folder_of_scripts_that_is_gone_keeps_no_run_down(scene: Scene) -> None:
    own = scene.folder / "own"
    own.mkdir()
    assert scene.ended(scene.run(scene.trainer(steps=1), "--rollback-scripts", str(own))) == 0
    own.rmdir()
    assert scene.ended(scene.run(None)) == 0
    assert "is gone; the shipped scripts are used" in scene.said()
    assert scene.ended(scene.run(None, "--rollback-scripts", str(own))) == 71, "a mistake of now is one"


def test_environments_are_built_and_found_where_the_run_has_them(scene: Scene) -> None:
    del scene.environ["VERL_SENTINEL_ENVIRONMENTS"]
    place = scene.folder / "elsewhere"
    assert scene.ended(scene.run(scene.trainer(steps=1), "--environments-dir", "elsewhere")) == 0
    done = scene.cli("changes", "--state-dir", str(scene.state), "--verl-version", "77.1.0")
    assert done.returncode == 9
    assert str(place) in done.stderr


@pytest.mark.parametrize("record", [{"kept": {"kill_seconds": "x"}}, {"kept": 3}])
def test_a_damaged_record_of_it_is_a_sentence(scene: Scene, record: dict[str, Any]) -> None:
    assert scene.ended(scene.run(scene.trainer(steps=1))) == 0
    path = scene.state / "run.json"
    path.write_text(json.dumps({**read(path), **record}))
    assert scene.ended(scene.run(None)) == 71
    assert "is damaged" in scene.said()


def test_a_token_that_is_not_kept_is_told(scene: Scene) -> None:
    scene.environ["VERL_SENTINEL_TOKEN"] = "in-the-clear"
    assert scene.ended(scene.run(scene.trainer(steps=1))) == 0
    assert "in-the-clear" not in (scene.state / "run.json").read_text()
    del scene.environ["VERL_SENTINEL_TOKEN"]
    assert scene.ended(scene.run(None)) == 0
    assert "a token in VERL_SENTINEL_TOKEN, which is kept nowhere" in scene.said()


def test_the_shells_token_is_handed_on_where_the_run_has_no_file_of_one() -> None:
    shell = {"PATH": "/bin", "VERL_SENTINEL_TOKEN": "t", "VERL_SENTINEL_COHORT": "theirs"}
    assert environment_for(Kept(), shell) == {"PATH": "/bin", "VERL_SENTINEL_TOKEN": "t"}
    own = Kept(environ={"VERL_SENTINEL_TOKEN_FILE": "/t"})
    assert environment_for(own, shell) == {"PATH": "/bin", "VERL_SENTINEL_TOKEN_FILE": "/t"}


def test_what_was_never_given_follows_the_defaults_of_the_version_that_runs() -> None:
    from trainer_entry.cli import _parser
    from trainer_entry.supervisor.stopping import StopLimits

    parsed = _parser().parse_args(["run"])
    assert kept(parsed, Kept(), {}) == Kept()
    assert limits_of(Kept()) == StopLimits()
