"""The order in which encoded batches leave this process: what dead processes left, then our own, oldest first.

Used by :mod:`trainer_entry.push.client`, from its one thread. Batches go to the disk before they are sent; where the
disk refuses (read-only, full), they are kept in memory up to a bound, and said so once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from trainer_entry.push.spool import Spool, SpoolBusy, orphans

DEFAULT_SPOOL_BYTES = 64 * 1024 * 1024
MEMORY_BYTES = 8 * 1024 * 1024


class Outbox:
    """First in, first out, over the spools of dead senders, our own spool, and memory.

    ``directory`` None keeps everything in memory. ``warn`` is called with a sentence, once for each cause.
    """

    def __init__(
        self,
        directory: Path | None,
        sender: str,
        *,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        warn: Callable[[str, str], None],
    ) -> None:
        self._directory = directory
        self._sender = sender
        self._max_bytes = max_bytes
        self._warn = warn
        self._adopted: deque[Spool] = deque()
        self._own: Spool | None = None
        self._memory: deque[bytes] = deque()
        self._memory_size = 0
        self._memory_bytes = memory_bytes
        self._dropped = 0
        self._head: Callable[[], None] | None = None

    def append(self, payload: bytes) -> None:
        """Take one encoded batch of our own. Never raises; the oldest is dropped and counted when all is full."""
        if self._directory is not None and not self._memory:
            try:
                if self._own is None:
                    self._own = Spool(self._directory, self._sender, max_bytes=self._max_bytes)
                before = self._own.dropped
                self._own.append(payload)
                if self._own.dropped > before:
                    self._dropped_to_bound(
                        f"the spool in {self._directory} reached its bound of {self._max_bytes} bytes"
                    )
                return
            except (OSError, SpoolBusy) as error:
                self._warn(
                    "spool", f"cannot write to the spool in {self._directory} ({error}); unsent batches stay in memory"
                )
        self._memory.append(payload)
        self._memory_size += len(payload)
        while self._memory_size > self._memory_bytes and len(self._memory) > 1:
            self._memory_size -= len(self._memory.popleft())
            self._dropped += 1
            self._dropped_to_bound(f"{self._memory_bytes} bytes of unsent batches are in memory")

    def peek(self) -> bytes | None:
        """The batch to send next, or None when all is sent. The same one until ``ack``."""
        while self._adopted:
            spool = self._adopted[0]
            payload = _peek(spool)
            if payload is not None:
                self._head = spool.ack
                return payload
            self._dropped += spool.dropped
            _close(self._adopted.popleft())
        if self._own is not None:
            payload = _peek(self._own)
            if payload is not None:
                self._head = self._ack_own
                return payload
        if self._memory:
            self._head = self._ack_memory
            return self._memory[0]
        self._head = None
        return None

    def ack(self) -> None:
        """The batch that ``peek`` returned is accepted, or refused for ever: forget it."""
        if self._head is not None:
            self._head()
            self._head = None

    def adopt_orphans(self) -> int:
        """Take over what dead processes of this run left on this node; returns how many senders were found."""
        if self._directory is None:
            return 0
        known = {spool.sender for spool in self._adopted} | {self._sender}
        found = 0
        for sender in orphans(self._directory):
            if sender in known:
                continue
            try:
                self._adopted.append(Spool(self._directory, sender, max_bytes=self._max_bytes, adopted=True))
                found += 1
            except (OSError, SpoolBusy):
                continue
        return found

    @property
    def empty(self) -> bool:
        """True when nothing is waiting."""
        return self.peek() is None

    @property
    def dropped(self) -> int:
        """Batches lost to a bound or to a damaged file."""
        return self._dropped + sum(spool.dropped for spool in self._adopted) + (self._own.dropped if self._own else 0)

    def close(self) -> None:
        """Leave what is unsent on disk for the next process; what is only in memory gets a last chance to go there."""
        if self._memory and self._directory is not None:
            try:
                own = self._own or Spool(self._directory, self._sender, max_bytes=self._max_bytes)
                self._own = own
                while self._memory:
                    own.append(self._memory[0])
                    self._memory.popleft()
            except (OSError, SpoolBusy):
                self._dropped += len(self._memory)
        for spool in self._adopted:
            _close(spool)
        self._adopted.clear()
        if self._own is not None:
            _close(self._own)
            self._own = None

    def abandon(self) -> None:
        """Close descriptors without touching the files: in a forked child, whose parent still owns them."""
        for spool in self._adopted:
            spool.abandon()
        self._adopted.clear()
        if self._own is not None:
            self._own.abandon()
            self._own = None
        self._memory.clear()

    def _ack_own(self) -> None:
        if self._own is not None:
            self._own.ack()

    def _ack_memory(self) -> None:
        self._memory_size -= len(self._memory.popleft())

    def _dropped_to_bound(self, why: str) -> None:
        self._warn("dropped", f"{why}; the oldest unsent batches are dropped from now on")


def _peek(spool: Spool) -> bytes | None:
    try:
        return spool.peek()
    except OSError:
        return None


def _close(spool: Spool) -> None:
    try:
        spool.close()
    except OSError:
        spool.abandon()
