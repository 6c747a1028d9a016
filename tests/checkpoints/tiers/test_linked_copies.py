"""Links share content safely: a save in place never reaches the other name, and a half link is never taken for one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints.tiers.conftest import Save, write_files
from trainer_entry.checkpoints import CheckpointError, discard_manifest, verify
from trainer_entry.checkpoints.tiers import linking
from trainer_entry.checkpoints.tiers.linking import break_links, link_checkpoint, link_file


def test_links_hold_the_same_content_as_a_checkpoint_of_their_own(save: Save, root: Path, tmp_path: Path) -> None:
    save(40)
    if link_checkpoint(root / "global_step_40", tmp_path / "global_step_40") is None:
        pytest.skip("this file system has neither reflinks nor hard links")
    assert verify(tmp_path / "global_step_40", "content").ok


def test_where_links_do_not_work_nothing_is_left(
    save: Save, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(40)
    monkeypatch.setattr(linking, "link_file", lambda source, target: None)
    assert link_checkpoint(root / "global_step_40", tmp_path / "x" / "global_step_40") is None
    assert not (tmp_path / "x" / "global_step_40").exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_save_that_begins_while_it_is_linked_is_noticed(
    save: Save, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The order of the plugin: it discards the manifest, breaks links, and verl writes in place. Whatever is linked
    after that shares a file that is written to, so the linking must fail.
    """
    save(40)
    directory = root / "global_step_40"
    pristine: Callable[..., object] = link_file
    calls = 0

    def interrupted(source: str, target: str) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            discard_manifest(directory)
            break_links(directory)
            write_files(directory, seed=9)
            if again:
                save(40, seed=9)
        return pristine(source, target)

    monkeypatch.setattr(linking, "link_file", interrupted)
    with pytest.raises(CheckpointError, match="saved again"):
        link_checkpoint(directory, tmp_path / "global_step_40")
    assert not (tmp_path / "global_step_40").exists()


def test_only_files_with_a_second_name_are_taken_away(save: Save, root: Path, tmp_path: Path) -> None:
    save(40)
    directory = root / "global_step_40"
    os.link(directory / "data.pt", tmp_path / "other")
    assert break_links(directory) == 1
    assert not (directory / "data.pt").exists()
    assert (directory / "actor" / "model_world_size_1_rank_0.pt").exists()
    assert (tmp_path / "other").stat().st_nlink == 1


def test_a_symbolic_link_in_a_checkpoint_is_not_followed(save: Save, root: Path, tmp_path: Path) -> None:
    save(40)
    (root / "global_step_40" / "actor" / "evil.pt").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match="not a regular file"):
        link_checkpoint(root / "global_step_40", tmp_path / "global_step_40")
    assert not (tmp_path / "global_step_40").exists()
