"""Whole lines of a file that another process writes, truncates, replaces or removes. Called by the follower.

Nothing is told to a reader when a file changes, so what was read last is compared at every look: where the bytes before
the place of reading are no longer those that were read, the file is another one, whatever its size and inode say.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

MAX_LINE_BYTES = 4 * 1024 * 1024
"""A longer line is passed over: a step with 2,000 metrics is a twentieth of it."""
ANCHOR_BYTES = 512
CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end. ``end``: offset of the byte after it; ``text`` is None for one that is too long."""

    text: bytes | None
    end: int
    anchor: str
    """What tells whether the file is still the one that this line was read from."""


Change = Literal["same", "new", "gone", "missing"]


class FileUnreadable(Exception):
    """The file cannot be read; the text is a sentence."""


class Tail:
    """A place in a growing file.

    ``look`` first, then take ``lines``. Reads no more than it is asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._inode = (0, 0)
        self._held = bytearray()
        self._skipping = False
        self.offset = 0
        """Of the first byte that no line was made of yet."""
        self._anchor = b""
        """The last bytes before the place of reading."""

    def start_at(self, offset: int, anchor: str) -> bool:
        """Go to a place that was come to in another life of this program; False where the file is another one now."""
        if not self._open():
            return False
        assert self._file is not None
        length, _, digest = anchor.partition(":")
        before = _bytes_before(self._file, offset, int(length or 0))
        if before is None or anchor_of(before) != f"{length}:{digest}":
            return False
        self._file.seek(offset)
        self.offset, self._anchor = offset, before
        return True

    def look(self) -> Change:
        """What became of the file since the last look. After ``new`` reading begins at its first byte."""
        if self._file is None:
            return "new" if self._open() else "missing"
        try:
            status = os.stat(self.path)
            replaced = (status.st_dev, status.st_ino) != self._inode
        except OSError:
            # Removed, but what was written to it before may still be there to be read.
            return "gone"
        if replaced:
            return "same" if self._more() else self._reopen()
        where = self.offset + len(self._held)
        before = _bytes_before(self._file, where, len(self._anchor))
        self._file.seek(where)
        return "same" if before == self._anchor else self._restart()

    def _more(self) -> bool:
        """Whether the file that is open, though no longer under this name, has bytes that were not read."""
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size > self.offset + len(self._held)

    def _reopen(self) -> Change:
        where, anchor = self.offset + len(self._held), self._anchor
        held, skipping = bytes(self._held), self._skipping
        self.close()
        if not self._open():
            return "gone"
        assert self._file is not None
        if anchor and _bytes_before(self._file, where, len(anchor)) == anchor:
            # A copy took the file's place, such as rsync makes: the same run goes on in it.
            self._file.seek(where)
            self.offset, self._anchor = where - len(held), anchor
            self._held, self._skipping = bytearray(held), skipping
            return "same"
        self._file.seek(0)
        return "new"

    def _restart(self) -> Change:
        assert self._file is not None
        self._file.seek(0)
        self._forget()
        return "new"

    def _open(self) -> bool:
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # asked before: to open a pipe may wait for ever
                raise FileUnreadable(f"{self.path} is not a regular file, so it cannot be followed.")
            self._file = self.path.open("rb", buffering=0)
            status = os.fstat(self._file.fileno())
        except FileNotFoundError:
            return False
        except OSError as error:
            raise FileUnreadable(f"{self.path} cannot be read: {error.strerror or error}.") from None
        self._inode = (status.st_dev, status.st_ino)
        self._forget()
        return True

    def _forget(self) -> None:
        self.offset, self._anchor, self._skipping = 0, b"", False
        self._held = bytearray()

    def lines(self, most_bytes: int) -> Iterator[Line]:
        """Whole lines from here on, until there is none or about ``most_bytes`` were read."""
        read = 0
        while self._file is not None and read < most_bytes:
            try:
                chunk = self._file.read(CHUNK_BYTES)
            except gzip.BadGzipFile:
                raise
            except OSError as error:
                raise FileUnreadable(f"{self.path} cannot be read: {error.strerror or error}.") from None
            if not chunk:
                return
            read += len(chunk)
            self._anchor = (self._anchor + chunk)[-ANCHOR_BYTES:]
            yield from self._cut(chunk)

    def _cut(self, chunk: bytes) -> Iterator[Line]:
        self._held += chunk
        start = 0
        while (end := self._held.find(b"\n", start)) >= 0:
            text = bytes(self._held[start:end])
            anchor = anchor_of(bytes(self._held[start : end + 1][-ANCHOR_BYTES:]))
            self.offset += end + 1 - start
            too_long, self._skipping = self._skipping or len(text) > MAX_LINE_BYTES, False
            start = end + 1
            yield Line(None if too_long else text, self.offset, anchor)
        del self._held[:start]
        if len(self._held) > MAX_LINE_BYTES:
            self._skipping = True
            self.offset += len(self._held)
            self._held.clear()

    def rest(self) -> bytes:
        """What follows the last line end."""
        return b"" if self._skipping else bytes(self._held)

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def size(self) -> int:
        """In bytes; 0 where it is not there."""
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    def changed_at(self) -> float | None:
        """When the file was last written, Unix seconds by its file system's clock; None where it is not there."""
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_mtime
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Packed(Tail):
    """A file that ``gzip`` packed: read once, from its beginning."""

    def _open(self) -> bool:
        opened = super()._open()
        if opened:
            assert self._file is not None
            self._file = gzip.GzipFile(fileobj=self._file)  # type: ignore[assignment]
        return opened

    def look(self) -> Change:
        if self._file is None:
            return "new" if self._open() else "missing"
        return "same"

    def lines(self, most_bytes: int) -> Iterator[Line]:
        try:
            yield from super().lines(most_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileUnreadable(f"{self.path} is not a whole gzip file: {error}.") from None


def anchor_of(before: bytes) -> str:
    """A short text that stands for the last bytes before a place.

    >>> anchor_of(b"")
    '0:'
    """
    return f"{len(before)}:{hashlib.sha256(before).hexdigest()[:16] if before else ''}"


def _bytes_before(file: IO[bytes], offset: int, length: int) -> bytes | None:
    """``length`` bytes before an offset; None where the file is too short."""
    try:
        file.seek(offset - length)
        before = b""
        while len(before) < length and (more := file.read(length - len(before))):
            before += more
    except (OSError, ValueError):
        return None
    return before if len(before) == length else None
