"""What the demo prepares for the ladder: its policy, a branch that ran well, two versions of verl side by side."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from demo.policy import BRANCH, CONFIGURATION, policy, stable_repository, write_policy
from demo.processes import StartError
from demo.scenarios import RATE, WARM_UP
from demo.versions import BROKEN_FILE, RIGHT, WRONG, after, broken_copy
from trainer_entry.changes.sources import from_git


@pytest.mark.parametrize("mode", ["auto", "approve", "observe"])
def test_the_policy_of_the_demo_passes_its_own_check(tmp_path: Path, mode: str) -> None:
    path = write_policy(tmp_path, policy(mode=mode, direct=False, repository=tmp_path / "git"))  # type: ignore[arg-type]
    assert path.is_file()


def test_a_policy_that_is_wrong_is_said_in_the_words_of_the_check(tmp_path: Path) -> None:
    wrong = policy(mode="auto", direct=True, repository=None, budget_per_day=0)
    with pytest.raises(StartError, match="budget_per_day is 0"):
        write_policy(tmp_path, wrong)


@pytest.mark.programs
def test_the_branch_has_a_configuration_that_the_supervisor_reads(tmp_path: Path) -> None:
    repository = stable_repository(tmp_path / "configuration")
    assert from_git(str(repository), BRANCH, CONFIGURATION) == {RATE: 0.0001, WARM_UP: 0}


def test_a_newer_verl_is_a_copy_with_one_line_changed(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    source = packages / BROKEN_FILE
    source.parent.mkdir(parents=True)
    source.write_text(f"before\nscores[i] = {RIGHT}\nafter\n")
    (packages / "verl" / "version").mkdir()
    (packages / "verl" / "version" / "version").write_text("0.9.1\n")
    metadata = packages / "verl-0.9.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\nSummary: Version: 0.9.1\n")

    copy = broken_copy(packages, "0.9.1", "0.9.2", tmp_path / "newer")

    assert (copy / BROKEN_FILE).read_text() == f"before\nscores[i] = {WRONG}\nafter\n"
    assert source.read_text() == f"before\nscores[i] = {RIGHT}\nafter\n"
    (found,) = importlib.metadata.distributions(name="verl", path=[str(copy)])
    assert found.version == (copy / "verl" / "version" / "version").read_text().strip() == "0.9.2"


def test_a_verl_that_is_another_than_expected_is_a_sentence(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "verl" / "version").mkdir(parents=True)
    (packages / BROKEN_FILE).parent.mkdir(parents=True)
    (packages / BROKEN_FILE).write_text("rewritten")
    (packages / "verl-1.0.dist-info").mkdir()
    (packages / "verl-1.0.dist-info" / "METADATA").write_text("Name: verl\n")

    with pytest.raises(StartError, match=r"verl 1\.0 has another .*core_algos\.py than this scenario breaks"):
        broken_copy(packages, "1.0", after("1.0"), tmp_path / "newer")


def test_the_installed_verl_has_the_line_that_is_broken() -> None:
    installed = importlib.metadata.distribution("verl")
    assert Path(str(installed.locate_file(BROKEN_FILE))).read_text().count(RIGHT) == 1


def test_git_is_asked_for_by_name_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match="git is needed for the branch prod-stable"):
        stable_repository(tmp_path / "configuration")
