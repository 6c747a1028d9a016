"""Hands messages to targets, each once. Made by :mod:`exporter.app.application`, called by its notify route.

A message goes to all targets at the same time, on threads, for apprise blocks. Alertmanager sends the whole of it again
where one target failed: what has taken it already is known for a while and left out. A delivery that takes longer than
the one who asked waits goes on, and counts when it is tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from exporter.notify.message import Message
from exporter.notify.settings import NotifySettings, UrlUnavailable, urls_of

log = logging.getLogger("exporter.notify")

AT_ONCE = 4
"""Deliveries that are under way at the same time, each on a thread."""
MOST_WAITING = 64
"""Deliveries under way and waiting; one more is answered that it should come again."""
KNOWN_SECONDS = 3600.0
"""For as long a target that has taken a message is left out while others have not: Alertmanager tries again at each
group_interval. Less than the shortest repeat_interval that makes sense, for a repeat is meant to be heard."""
KNOWN_WHEN_DONE_SECONDS = 300.0
"""The same once every target has it: only an answer that was lost makes Alertmanager send it again."""
MOST_KNOWN = 4096

Outcome = Literal["delivered", "known", "failed", "busy", "late"]
_T = TypeVar("_T")


class Delivery(NamedTuple):
    """What became of a message at one target."""

    target: str
    outcome: Outcome
    reason: str = ""
    """Why not; never a word of the address."""

    @property
    def taken(self) -> bool:
        return self.outcome in ("delivered", "known")


Send = Callable[[str, Message], str]
"""Takes an address and a message, blocks, and says why it was not taken; empty where it was."""


class Notifier:
    """Targets and what they have taken.

    Args:
        settings: the targets.
        environment: for addresses in variables.
        count: called with target and ``delivered`` or ``failed`` for each try.
        send: apprise's, but in tests.
        monotonic: seconds.
    """

    def __init__(
        self,
        settings: NotifySettings,
        environment: Mapping[str, str],
        count: Callable[[str, Literal["delivered", "failed"]], None] = lambda *_: None,
        *,
        send: Send | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._environment = environment
        self._count = count
        self._send = send
        self._taken = _Taken(monotonic)
        self._under_way: dict[tuple[str, str], asyncio.Task[Delivery]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._failing: set[str] = set()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of all."""
        return tuple(self.settings.targets)

    async def deliver(self, message: Message, targets: Sequence[str]) -> list[Delivery]:
        """Hand it to these targets; returns when all have answered, or the time is over."""
        found = await asyncio.gather(*(self._to(target, message) for target in targets))
        if all(one.taken for one in found):
            self._taken.done(message.key)
        return found

    async def _to(self, target: str, message: Message) -> Delivery:
        place = (target, message.key)
        task = self._under_way.get(place)
        if task is None:
            if len(self._under_way) >= MOST_WAITING:
                return Delivery(target, "busy", f"{MOST_WAITING} deliveries are waiting already")
            task = asyncio.create_task(self._through_the_gate(target, message), name=f"notify {target}")
            self._under_way[place] = task
            task.add_done_callback(lambda _: self._under_way.pop(place, None))
        try:
            return await asyncio.wait_for(asyncio.shield(task), self.settings.timeout_seconds)
        except asyncio.TimeoutError:
            self._tell(target, f"it had not answered after {self.settings.timeout_seconds:g} s")
            return Delivery(target, "late", f"it had not answered after {self.settings.timeout_seconds:g} s")

    async def _through_the_gate(self, target: str, message: Message) -> Delivery:
        async with self._gate:
            delivery = await _on_a_thread(lambda: self._deliver(target, message))
        if delivery.outcome != "known":
            self._count(target, "delivered" if delivery.taken else "failed")
        self._tell(target, delivery.reason)
        return delivery

    def _deliver(self, target: str, message: Message) -> Delivery:
        """On a thread: to each address of the target that does not have it yet."""
        send = self._send or _by_apprise()
        reasons, sent = [], 0
        for source in self.settings.targets[target]:
            try:
                urls = urls_of(source, self._environment)
            except UrlUnavailable as error:
                reasons.append(str(error))
                continue
            for url in urls:
                mark = hashlib.sha256(f"{target}\0{url}".encode()).hexdigest()
                if self._taken.has(message.key, mark):
                    continue
                reason = send(url, message)
                if reason:
                    reasons.append(reason)
                else:
                    sent += 1
                    self._taken.add(message.key, mark)
        if reasons:
            return Delivery(target, "failed", "; ".join(reasons))
        return Delivery(target, "delivered" if sent else "known")

    def _tell(self, target: str, reason: str) -> None:
        """In the log, once for as long as a target fails."""
        if reason and target not in self._failing:
            self._failing.add(target)
            log.warning("Target %s does not take messages: %s. Alertmanager tries again.", target, reason)
        elif not reason and target in self._failing:
            self._failing.discard(target)
            log.info("Target %s takes messages again", target)


def _by_apprise() -> Send:
    # Late: it imports apprise at its first message.
    from exporter.notify.services import send

    return send


class _Taken:
    """Which addresses have which message, for a while. Used from several threads."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, set[str]]] = OrderedDict()
        """Until when, by message; the oldest first."""

    def has(self, key: str, mark: str) -> bool:
        with self._lock:
            until, marks = self._known.get(key, (0.0, set[str]()))
            return mark in marks and self._monotonic() < until

    def add(self, key: str, mark: str) -> None:
        with self._lock:
            now = self._monotonic()
            until, marks = self._known.pop(key, (0.0, set[str]()))
            if now >= until:
                marks = set()
            marks.add(mark)
            self._known[key] = (now + KNOWN_SECONDS, marks)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def done(self, key: str) -> None:
        """Every target has it."""
        with self._lock:
            until, marks = self._known.get(key, (0.0, set[str]()))
            if marks:
                self._known[key] = (min(until, self._monotonic() + KNOWN_WHEN_DONE_SECONDS), marks)


async def _on_a_thread(work: Callable[[], _T]) -> _T:
    """On a thread that does not keep the process from ending: a service may take its time, and has no say in that."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            log.debug("The exporter ended before a message was delivered")

    threading.Thread(target=run, name="notify", daemon=True).start()
    return await done
