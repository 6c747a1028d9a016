"""The short form of the chaos suite: one scenario of each kind, two at a time. ``make chaos`` plays all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.chaos.catalogue import catalogue
from tests.chaos.play import Result, Scenario, play
from tests.chaos.schedule import schedule

pytestmark = pytest.mark.programs

SHORT = (
    "kill supervisor at stopping",
    "kill exporter at climbing",
    "kill trainer at verifying",
    "kill prometheus at pending_alert",
    "two supervisor and exporter at starting",
    "network supervisor-exporter silent at stopping",
    "disk of state full at commanded",
    "disk of checkpoints full at commanded",
    "webhook twenty times at commanded",
    "clock +10 h at verifying",
    "again nan then crash",
    "version, tool killed at building",
)


@pytest.fixture(scope="module")
def playing() -> Iterator[dict[str, Future[Result]]]:
    """All of them on their way, two at a time: a test waits for its own."""
    by_name = {scenario.name: scenario for scenario in catalogue()}
    interrupted = threading.Event()
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        yield {name: pool.submit(play, by_name[name], interrupted=interrupted) for name in SHORT}
    finally:
        interrupted.set()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", SHORT)
def test_a_recovery_ends_well_whatever_goes_wrong(playing: dict[str, Future[Result]], name: str) -> None:
    result = playing[name].result()
    if result.skipped:
        pytest.skip(result.skipped)
    story = "\n".join((result.why, *result.story, result.folder))
    assert not result.breaches, f"{result.breaches}\n{story}"
    assert result.ok, f"{result.end}\n{story}"


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    def shape(scenario: Scenario) -> list[tuple[object, object]]:
        return [(act.when, getattr(act.do, "args", None)) for act in scenario.acts]

    assert shape(schedule(7)) == shape(schedule(7))
    assert len({str(shape(schedule(seed))) for seed in range(20)}) > 15


def test_names_of_scenarios_are_unique_and_every_stage_has_its_kills() -> None:
    names = [scenario.name for scenario in catalogue()]
    assert len(names) == len(set(names))
    for victim in ("supervisor", "exporter", "trainer", "worker", "prometheus", "alertmanager"):
        for stage in ("before_alert", "pending_alert", "awaiting_approval", "commanded", "stopping", "starting",
                      "verifying", "climbing"):  # fmt: skip
            assert f"kill {victim} at {stage}" in names
    for victim in ("supervisor", "exporter", "trainer", "script"):
        for stage in ("building", "checking", "stopping again", "starting again", "verifying again"):
            assert f"version, {victim} killed at {stage}" in names
