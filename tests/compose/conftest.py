from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.make("down")
