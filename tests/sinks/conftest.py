from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from influx_stand_in import InfluxStandIn
from sink_scene import Scene
from victoria import Victoria


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def victoria(tmp_path: Path) -> Iterator[Victoria]:
    """A server that runs."""
    server = Victoria(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def influx() -> Iterator[InfluxStandIn]:
    """A server that answers what a test tells it to."""
    server = InfluxStandIn()
    yield server
    server.close()
