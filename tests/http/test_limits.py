"""Limits: what is beyond one is refused with a reason, and counted by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporter_process import PUSH, ExporterProcess, running
from exporter_scene import batch

from exporter.app.answers import RawHeaders
from exporter.app.bodies import Bodies, Disconnected
from exporter.protocol import Step, encode
from exporter.service.admission import Limits, Pace, Refused

SENDER = ("run", "sender")


def taken(pace: Pace, count: int, now: float, sender: tuple[str, str] = SENDER) -> int:
    """How many of ``count`` pushes at one moment are let through."""
    passed = 0
    for _ in range(count):
        try:
            pace.take(sender, now)
            passed += 1
        except Refused as refused:
            last = refused
    if passed < count:
        assert (last.reason, last.status, last.retry_after) == ("too_fast", 429, 1)
    return passed


def test_a_sender_may_catch_up_and_then_has_its_pace() -> None:
    pace = Pace(Limits(requests_per_second=5))
    assert taken(pace, 100, 0.0) == 50
    assert taken(pace, 100, 0.1) == 0
    assert taken(pace, 100, 1.0) == 5
    assert taken(pace, 100, 2.0) == 5
    assert taken(pace, 100, 1000.0) == 50


def test_a_clock_that_is_set_back_gives_nothing_and_takes_nothing() -> None:
    pace = Pace(Limits(requests_per_second=1))
    assert taken(pace, 20, 100.0) == 10
    assert taken(pace, 20, 50.0) == 0
    assert taken(pace, 20, 51.0) == 1


def test_one_sender_does_not_use_up_the_pace_of_another() -> None:
    pace = Pace(Limits(requests_per_second=1))
    assert taken(pace, 20, 0.0) == 10
    assert taken(pace, 1, 0.0, ("run", "other")) == 1
    assert taken(pace, 1, 0.0, ("other", "sender")) == 1


def test_the_table_of_senders_is_bounded() -> None:
    pace = Pace(Limits(), senders=100)
    for number in range(1000):
        pace.take(("run", f"sender-{number}"), 0.0)
    assert len(pace._buckets) == 100


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "config.yml").write_text(
        "limits:\n  runs: 2\n  senders_per_run: 2\n  metrics_per_step: 3\n  steps_per_batch: 2\n  name_length: 20\n"
        "  body_bytes: 4000\n  requests_per_second: 1\n"
    )
    with running(folder, "--config", str(folder / "config.yml")) as exporter:
        assert exporter.post(PUSH, encode(batch(run="first"))).status == 200
        assert exporter.post(PUSH, encode(batch(run="second"))).status == 200
        yield exporter


METRIC = {"a": 1.0}


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"run": "third"}, 429, "too_many_runs"),
        ({"steps": [Step(step=1, metrics={str(i): 1.0 for i in range(4)})]}, 400, "too_many_metrics"),
        ({"steps": [Step(step=i, metrics=METRIC) for i in range(3)]}, 400, "too_many_parts"),
        ({"run": "a" * 21}, 400, "name_too_long"),
        ({"sender": "a" * 21}, 400, "name_too_long"),
        ({"steps": [Step(step=1, metrics={"a" * 21: 1.0})]}, 400, "name_too_long"),
        ({"steps": [Step(step=1, metrics={"a" * 5000: 1.0})]}, 413, "too_large"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_named_and_counted(
    narrow: ExporterProcess, fields: dict[str, object], status: int, reason: str
) -> None:
    name = f'verl_sentinel_rejected_total{{reason="{reason}"}}'
    before = narrow.metrics().get(name, 0.0)
    sender = f"s{abs(hash(json.dumps(fields, default=str))) % 10**6}"
    answer = narrow.post(PUSH, encode(batch(**{"run": "first", "sender": sender, "seq": 2, **fields})))
    assert (
        answer.status,
        answer.json["error"] if answer.headers["content-type"] == "application/json" else reason,
    ) == (
        status,
        reason,
    )
    assert ("Retry-After" in answer.headers) == (status == 429)
    assert narrow.metrics()[name] == before + 1


def test_a_sender_that_pushes_too_often_is_asked_to_wait_and_others_are_not(narrow: ExporterProcess) -> None:
    answers = [narrow.post(PUSH, encode(batch(run="second", sender="fast", seq=seq))) for seq in range(1, 40)]
    refused = [answer for answer in answers if answer.status != 200]
    assert {answer.status for answer in refused} == {429}
    assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
    assert narrow.metrics()['verl_sentinel_rejected_total{reason="too_fast"}'] == len(refused)
    assert narrow.post(PUSH, encode(batch(run="second", seq=2))).status == 200


def test_the_defaults_suit_a_cluster_of_a_thousand_runs() -> None:
    limits = Limits()
    assert limits.runs >= 2 * 1000, "those that ended within the grace time count as well"
    assert limits.metrics_per_step >= 500
    assert limits.connections >= 4 * limits.runs
    assert limits.requests_per_second >= 10


async def reading(bodies: Bodies, chunks: list[bytes], limit: int = 1000) -> bytes:
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.disconnect"} if chunks[-1:] == [b"gone"] else {"type": "http.request", "body": b""})
    waiting = iter(messages)

    async def receive() -> object:
        await asyncio.sleep(0)
        return next(waiting)

    return await bodies.read(receive, RawHeaders([]), limit)  # type: ignore[arg-type]


def test_all_bodies_on_their_way_are_bounded_together_and_what_ended_gives_its_room_back() -> None:
    async def scene() -> None:
        bodies = Bodies(most=1500)
        results = await asyncio.gather(*(reading(bodies, [b"x" * 100] * 8) for _ in range(4)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, Refused)]
        assert refused
        assert {(it.reason, it.status, it.retry_after) for it in refused} == {("busy", 503, 1)}
        assert [it for it in results if isinstance(it, bytes)]
        assert bodies.in_flight == 0
        assert await reading(bodies, [b"x" * 100] * 8) == b"x" * 800
        with pytest.raises(Disconnected):
            await reading(bodies, [b"x" * 100, b"gone"])
        with pytest.raises(Refused, match="at most 1000"):
            await reading(bodies, [b"x" * 600] * 3)
        assert bodies.in_flight == 0

    asyncio.run(scene())


def test_limits_are_settings(tmp_path: Path) -> None:
    from exporter.config import ConfigError, load

    (tmp_path / "f.yml").write_text("limits: {requests_per_second: 7, connections: 9, metrics_per_run: 11}\n")
    limits = load(tmp_path / "f.yml").limits
    assert (limits.requests_per_second, limits.connections, limits.metrics_per_run) == (7, 9, 11)
    (tmp_path / "f.yml").write_text("limits: {requests_per_second: 0}\n")
    with pytest.raises(ConfigError, match="line 1: limits: requests_per_second is 0: it must be at least 1"):
        load(tmp_path / "f.yml")
