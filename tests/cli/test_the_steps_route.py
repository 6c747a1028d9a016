"""The route that exports: who may ask, what is refused, how many at a time, and what a damaged disk makes of it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from exporter_process import ExporterProcess, push, running

from exporter.app.run_routes import MOST_EXPORTS, Exports
from exporter.protocol import Step
from exporter.service.admission import Refused
from exporter.service.journal import FILE_NAME
from exporter.service.stored import JournalUnavailable


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with running(tmp_path_factory.mktemp("steps")) as exporter:
        push(exporter, run="a/b", seq=1, steps=[Step(step=1, metrics={"loss": 0.5})])
        yield exporter


def test_a_slash_in_a_run_id_does_not_part_the_path(exporter: ExporterProcess) -> None:
    push(exporter, run="a/b/steps", seq=1, steps=[Step(step=2, metrics={"loss": 0.5})])
    push(exporter, run="a%2Fb", seq=1, steps=[Step(step=3, metrics={"loss": 0.5})])
    for path, step in (("a%2Fb", 1), ("a%2Fb%2Fsteps", 2), ("a%252Fb", 3)):
        answer = exporter.get(f"/api/v1/runs/{path}/steps")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/jsonl")
        assert answer.body == b'{"step":%d,"data":{"loss":0.5}}\n' % step
        assert exporter.get(f"/api/v1/runs/{path}").json["run"]["step"] == step


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("format=xml", 400, "take jsonl or csv."),
        ("attempt=0", 400, "attempt"),
        ("attempt=x", 400, "attempt"),
        ("all_attempts=perhaps", 400, "all_attempts"),
        ("format=csv&attempt=7", 200, ""),
    ],
)
def test_what_is_asked_for_is_checked(exporter: ExporterProcess, query: str, status: int, word: str) -> None:
    answer = exporter.get(f"/api/v1/runs/a%2Fb/steps?{query}")
    assert answer.status == status
    assert word in answer.body.decode()


def test_a_run_without_steps_is_an_empty_file_and_one_that_is_not_known_is_none(exporter: ExporterProcess) -> None:
    push(exporter, run="empty", seq=1)
    assert exporter.get("/api/v1/runs/empty/steps").body == b""
    assert exporter.get("/api/v1/runs/empty/steps?format=csv").body == b"step\n"
    for form in ("jsonl", "csv"):
        answer = exporter.get(f"/api/v1/runs/nobody/steps?format={form}")
        assert (answer.status, answer.json["error"]) == (404, "not_found")
    assert exporter.get("/api/v1/runs/%FF/steps").status == 404


def test_only_an_operator_may_export_or_forget(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("tokens:\n  push: [{value: pushing}]\n  operate: [{value: ope}]\n")
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        for method, path in (("GET", "/api/v1/runs/x/steps"), ("DELETE", "/api/v1/runs/x"), ("GET", "/api/v1/runs/x")):
            assert exporter.request(method, path, None, {}).status == 401
            assert exporter.request(method, path, None, {"Authorization": "Bearer pushing"}).status == 403
            assert exporter.request(method, path, None, {"Authorization": "Bearer ope"}).status == 404


def test_damage_in_the_journal_is_told_before_the_answer_begins(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        for step in (1, 2):
            push(exporter, run="x", seq=step, steps=[Step(step=step, metrics={"loss": 0.5})])
        with sqlite3.connect(tmp_path / "data" / FILE_NAME) as db:
            db.execute("UPDATE journal SET body = x'00' WHERE seq = 2")
        answer = exporter.get("/api/v1/runs/x/steps")
        assert (answer.status, answer.json["error"]) == (503, "journal")
        assert "Traceback" not in exporter.log


def test_only_so_many_exports_run_at_a_time_and_one_that_ends_makes_room() -> None:
    closed: list[str] = []

    def chunks() -> Generator[bytes, None, None]:
        thread = threading.current_thread().name
        try:
            while True:
                assert threading.current_thread().name == thread, "SQLite wants the same thread all the time"
                yield b"x"
        finally:
            closed.append((threading.current_thread().name == thread and "its thread") or "another")

    async def check() -> None:
        exports = Exports()
        begun = [await exports.begin(chunks) for _ in range(MOST_EXPORTS)]
        for _, rest in begun:
            assert await anext(rest) == b"x"
        with pytest.raises(Refused) as refused:
            await exports.begin(chunks)
        assert (refused.value.status, refused.value.retry_after) == (429, 5)
        await begun[0][1].aclose()
        _, rest = await exports.begin(chunks)
        await rest.aclose()
        await begun[1][1].aclose()
        while len(closed) < MOST_EXPORTS + 1:
            await asyncio.sleep(0.01)

    usual = sys.getswitchinterval()
    asyncio.run(asyncio.wait_for(check(), 30))
    assert sys.getswitchinterval() == usual, "as it was, when no export runs any more"
    assert closed == ["its thread"] * (MOST_EXPORTS + 1)


def test_an_export_that_fails_at_once_makes_room_too() -> None:
    def chunks() -> Generator[bytes, None, None]:
        raise JournalUnavailable("The disk is gone.")
        yield b""

    async def check() -> None:
        exports = Exports()
        for _ in range(3 * MOST_EXPORTS):
            with pytest.raises(Refused, match="The disk is gone") as refused:
                await exports.begin(chunks)
            assert refused.value.status == 503

    asyncio.run(asyncio.wait_for(check(), 30))
