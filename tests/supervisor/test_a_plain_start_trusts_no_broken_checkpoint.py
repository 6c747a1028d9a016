"""verl follows its tracker by itself, whatever lies there; a start that nobody asked a rollback for looks first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_checkpoint import saved

from trainer_entry.checkpoints import verify
from trainer_entry.supervisor.overrides import parse
from trainer_entry.supervisor.starting import NothingToStartFrom, plain_start

SHARD = "actor/model_world_size_2_rank_1.pt"


def start_of(root: Path, *words: str) -> tuple[int | None, str]:
    command = parse(["python", "-m", "trainer_entry.main_ppo", *words], str(root))
    start = plain_start(command, str(root))
    return start.resume_step, start.note


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "data.pt").unlink(), "data.pt is missing"),
        (lambda d: (d / SHARD).unlink(), f"{SHARD} is missing"),
        (lambda d: os.truncate(d / SHARD, 7), "truncated"),
        (
            lambda d: (d / "data.pt").rename(d / "elsewhere") and (d / "data.pt").symlink_to("elsewhere"),
            "symbolic link",
        ),
    ],
)
def test_the_newest_good_one_is_resumed_from_by_name(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    saved(tmp_path, 10)
    damage(saved(tmp_path, 20))
    step, note = start_of(tmp_path)
    assert step == 10
    assert words in note


def test_what_is_whole_is_left_to_verl_with_and_without_a_manifest(tmp_path: Path) -> None:
    directory = saved(tmp_path, 10)
    assert start_of(tmp_path) == (None, "")
    (directory / "verl_sentinel_manifest.json").unlink()
    assert start_of(tmp_path) == (None, "")


@pytest.mark.parametrize(
    ("words", "left", "sentence"),
    [
        (("trainer.resume_mode=disable",), [10, 20, 30], "left behind by a start from scratch"),
        (
            ("trainer.resume_mode=resume_path", "trainer.resume_from_path={root}/global_step_20"),
            [30],
            "left behind by a start from step 20",
        ),
        (
            ("trainer.resume_mode=resume_path", "trainer.resume_from_path={root}/another/global_step_20"),
            [10, 20, 30],
            "left behind by a start from scratch, or from elsewhere",
        ),
    ],
)
def test_a_start_whose_words_say_where_leaves_the_other_branch_behind(
    tmp_path: Path, words: tuple[str, ...], left: list[int], sentence: str
) -> None:
    """Else a later rollback of the new branch could be to a checkpoint of the old one."""
    for step in (10, 20, 30):
        saved(tmp_path, step)
    start_of(tmp_path, *(word.format(root=tmp_path) for word in words))
    refused = {step: verify(tmp_path / f"global_step_{step}") for step in (10, 20, 30)}
    assert [step for step, found in refused.items() if found.problem == "abandoned"] == left
    assert all(sentence in refused[step].reason for step in left)


def test_a_good_one_of_another_world_size_is_not_taken_in_its_place(tmp_path: Path) -> None:
    saved(tmp_path, 10, ranks=2)
    (saved(tmp_path, 20, ranks=4) / "data.pt").unlink()
    with pytest.raises(NothingToStartFrom, match="saved by 2 ranks"):
        start_of(tmp_path, "trainer.nnodes=1", "trainer.n_gpus_per_node=4")
