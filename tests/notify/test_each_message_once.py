"""The notifier by itself: each message once at each address, a bound on what waits, and nothing kept for ever."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from exporter.notify.delivery import AT_ONCE, KNOWN_SECONDS, KNOWN_WHEN_DONE_SECONDS, MOST_WAITING, Delivery, Notifier
from exporter.notify.message import Kind, Message
from exporter.notify.settings import NotifySettings, UrlSource

DEADLINE_SECONDS = 60.0


class World:
    """Targets a, b, …, each with one address, what was sent to them, and a clock."""

    def __init__(self, *names: str, timeout: float = 30) -> None:
        self.now = 1000.0
        self.sent: Counter[str] = Counter()
        self.refuse: set[str] = set()
        self.counted: Counter[tuple[str, str]] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        settings = NotifySettings(
            targets={name: (UrlSource(value=f"json://{name}"),) for name in names}, timeout_seconds=timeout
        )
        self.notifier = Notifier(
            settings,
            {},
            lambda target, what: self.counted.update([(target, what)]),
            send=self.send,
            monotonic=lambda: self.now,
        )

    def send(self, url: str, message: Message) -> str:
        name = url.removeprefix("json://")
        with self._lock:
            self.sent[name] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.gate.wait(DEADLINE_SECONDS)
        with self._lock:
            self.at_once -= 1
        return "it is broken" if name in self.refuse else ""

    async def deliver(self, key: str, *names: str) -> list[str]:
        found: list[Delivery] = await self.notifier.deliver(message(key), names or self.notifier.targets)
        return [one.outcome for one in found]


def message(key: str) -> Message:
    return Message(lambda _: "title", Kind.CRITICAL, key, lambda _: ["body"])


async def until(true: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), DEADLINE_SECONDS)


def test_a_target_that_failed_is_tried_again_alone() -> None:
    async def scene() -> None:
        world = World("a", "b")
        world.refuse = {"b"}
        assert await world.deliver("m") == ["delivered", "failed"]
        world.refuse.clear()
        assert await world.deliver("m") == ["known", "delivered"]
        assert world.sent == {"a": 1, "b": 2}
        assert world.counted == {("a", "delivered"): 1, ("b", "failed"): 1, ("b", "delivered"): 1}

    asyncio.run(scene())


def test_a_repeat_is_heard_again_and_the_try_after_a_lost_answer_is_not() -> None:
    async def scene() -> None:
        world = World("a")
        assert await world.deliver("m") == ["delivered"]
        world.now += KNOWN_WHEN_DONE_SECONDS - 1
        assert await world.deliver("m") == ["known"]
        world.now += KNOWN_WHEN_DONE_SECONDS + 1
        assert await world.deliver("m") == ["delivered"]

    asyncio.run(scene())


def test_while_one_target_fails_the_others_are_not_reminded_each_time_alertmanager_tries() -> None:
    async def scene() -> None:
        world = World("a", "b")
        world.refuse = {"b"}
        await world.deliver("m")
        for _ in range(10):
            world.now += KNOWN_SECONDS / 11
            assert await world.deliver("m") == ["known", "failed"]
        world.now += KNOWN_SECONDS
        assert await world.deliver("m") == ["delivered", "failed"]

    asyncio.run(scene())


def test_two_that_ask_at_the_same_time_share_one_delivery() -> None:
    async def scene() -> None:
        world = World("a")
        world.gate.clear()
        both = [asyncio.create_task(world.deliver("m")) for _ in range(2)]
        await until(lambda: world.sent["a"] == 1)
        await asyncio.sleep(0)
        world.gate.set()
        assert [await one for one in both] == [["delivered"], ["delivered"]]
        assert world.sent["a"] == 1

    asyncio.run(scene())


def test_only_a_few_are_sent_at_once_and_what_waits_is_bounded() -> None:
    async def scene() -> None:
        world = World("a")
        world.gate.clear()
        waiting = [asyncio.create_task(world.deliver(f"m{n}")) for n in range(MOST_WAITING)]
        await until(lambda: world.at_once == AT_ONCE)
        assert await world.deliver("one too many") == ["busy"]
        world.gate.set()
        assert {one for task in waiting for one in await task} == {"delivered"}
        assert world.most_at_once == AT_ONCE
        assert await world.deliver("one too many") == ["delivered"]

    asyncio.run(scene())


def test_one_that_comes_too_late_counts_when_it_is_tried_again() -> None:
    async def scene() -> None:
        world = World("a", timeout=1)
        world.gate.clear()
        assert await world.deliver("m") == ["late"]
        world.gate.set()
        await until(lambda: world.counted["a", "delivered"] == 1)
        assert await world.deliver("m") == ["known"]
        assert world.sent["a"] == 1

    asyncio.run(scene())


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.notify.delivery.MOST_KNOWN", 3)

    async def scene() -> None:
        world = World("a")
        for n in range(5):
            await world.deliver(f"m{n}")
        assert await world.deliver("m4") == ["known"]
        assert await world.deliver("m0") == ["delivered"]

    asyncio.run(scene())


def test_a_fault_in_sending_is_raised_to_who_asked_and_blocks_nobody() -> None:
    async def scene() -> None:
        world = World("a")

        def broken(url: str, message: Message) -> str:
            raise RuntimeError("a fault")

        world.notifier._send = broken
        with pytest.raises(RuntimeError, match="a fault"):
            await world.deliver("m")
        world.notifier._send = world.send
        assert await world.deliver("m") == ["delivered"]

    asyncio.run(scene())
