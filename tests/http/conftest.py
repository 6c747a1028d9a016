from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporter"))

from exporter_process import ExporterProcess, running


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    """One exporter with its defaults, for the tests of a module."""
    with running(tmp_path_factory.mktemp("exporter")) as exporter:
        yield exporter
