"""Pushes that wait for the journal are bounded in memory: a disk that stands still makes senders wait, not the heap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
from exporter_scene import batch

from exporter.app import push as push_module
from exporter.app.bodies import Bodies
from exporter.app.push import PushEndpoint
from exporter.protocol import MSGPACK, ErrorAnswer, PushAnswer, Step, encode
from exporter.service.admission import Limits


class StandingStill:
    """An exporter whose journal answers when it is told to."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(limits=Limits())
        self.ingest = SimpleNamespace(answered=0, seconds=0.0, reject=self._reject)
        self.core = self
        self.rejected: list[str] = []
        self.waiting: list[Callable[[PushAnswer], None]] = []

    def _reject(self, reason: str) -> None:
        self.rejected.append(reason)

    def require_replayed(self) -> None:
        pass

    def clock(self) -> float:
        return 0.0

    def submit(self, batch: Any, now: float, answer: Callable[[PushAnswer], None]) -> None:
        self.waiting.append(answer)


async def post(endpoint: PushEndpoint, body: bytes) -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", MSGPACK.encode()), (b"accept", MSGPACK.encode())]
    scope: Any = {"type": "http", "method": "POST", "headers": headers, "client": ("127.0.0.1", 1)}
    await endpoint(scope, receive, send)
    return sent[0]["status"], {key.decode(): value.decode() for key, value in sent[0]["headers"]}, sent[1]["body"]


def test_what_waits_for_a_journal_that_stands_still_is_bounded_and_the_rest_told_to_come_again() -> None:
    metrics = {f"metric/{number:0200}": 1.0 for number in range(2000)}
    body = encode(batch(steps=[Step(step=step, metrics=metrics) for step in range(10)]))

    async def scene() -> None:
        exporter = StandingStill()
        access: Any = SimpleNamespace(check=lambda *_: None)
        endpoint = PushEndpoint(exporter, access, Bodies())  # type: ignore[arg-type]
        fit = push_module.WAITING_BYTES // len(body) + 1
        waiting = [asyncio.create_task(post(endpoint, body)) for _ in range(fit)]
        while len(exporter.waiting) < fit:
            await asyncio.sleep(0)
        status, headers, told = await post(endpoint, body)
        assert (status, headers["retry-after"]) == (503, "1")
        assert msgspec.msgpack.decode(told, type=ErrorAnswer).error == "busy"
        assert exporter.rejected == ["busy"]
        exporter.waiting[0](PushAnswer(accepted_seq=1))
        assert (await waiting[0])[0] == 200
        again = asyncio.create_task(post(endpoint, body))
        while len(exporter.waiting) < fit + 1:
            await asyncio.sleep(0)
        for answer in exporter.waiting[1:]:
            answer(PushAnswer(accepted_seq=1))
        assert {(await task)[0] for task in (*waiting, again)} == {200}

    asyncio.run(scene())
