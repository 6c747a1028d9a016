"""What could not be sent yet, on local disk: append-only frames in segments, bounded in bytes, safe against kill -9.

Used by :mod:`trainer_entry.push.outbox`. One sender owns one lock file and its segments::

    <sender id>.lock               held with flock while the sender lives
    <sender id>.<number>.spool     frames: length and CRC-32 (little-endian, 4 bytes each), then one encoded batch

A batch is written here before it is sent, so a process that is killed loses only what its queue held. Nothing is ever
rewritten: when all frames of a segment are acknowledged the segment goes. A segment that was half sent is sent again
from its start by whoever finds it, and the exporter counts nothing twice, because the frames keep their sender and
number.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from collections import deque
from pathlib import Path
from types import TracebackType

_HEADER = struct.Struct("<II")
_SEGMENT = re.compile(r"(?P<sender>[A-Za-z0-9._-]+)\.(?P<number>\d{6,})\.spool")
MAX_FRAME_BYTES = 16 * 1024 * 1024
SEGMENTS = 8
"""The bound is kept by dropping the oldest of this many segments."""


class SpoolBusy(Exception):
    """Another living process owns the sender's files."""


class Spool:
    """First in, first out, of one sender, on disk. Not thread-safe: its owner is one thread.

    ``append``, ``peek`` and ``ack`` raise ``OSError`` when the disk refuses; the caller then keeps batches in memory.
    """

    def __init__(self, directory: Path, sender: str, *, max_bytes: int, adopted: bool = False) -> None:
        self.sender = sender
        self.dropped = 0
        """Batches lost to the bound or to a damaged file, since this object was made."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = max(1, max_bytes // SEGMENTS)
        directory.mkdir(parents=True, exist_ok=True)
        self._lock_fd: int | None = _lock(directory / f"{sender}.lock")
        self._segments: deque[_Segment] = deque()
        if adopted:
            self._segments.extend(_Segment(path) for path in _segment_paths(directory, sender))
        self._next_number = self._segments[-1].number + 1 if self._segments else 1

    def append(self, payload: bytes) -> None:
        """Write one encoded batch at the end; drops the oldest segment first when the bound would be passed."""
        need = _HEADER.size + len(payload)
        while len(self._segments) > 1 and self.size + need > self._max_bytes:
            self._drop_oldest()
        tail = self._segments[-1] if self._segments else None
        if tail is None or tail.size + need > self._segment_bytes:
            tail = _Segment(self._directory / f"{self.sender}.{self._next_number:06d}.spool", create=True)
            self._next_number += 1
            self._segments.append(tail)
        tail.append(payload)

    def peek(self) -> bytes | None:
        """The oldest batch that is not acknowledged, or None. A damaged rest of a segment is dropped and counted."""
        while self._segments:
            head = self._segments[0]
            payload = head.peek()
            if payload is not None:
                return payload
            if head.damaged:
                self.dropped += 1
            if len(self._segments) == 1 and not head.damaged and head.size <= self._segment_bytes:
                head.clear()
                return None
            self._segments.popleft().delete()
        return None

    def ack(self) -> None:
        """Forget the batch that ``peek`` returned."""
        if self._segments:
            self._segments[0].ack()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments)

    def close(self) -> None:
        """Give the files up: removed when nothing is left in them, else left for the next process to find."""
        if self._lock_fd is None:
            return
        try:
            if self.peek() is None:
                while self._segments:
                    self._segments.popleft().delete()
                (self._directory / f"{self.sender}.lock").unlink(missing_ok=True)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptors and touch nothing else: for a forked child, where the parent still owns the files."""
        for segment in self._segments:
            segment.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drop_oldest(self) -> None:
        oldest = self._segments.popleft()
        while oldest.peek() is not None:
            oldest.ack()
            self.dropped += 1
        oldest.delete()


def orphans(directory: Path) -> list[str]:
    """Senders whose files lie in ``directory``, oldest first; some may be owned by a living process."""
    ages: dict[str, float] = {}
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return []
    for entry in entries:
        match = _SEGMENT.fullmatch(entry.name)
        if match is None:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        sender = match["sender"]
        ages[sender] = min(ages.get(sender, status.st_mtime), status.st_mtime)
    return sorted(ages, key=lambda sender: (ages[sender], sender))


class _Segment:
    """One file of frames, with the place of the next frame to send."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        match = _SEGMENT.fullmatch(path.name)
        assert match is not None, path
        self.number = int(match["number"])
        self.damaged = False
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        self._fd = os.open(path, flags, 0o600)
        self.size = os.fstat(self._fd).st_size
        self._head = 0
        self._head_length = 0

    def append(self, payload: bytes) -> None:
        frame = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        written = os.pwrite(self._fd, frame, self.size)
        if written != len(frame):
            os.ftruncate(self._fd, self.size)
            raise OSError(f"{self.path}: wrote {written} of {len(frame)} bytes; the disk is probably full")
        self.size += written

    def peek(self) -> bytes | None:
        if self.damaged or self._head >= self.size:
            return None
        header = os.pread(self._fd, _HEADER.size, self._head)
        if len(header) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            if length <= MAX_FRAME_BYTES:
                payload = os.pread(self._fd, length, self._head + _HEADER.size)
                if len(payload) == length and zlib.crc32(payload) == checksum:
                    self._head_length = _HEADER.size + length
                    return payload
        self.damaged = True
        return None

    def ack(self) -> None:
        self._head += self._head_length
        self._head_length = 0

    def clear(self) -> None:
        if self.size:
            os.ftruncate(self._fd, 0)
            self.size = self._head = 0

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _segment_paths(directory: Path, sender: str) -> list[Path]:
    found = []
    for entry in os.scandir(directory):
        match = _SEGMENT.fullmatch(entry.name)
        if match is not None and match["sender"] == sender and entry.is_file(follow_symlinks=False):
            found.append((int(match["number"]), Path(entry.path)))
    return [path for _, path in sorted(found)]


def _lock(path: Path) -> int:
    """Take the sender's lock or raise :class:`SpoolBusy`. Its last owner may have unlinked the file meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:
            raise SpoolBusy(f"{path} was removed by the process that sent its batches")
    except BlockingIOError as error:
        os.close(descriptor)
        raise SpoolBusy(f"{path} is held by a living process") from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
