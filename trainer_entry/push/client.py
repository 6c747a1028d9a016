"""The push client: what the plugin, the GPU sampler and the supervisor send with.

The training side calls :meth:`PushClient.step`, :meth:`PushClient.event` and the phase and rollout counters; each only
appends to a bounded queue. One daemon thread encodes, writes ahead to the spool, and sends. If the exporter is slow,
hung or gone, batches wait on disk and are sent later, in order. Nothing here raises into its caller, blocks it, or
outlives it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from exporter.protocol import Asked, Event, GpuReading, HistogramRequest, Role, RolloutCounts, Run
from trainer_entry.push.batches import BatchWriter, Item, RawStep, new_sender
from trainer_entry.push.outbox import DEFAULT_SPOOL_BYTES, Outbox
from trainer_entry.push.phases import PhaseBoard, RolloutCounter
from trainer_entry.push.transport import Reply, Transport
from trainer_entry.settings import Settings

QUEUE_ITEMS = 8192
"""Items that may wait for the thread; it takes them within a POST's time limit. Beyond it the oldest is dropped."""
POST_SECONDS = 3.0
PROBE_SECONDS = 1.0
"""Time limit of a POST while the exporter has not answered the last one: new items should reach the disk soon."""
BACKOFF_FIRST = 0.25
BACKOFF_LAST = 5.0
UNAUTHORIZED_SECONDS = 5.0
ORPHAN_SECONDS = 10.0
EXIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PushStatus:
    """Counters of one client since its start, in batches, but for ``overflowed``, which counts queue items, and
    ``left_out``, which counts metrics that are no numbers.
    """

    sent: int = 0
    refused: int = 0
    dropped: int = 0
    overflowed: int = 0
    waiting: bool = False
    left_out: int = 0


class _Flush:
    """A marker in the queue: everything before it was sent, or could not be."""

    def __init__(self, heartbeat: bool) -> None:
        self.heartbeat = heartbeat
        self.done = threading.Event()
        self.sent = False


