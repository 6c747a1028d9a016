from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from exporter_scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()
