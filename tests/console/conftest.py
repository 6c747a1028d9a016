from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporter"))

from console_fleet import Fleet, every_kind
from console_visitor import guarded_configuration
from exporter_process import ExporterProcess, running


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    """An exporter without tokens, with a run of every kind."""
    with running(tmp_path_factory.mktemp("console")) as exporter:
        every_kind(Fleet(exporter.url))
        yield exporter


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    """An exporter whose console asks for a token; its files are in ``folder``."""
    folder = tmp_path_factory.mktemp("guarded")
    with running(folder, "--config", str(guarded_configuration(folder))) as exporter:
        Fleet(exporter.url, "push-token-of-the-test").start("a/b")
        yield exporter