class PushClient:
    """One sender. The thread starts at the first thing to send, or at :meth:`start`.

    ``heartbeat_seconds`` None sends no heartbeat (a worker that only counts rollouts: those go at most once a second,
    when they changed). ``on_command`` is called on the push thread with each command or abort that an answer carries;
    the same one comes again until the exporter knows what became of it. ``report`` gets sentences for a person.
    """

    def __init__(
        self,
        settings: Settings,
        run: Run,
        role: Role = "trainer",
        *,
        heartbeat_seconds: float | None = 1.0,
        on_command: Callable[[Asked], None] | None = None,
        report: Callable[[str], None] | None = None,
        spool_bytes: int = DEFAULT_SPOOL_BYTES,
        post_seconds: float = POST_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.phases = PhaseBoard(monotonic)
        self.rollouts = RolloutCounter()
        self.run = run
        self.sender = new_sender(role)
        self._heartbeat_seconds = heartbeat_seconds
        self._on_command = on_command
        self.on_histogram: Callable[[HistogramRequest], None] | None = None
        """Called on the push thread with each request that an answer carries; the same one comes again."""
        self._report = report or _to_stderr
        self._post_seconds = post_seconds
        self._monotonic = monotonic
        self._now = now
        self._writer = BatchWriter(self.sender)
        spool = settings.state_dir / "spool" if settings.state_dir is not None else None
        self._outbox = Outbox(spool, self.sender.id, max_bytes=spool_bytes, warn=self._warn)
        self._outbox_lock = threading.Lock()
        self._transport = Transport(settings.url, settings.bearer, timeout=post_seconds, ca_file=settings.ca_file)
        self._queue: SimpleQueue[tuple[Run, Item] | _Flush | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closed = False
        self._warned: set[str] = set()
        self._flushes: list[_Flush] = []
        self._last_rollout = RolloutCounts()
        self._gpus: tuple[GpuReading, ...] = ()
        self._failures = 0
        self._retry_at = 0.0
        self._heartbeat_at = 0.0
        self._orphans_at = 0.0
        self._sent = self._refused = self._overflowed = 0
        _clients.add(self)

    # Called by the training side: these only append.

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Hand over the metrics of a step, whatever their values are; parts of one step may come one by one."""
        self._put(RawStep(int(step), dict(metrics), self._now()))

    def event(self, event: Event) -> None:
        """Hand over an event."""
        self._put(event)

    def gpus(self, readings: Sequence[GpuReading]) -> None:
        """Hand over the GPU readings of now. Only the newest go, with the next heartbeat: an old one helps nobody."""
        self._gpus = tuple(readings)

    def set_run(self, run: Run) -> None:
        """From here on, what is handed over belongs to this run or attempt; what waits keeps its own."""
        self.run = run

    def start(self) -> None:
        """Start the thread now: for a sender that has a heartbeat and nothing else to say yet."""
        if self._thread is not None or self._closed:
            return
        with self._start_lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._loop, name="verl-sentinel-push", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)

    # Called at the end of something.

    def flush(self, timeout: float) -> bool:
        """Try to send everything handed over so far, and what is true now; True when it was accepted in time (seconds).

        Returns early with False when the exporter cannot be reached: waiting longer would not help, and all is on disk.
        """
        return self._flush(timeout, heartbeat=True)

    def close(self, timeout: float = EXIT_SECONDS) -> bool:
        """Flush for at most ``timeout`` seconds, leave the rest in the spool, and stop. True when all was accepted."""
        if self._closed:
            return True
        sent = self._flush(timeout, heartbeat=False)
        self._closed = True
        self._queue.put(None)
        with self._outbox_lock:
            self._take_queue()
            counts = self.rollouts.counts()
            if counts != self._last_rollout:
                self._outbox.append(self._writer.heartbeat(self.run, now=self._now(), rollout=counts))
            self._outbox.close()
        atexit.unregister(self._at_exit)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=0.2)
        return sent

    def status(self) -> PushStatus:
        """Counters for a test or a person."""
        with self._outbox_lock:
            waiting = not self._queue.empty() or (not self._closed and not self._outbox.empty)
            dropped = self._outbox.dropped + self._writer.lost
            return PushStatus(self._sent, self._refused, dropped, self._overflowed, waiting, self._writer.left_out)

    # The rest runs on the push thread, but for what close() does under the outbox lock.

    def _flush(self, timeout: float, *, heartbeat: bool) -> bool:
        if self._thread is None or self._closed:
            return self._thread is None
        marker = _Flush(heartbeat)
        self._queue.put(marker)
        return marker.done.wait(timeout) and marker.sent

    def _put(self, item: Item) -> None:
        if self._closed:
            return
        if self._queue.qsize() >= QUEUE_ITEMS:
            try:
                self._queue.get_nowait()
                self._overflowed += 1
            except Empty:
                pass  # the thread took them all meanwhile
        self._queue.put((self.run, item))
        if self._thread is None:
            self.start()

    def _loop(self) -> None:
        self._heartbeat_at = self._monotonic()
        first: tuple[Run, Item] | _Flush | None = None
        while not self._closed:
            try:
                wait = self._turn(first)
            except Exception as error:  # noqa: BLE001 - the last line: a defect of ours must not end the heartbeat
                self._warn("defect", f"the push thread met {type(error).__name__}: {error}")
                self._fail_flushes()
                wait = BACKOFF_LAST
            first = self._next(wait)
        self._transport.close()

    def _next(self, seconds: float) -> tuple[Run, Item] | _Flush | None:
        """Sleep until something is handed over, which is returned, or the time is over."""
        try:
            return self._queue.get(timeout=seconds)
        except Empty:
            return None

    def _turn(self, first: tuple[Run, Item] | _Flush | None) -> float:
        """Take what waits, send what may be sent; returns how long to sleep if nobody calls."""
        with self._outbox_lock:
            self._take_queue(first)
            if self._closed:
                return 0.0
            if self._monotonic() >= self._orphans_at:
                self._orphans_at = self._monotonic() + ORPHAN_SECONDS
                self._outbox.adopt_orphans()
        if self._flushes:
            self._retry_at = 0.0
        drained = self._monotonic() >= self._retry_at and self._drain()
        if drained:
            if self._monotonic() >= self._heartbeat_at or any(flush.heartbeat for flush in self._flushes):
                self._heartbeat()
            self._finish_flushes()
        else:
            self._fail_flushes()
        due = max(self._heartbeat_at, self._retry_at) if drained else self._retry_at
        return max(0.01, min(self._orphans_at, due) - self._monotonic())

    def _take_queue(self, first: tuple[Run, Item] | _Flush | None = None) -> None:
        """Encode what waits and write it ahead, under the outbox lock: close() may do it in the thread's place."""
        groups: list[tuple[Run, list[Item]]] = []
        entry = first
        while True:
            if isinstance(entry, _Flush):
                self._flushes.append(entry)
            elif entry is not None:
                run, item = entry
                if not groups or groups[-1][0] is not run:
                    groups.append((run, []))
                groups[-1][1].append(item)
            try:
                entry = self._queue.get_nowait()
            except Empty:
                break
        for run, items in groups:
            for payload in self._writer.items(run, items, now=self._now()):
                self._outbox.append(payload)
        if self._writer.left_out:
            example = self._writer.first_left_out
            self._warn("left out", f"metrics that are no numbers are left out; the first is {example}")
        if self._writer.lost:
            self._warn("lost", "something handed over cannot be written as a message (text that is no Unicode?)")

    def _drain(self) -> bool:
        """Send from the outbox until it is empty (True) or a batch must wait (False)."""
        while True:
            with self._outbox_lock:
                payload = None if self._closed else self._outbox.peek()
            if payload is None:
                return not self._closed
            reply = self._post(payload)
            if reply.verdict not in ("accepted", "refused"):
                return False
            with self._outbox_lock:
                if self._closed:
                    return False
                self._outbox.ack()
                self._take_queue()

    def _heartbeat(self) -> None:
        counts = self.rollouts.counts()
        changed = counts != self._last_rollout
        self._heartbeat_at = self._monotonic() + (self._heartbeat_seconds or 1.0)
        gpus, self._gpus = self._gpus, ()
        if self._heartbeat_seconds is None and not changed and not gpus:
            return
        with self._outbox_lock:
            payload = self._writer.heartbeat(
                self.run,
                now=self._now(),
                phase=self.phases.report(),
                rollout=counts if changed else None,
                gpus=gpus,
            )
        if self._post(payload).verdict == "accepted":
            self._last_rollout = counts

    def _post(self, payload: bytes) -> Reply:
        reply = self._transport.post(payload, timeout=PROBE_SECONDS if self._failures else self._post_seconds)
        if reply.verdict in ("accepted", "refused"):
            self._failures = 0
            self._retry_at = 0.0
            if reply.verdict == "accepted":
                self._sent += 1
            else:
                self._refused += 1
                self._warn(f"refused {reply.status}", f"the exporter refused a batch, which is dropped: {reply.detail}")
            # The abort first: what is called off is not begun.
            for asked in (reply.abort, reply.command):
                if asked is not None and self._on_command is not None:
                    self._obey(self._on_command, asked)
            if reply.histogram is not None and self.on_histogram is not None:
                self._obey(self.on_histogram, reply.histogram)
            return reply
        delay = min(BACKOFF_LAST, BACKOFF_FIRST * 2.0 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
        self._failures += 1
        if reply.verdict == "unauthorized":
            delay = UNAUTHORIZED_SECONDS
            self._warn("unauthorized", f"the token is not accepted ({reply.detail}); batches wait until it is right")
        elif reply.verdict == "unreachable":
            self._warn("unreachable", f"no answer from {self._transport.url} ({reply.detail}); batches wait on disk")
        else:
            self._warn("later", f"the exporter asked to wait or failed inside ({reply.detail}); batches wait on disk")
        self._retry_at = self._monotonic() + (delay if reply.retry_after is None else max(reply.retry_after, 0.05))
        return reply

    def _obey(self, take: Callable[[Any], None], asked: Asked | HistogramRequest) -> None:
        try:
            take(asked)
        except Exception as error:  # noqa: BLE001 - the receiver's defect must not stop the heartbeat
            self._warn("command", f"request {asked.id} could not be taken ({type(error).__name__}: {error})")

    def _finish_flushes(self) -> None:
        for flush in self._flushes:
            flush.sent = True
            flush.done.set()
        self._flushes.clear()

    def _fail_flushes(self) -> None:
        for flush in self._flushes:
            flush.done.set()
        self._flushes.clear()

    def _warn(self, cause: str, sentence: str) -> None:
        """Tell a person once for each cause: a training log is read by people who did not ask for ours."""
        if cause in self._warned:
            return
        self._warned.add(cause)
        self._report(sentence)

    def _at_exit(self) -> None:
        self.close(EXIT_SECONDS)

    def _after_fork(self) -> None:
        """In a forked child: no thread came along, and the files are the parent's. This object falls silent."""
        self._closed = True
        self._queue = SimpleQueue()
        self._outbox_lock = threading.Lock()
        self._outbox.abandon()
        # The connection is not closed: its buffers may be locked by the thread that did not come along.


_clients: weakref.WeakSet[PushClient] = weakref.WeakSet()


def _silence_clients_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_silence_clients_in_child)


def _to_stderr(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed, or a terminal that is gone
        print(f"verl-sentinel: {sentence}", file=sys.stderr, flush=True)
