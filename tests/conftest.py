"""What holds for every test."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine is no reason for an example to fail.
settings.register_profile("verl-sentinel", deadline=None)
settings.load_profile("verl-sentinel")

# Tables are as wide as this says, and pytest's workers set it.
os.environ.pop("COLUMNS", None)

# A shell starts background jobs with SIGINT ignored, and children inherit that. The programs under test honour it, as
# they should, so without this the tests of Ctrl-C would depend on how somebody started pytest.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_TRAINERS = Path(__file__).open("rb")  # noqa: SIM115 - as long as the process


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # outside of the time that a test may take
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Two trainers at a time are too much for a small machine: of tests side by side, one at a time starts them.

    The lock is held from one such test to the next of the same worker, for what a module starts is there in between.
    """
    if _starts_a_trainer(item):
        fcntl.flock(_TRAINERS, fcntl.LOCK_EX)
    yield
    if _starts_a_trainer(item) and not (nextitem is not None and _starts_a_trainer(nextitem)):
        fcntl.flock(_TRAINERS, fcntl.LOCK_UN)


def _starts_a_trainer(item: pytest.Item) -> bool:
    return item.get_closest_marker("trainer") is not None
