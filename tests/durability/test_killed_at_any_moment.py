"""The short form of ``kill_often.py``."""

from __future__ import annotations

from pathlib import Path

from kill_often import check


def test_what_was_acknowledged_is_there_once_after_every_kill(tmp_path: Path) -> None:
    found = check(tmp_path, kills=8, seed=3)
    assert found["pushes"] > 50
