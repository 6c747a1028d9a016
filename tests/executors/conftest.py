"""Clusters of their own for the tests: Slurm's daemons and a Ray head, private to the test session, on free ports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "supervisor"))

from private_ray import PrivateRay
from private_slurm import PrivateSlurm, missing_programs
from shadows import Shadows
from supervised_run import FakeExporter, Scene


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[PrivateSlurm]:
    if missing := missing_programs():
        pytest.skip(f"no Slurm on this machine to test with: {', '.join(missing)} missing (apt-get install slurm-wlm)")
    made = PrivateSlurm()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def slurm(slurm_daemons: PrivateSlurm) -> Iterator[PrivateSlurm]:
    """Two nodes, `left` and `right`, without a job."""
    yield slurm_daemons
    slurm_daemons.cancel_all()


@pytest.fixture(scope="session")
def ray_processes() -> Iterator[PrivateRay]:
    pytest.importorskip("ray", reason="no Ray here to test with")
    made = PrivateRay()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def ray_head(ray_processes: PrivateRay) -> Iterator[PrivateRay]:
    """A cluster on which no job runs."""
    yield ray_processes
    ray_processes.stop_all()


@pytest.fixture
def shadows(tmp_path: Path) -> Iterator[Shadows]:
    made = Shadows(tmp_path)
    yield made
    made.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    made.exporter = FakeExporter()
    try:
        yield made
    finally:
        made.close()
