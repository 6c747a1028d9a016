from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporter"))

from fake_services import FakeMail, FakeService


@pytest.fixture
def service() -> Iterator[FakeService]:
    with FakeService() as service:
        yield service


@pytest.fixture
def mail() -> Iterator[FakeMail]:
    with FakeMail() as mail:
        yield mail
