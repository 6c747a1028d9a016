"""The tests of replay run the command as a process, on files that ``past_files`` writes."""

from __future__ import annotations

import pytest
from replay_process import Replaying, replayed


@pytest.fixture
def replay() -> Replaying:
    return replayed
