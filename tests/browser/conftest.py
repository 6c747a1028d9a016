"""Demo runs and a real browser. A run takes minutes: it is started once for all tests of a module, and ended with it,
for two trainers at a time are too much for a small machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from demo_run import DemoRun
from playwright.sync_api import Browser, sync_playwright

NEEDED = ("prometheus", "prometheus-alertmanager")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window. Playwright runs an event loop in this thread until it is closed: longer than
    for a module, and no other test could run one."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (apt install chromium)")
    with sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox; what it shows here is ours alone.
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def _run(factory: pytest.TempPathFactory, scenario: str, *options: str) -> Iterator[DemoRun]:
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    run = DemoRun(factory.mktemp(scenario) / "out", scenario, *options)
    try:
        yield run
    finally:
        run.end()


@pytest.fixture(scope="module")
def broken_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """A run whose weights become NaN, and whose recovery waits for a person."""
    yield from _run(tmp_path_factory, "nan", "--approve")


@pytest.fixture(scope="module")
def healthy_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """A run in which nothing goes wrong."""
    yield from _run(tmp_path_factory, "healthy")
