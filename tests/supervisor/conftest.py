"""A run of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised_run import FakeExporter, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def watched(scene: Scene) -> Scene:
    """The same, with an exporter to talk to."""
    scene.exporter = FakeExporter()
    return scene
