"""The demo empties its own output folder and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.processes import StartError
from demo.run import prepare


def test_an_output_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(out)
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "old").touch()

    prepare(out)

    assert [entry.name for entry in out.iterdir()] == [".verl-sentinel-demo"]


def test_a_folder_that_is_not_the_demos_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(StartError, match="not made by the demo: name another folder"):
        prepare(tmp_path)

    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartError, match="cannot be written"):
        prepare(tmp_path / "file" / "out")
