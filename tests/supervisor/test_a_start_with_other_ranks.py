"""verl resumes only with as many ranks as saved, and fails with a traceback otherwise: seen before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from whole_checkpoint import saved

from exporter.protocol import Scalar
from trainer_entry.supervisor.overrides import TrainerCommand, parse
from trainer_entry.supervisor.starting import NothingToStartFrom, held_start, plain_start, start_from
from trainer_entry.supervisor.state import ResumeTarget

TWO, FOUR = "trainer.n_gpus_per_node=2", "trainer.n_gpus_per_node=4"
CHANGED = {"trainer.n_gpus_per_node": 4}


def command(root: Path, *words: str) -> TrainerCommand:
    return parse(["python", "-m", "trainer_entry.main_ppo", *words], str(root))


def start_of(root: Path, *words: str, changed: Mapping[str, Scalar] | None = None) -> tuple[int | None, str]:
    start = plain_start(command(root, *words), str(root), changed)
    return start.resume_step, start.note


def test_what_the_tracker_names_is_left_to_verl_only_with_its_own_ranks(tmp_path: Path) -> None:
    saved(tmp_path, 10, ranks=2)
    saved(tmp_path, 20, ranks=4)
    assert start_of(tmp_path, FOUR) == (None, "")
    step, note = start_of(tmp_path, TWO)
    assert step == 10
    assert "saved by 4 ranks" in note
    assert start_of(tmp_path) == (None, ""), "the words do not say how many there will be"


def test_changed_settings_decide_on_the_ranks_of_every_start(tmp_path: Path) -> None:
    """As they do for the choice of a target, which a start would contradict otherwise."""
    saved(tmp_path, 10, ranks=4)
    saved(tmp_path, 20, ranks=2)
    assert start_of(tmp_path, TWO, changed=CHANGED)[0] == 10
    target = ResumeTarget(step=10, path=str(tmp_path / "global_step_10"))
    assert start_from(command(tmp_path, TWO), str(tmp_path), target, "", "sizes", CHANGED).resume_step == 10
    with pytest.raises(NothingToStartFrom, match="saved by 4 ranks"):
        start_from(command(tmp_path, TWO), str(tmp_path), target, "", "sizes")
    assert held_start(command(tmp_path, TWO), str(tmp_path), "Held.", 15, None, changed=CHANGED).resume_step == 10
