"""Traces of several runs that are looked at together are read once each, and take no more memory than they may."""

from __future__ import annotations

import asyncio
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.console import series as module
from exporter.console.kept import LOOKED_AT_SECONDS, Kept
from exporter.console.series import MOST_WAITING, Series, unless_gone
from exporter.console.traces import Traces
from exporter.detectors.setup import UNKNOWN
from exporter.service.admission import Refused
from exporter.service.recent import RecentStep


class Run:
    """As much of a watched run as this needs."""

    def __init__(self, run_id: str) -> None:
        self.state = SimpleNamespace(run_id=run_id)


def traces(rows: int) -> Traces:
    made = Traces((), UNKNOWN, "ppo_v1", {})
    made.go_on([RecentStep(step, 1, float(step), {"kl": 0.1, "reward": 0.5}) for step in range(rows)])
    return made


def test_the_bytes_of_all_are_bounded_however_many_look() -> None:
    runs: list[Any] = [Run(str(n)) for n in range(50)]
    one = traces(1000)
    kept = Kept(lambda: 0.0, most_bytes=5 * one.bytes)
    for run in runs:
        kept.put(run, traces(1000))
        assert kept.bytes <= 5 * one.bytes
    assert len(kept) == 5
    assert [kept.get(run) is not None for run in runs[-6:]] == [False, True, True, True, True, True]


def test_a_trace_says_what_its_columns_take() -> None:
    short, long = traces(1000), traces(3000)
    columns: list[array[Any]] = [short.steps, short.attempts, short.times, *short.values.values()]
    assert long.bytes - short.bytes == 2 * sum(len(one) * one.itemsize for one in columns)


def test_what_is_looked_at_stays_and_what_nobody_looks_at_goes() -> None:
    now = 0.0
    kept = Kept(lambda: now, most_runs=2)
    runs: list[Any] = [Run(str(n)) for n in range(6)]
    for run in runs[:5]:
        kept.put(run, traces(1))
    assert len(kept) == 5
    now = LOOKED_AT_SECONDS
    kept.put(runs[5], traces(1))
    assert len(kept) == 2
    assert kept.get(runs[4]) is not None


def test_a_run_that_is_gone_from_memory_leaves_nothing() -> None:
    kept, gone = Kept(), Run("gone")
    kept.put(gone, traces(1))  # type: ignore[arg-type]
    again: Any = Run("gone")
    assert kept.get(again) is None
    del gone
    kept.put(Run("other"), traces(1))  # type: ignore[arg-type]
    assert len(kept) == 1


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A series of a console of its own, with what it has read in ``read``."""
    config = SimpleNamespace(detector_plan=lambda: None, data_dir=str(tmp_path))
    console: Any = SimpleNamespace(exporter=SimpleNamespace(config=config))
    monkeypatch.setattr(module, "_snapshot", lambda run: SimpleNamespace(run=run, setup=UNKNOWN, resumes={}, newest=()))
    monkeypatch.setattr(module, "version_of", lambda run: "1")
    monkeypatch.setattr(module, "_encoded", lambda traces, it, *rest, **more: it.run.state.run_id.encode())
    found: Any = Series(console)
    found.read = []

    def read(it: Any) -> Traces:
        found.read.append(it.run.state.run_id)
        return traces(3)

    monkeypatch.setattr(found, "_read", read)
    return found


def test_four_runs_in_turn_are_read_once_each(made: Any) -> None:
    runs: list[Any] = [Run(name) for name in "abcd"]

    async def refreshed() -> None:
        for _ in range(3):
            for run in runs:
                await made.ask(run, len)

    asyncio.run(refreshed())
    assert made.read == ["a", "b", "c", "d"]


def of(made: Series, run: Any, points: int = 10) -> Any:
    return made.of(run, points=points, recent=False, known="")


def test_equal_questions_are_asked_once_and_what_nobody_waits_for_is_not_done(made: Any) -> None:
    async def asked() -> None:
        go_on, worked = threading.Event(), []
        held = asyncio.create_task(made.ask(Run("first"), lambda _: go_on.wait(60)))
        run: Any = Run("same")
        whole = made._whole

        def counted(it: Any, points: int, version: str) -> bytes:
            worked.append(points)
            return bytes(whole(it, points, version))

        made._whole = counted
        same = [asyncio.create_task(of(made, run)) for _ in range(20)]
        left = [asyncio.create_task(of(made, run, points)) for points in range(20, 20 + MOST_WAITING - 2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused):
            await of(made, run, 99)
        for one in (*left, same[0]):
            one.cancel()
        await asyncio.gather(*left, same[0], return_exceptions=True)
        after = asyncio.create_task(of(made, run, 50))
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*same[1:], after) == [b"same"] * 20
        assert await held
        assert worked == [10, 50]
        assert made._jobs == {}

    asyncio.run(asked())


def test_a_browser_that_left_ends_what_was_made_for_it() -> None:
    ended: list[str] = []

    async def work() -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return b"never"

    async def left() -> bytes:
        messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        answer = await unless_gone(SimpleNamespace(receive=receive), work())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return answer

    assert asyncio.run(left()) == b""
    assert ended == ["cancelled"]
