"""Another verl version gets an environment of its own beside the current one: whole, or seen to be half-built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_verl import unpacked

from trainer_entry.environments import VersionError, find, variables
from trainer_entry.environments.building import build, register
from trainer_entry.environments.checking import check, installed_version
from trainer_entry.environments.places import RECORD_NAME, Environment


def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Environment]:
    folder = tmp_path_factory.mktemp("built")
    source = unpacked(folder / "source", "77.1.0")
    return folder / "environments", build(folder / "environments", "77.1.0", source=source, say=said().append)


def python(environment: Environment, code: str, *words: str) -> str:
    done = subprocess.run([environment.python, "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_has_its_own_verl_and_everything_else_of_the_current_interpreter(built: tuple[Path, Environment]) -> None:
    directory, environment = built
    code = "import verl, msgspec, trainer_entry; print(verl.__version__, msgspec.__file__, trainer_entry.__file__)"
    version, ours, entry = python(environment, code).split()
    import msgspec

    import trainer_entry

    assert (version, ours, entry) == ("77.1.0", msgspec.__file__, trainer_entry.__file__)
    assert installed_version(environment.python) == "77.1.0"
    assert find(directory, "77.1.0") == environment
    assert not (Path(sys.prefix) / "lib" / "verl").exists()


def test_the_current_interpreter_is_left_as_it_was(built: tuple[Path, Environment]) -> None:
    assert installed_version(sys.executable) != "77.1.0"


def test_a_complete_one_is_not_built_again(built: tuple[Path, Environment]) -> None:
    directory, environment = built
    lines = said()
    assert build(directory, "77.1.0", source=Path("/nowhere"), say=lines.append) == environment
    assert "is complete already" in lines[0]


def test_a_half_built_one_is_recognised_and_built_anew(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source", "77.1.0")
    directory = tmp_path / "environments"
    place = directory / "verl-77.1.0"
    environment = build(directory, "77.1.0", source=source, say=said().append)
    (place / RECORD_NAME).unlink()  # as if it had been killed just before its end
    (place / "rubbish").touch()
    with pytest.raises(VersionError, match="is half-built; build it again with: verl-sentinel-train environments"):
        find(directory, "77.1.0")
    assert build(directory, "77.1.0", source=source, say=said().append).python == environment.python
    assert not (place / "rubbish").exists()


def test_a_folder_that_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    place = tmp_path / "verl-77.1.0"
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    with pytest.raises(VersionError, match="was not built here"):
        build(tmp_path, "77.1.0", source=unpacked(tmp_path / "source", "77.1.0"), say=said().append)
    assert (place / "thesis.tex").read_text() == "years of work"
    linked = tmp_path / "verl-77.2.0"
    linked.symlink_to(place)
    with pytest.raises(VersionError, match="was not built here"):
        build(tmp_path, "77.2.0", source=unpacked(tmp_path / "source2", "77.2.0"), say=said().append)


def test_a_source_of_another_version_is_refused_and_stays_half_built(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source", "77.1.0")
    with pytest.raises(VersionError, match=r"brought verl 77.1.0, not 77.2.0"):
        build(tmp_path / "environments", "77.2.0", source=source, say=said().append)
    with pytest.raises(VersionError, match="half-built"):
        find(tmp_path / "environments", "77.2.0")


@pytest.mark.parametrize("version", ["../../etc", "1.0; rm -rf /", "", "latest", "1" * 50])
def test_what_is_no_version_is_refused_before_anything_is_touched(tmp_path: Path, version: str) -> None:
    with pytest.raises(VersionError, match="is no version of verl"):
        build(tmp_path / "environments", version, say=said().append)
    assert list(tmp_path.iterdir()) == []


def test_two_who_build_at_once_build_it_once(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source", "77.1.0")
    lines: list[list[str]] = [[], []]

    def work(mine: list[str]) -> None:
        build(tmp_path / "environments", "77.1.0", source=source, say=mine.append)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted("complete already" in each[0] for each in lines) == [False, True]


def test_an_environment_whose_base_is_gone_is_not_used(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source", "77.1.0")
    build(tmp_path, "77.1.0", source=source, say=said().append)
    record = tmp_path / "verl-77.1.0" / RECORD_NAME
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "layered_over": ["/gone/site-packages"]}))
    with pytest.raises(VersionError, match="is layered over /gone/site-packages, which is gone"):
        find(tmp_path, "77.1.0")


def test_a_ready_one_is_registered_by_its_folder_and_checked(built: tuple[Path, Environment], tmp_path: Path) -> None:
    _, environment = built
    made = register(tmp_path, "77.1.0", Path(environment.path))
    assert (made.python, made.path) == (environment.python, environment.path)
    assert find(tmp_path, "77.1.0").python == environment.python
    with pytest.raises(VersionError, match=r"has verl 77.1.0, not 77.2.0"):
        register(tmp_path, "77.2.0", Path(environment.python))
    with pytest.raises(VersionError, match="There is no interpreter"):
        register(tmp_path, "77.1.0", tmp_path / "nothing")
    (tmp_path / "verl-77.1.0" / RECORD_NAME).unlink()
    assert Path(environment.python).exists(), "what was registered is another's, and is not cleared with the record"


def checked(
    environment: Environment, environ: dict[str, str] | None = None, checkpoint: Path | None = None
) -> list[str]:
    lines = said()
    asked = {**os.environ, **(environ or {})}
    module = "verl.trainer.main_ppo"
    check(environment, trainer_module=module, checkpoint=checkpoint, environ=asked, say=lines.append)
    return lines


def test_a_check_finds_the_version_the_plugin_and_the_trainer(built: tuple[Path, Environment]) -> None:
    _, environment = built
    assert "verl 77.1.0 with our plugin" in checked(environment)[0]


def test_a_check_finds_what_goes_before_it(built: tuple[Path, Environment], tmp_path: Path) -> None:
    _, environment = built
    other = unpacked(tmp_path / "other", "66.0.0")
    with pytest.raises(VersionError, match=r"imports verl 66.0.0 from .*; something, such as PYTHONPATH, goes before"):
        checked(environment, {"PYTHONPATH": str(other)})


def test_a_check_finds_a_trainer_that_lacks_a_package(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source", "77.1.0", trainer="import einops_of_another_world")
    environment = build(tmp_path, "77.1.0", source=source, say=said().append)
    with pytest.raises(VersionError, match=r"cannot import verl.trainer.main_ppo: ModuleNotFoundError"):
        checked(environment)


def test_a_check_finds_a_checkpoint_that_does_not_load(built: tuple[Path, Environment], tmp_path: Path) -> None:
    _, environment = built
    (tmp_path / "global_step_5").mkdir()
    with pytest.raises(VersionError, match="global_step_5"):
        checked(environment, checkpoint=tmp_path / "global_step_5")


@pytest.mark.parametrize(("version", "named"), [("0.8.0", True), ("0.9.1", False), ("0.10.0", False), ("1.0", False)])
def test_an_older_verl_is_told_of_the_plugin_by_name(version: str, named: bool) -> None:
    environment = Environment(verl_version=version, path="/e", python="/e/bin/python")
    changed = variables(environment, {"PATH": "/bin", "VERL_USE_EXTERNAL_MODULES": "mine"})
    assert (changed["PATH"], changed["VIRTUAL_ENV"]) == ("/e/bin:/bin", "/e")
    assert changed.get("VERL_USE_EXTERNAL_MODULES") == ("trainer_entry.plugin,mine" if named else None)


def cli(words: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_entry.cli", "environments", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )


def test_the_command_line_lists_complete_and_half_built_ones(built: tuple[Path, Environment], tmp_path: Path) -> None:
    directory, environment = built
    (directory / "verl-77.9.0").mkdir()
    listed = cli(["list", "--json"], VERL_SENTINEL_ENVIRONMENTS=str(directory))
    found = {
        entry["verl_version"] or Path(entry["path"]).name: entry["complete"] for entry in json.loads(listed.stdout)
    }
    assert found == {"77.1.0": True, "verl-77.9.0": False}
    missing = cli(["check", "77.5.0", "--environments-dir", str(tmp_path)])
    assert (missing.returncode, missing.stderr.count("\n")) == (9, 1)
    assert "does not exist; build it with" in missing.stderr
    (directory / "verl-77.9.0").rmdir()
    assert environment.python in cli(["list", "--environments-dir", str(directory)]).stdout


def test_a_program_that_was_killed_is_told_from_one_that_found_a_fault(tmp_path: Path) -> None:
    """The kernel short of memory ends pip, or what loads a checkpoint: a rollback script is run once more for that."""
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    words = ["environments", "register", "77.1.0", str(killed), "--environments-dir", str(tmp_path / "environments")]
    done = subprocess.run(
        [sys.executable, "-m", "trainer_entry.cli", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "killed by signal 9" in done.stderr) == (137, True), done.stderr
    killed.write_text("#!/bin/sh\nexit 3\n")
    done = subprocess.run(
        [sys.executable, "-m", "trainer_entry.cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 9, done.stderr
