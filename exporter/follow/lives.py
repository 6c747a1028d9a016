"""Which start of the trainer a line belongs to, and its number in it. Called by the follower.

The number is the line's sequence number at the exporter, and the sender's name comes from the attempt and its first
line: whoever reads the same file again, in another life of this program, gives every line the same name, so that the
exporter takes it once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from exporter.follow.parsing import Logged


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the history of a run."""

    attempt: int = 1
    fingerprint: str = ""
    """Of the attempt's first step line; empty before it."""
    index: int = 0
    """Step lines of this attempt so far."""
    step: int | None = None
    """Newest step of this attempt."""
    writer: str = ""

    @property
    def sender(self) -> str:
        """Name of the sender of this attempt's steps."""
        return f"follow-{self.attempt}-{self.fingerprint}"

    @property
    def begun(self) -> bool:
        return bool(self.fingerprint)


def next_attempt(cursor: Cursor) -> Cursor:
    return Cursor(attempt=cursor.attempt + 1)


def after(cursor: Cursor, logged: Logged, line: bytes, *, appended: bool) -> Cursor:
    """The place after a step line.

    ``appended``: the file may hold several starts of the trainer, as a console log does that each start appends to.
    There another writing process is another attempt; and where lines do not name their process, so is a step back.

    >>> one = after(Cursor(), Logged(57, {}), b"a", appended=True)
    >>> two = after(one, Logged(41, {}), b"b", appended=True)
    >>> (one.attempt, one.index, two.attempt, two.index, two.step)
    (1, 1, 2, 1, 41)
    """
    if cursor.begun and appended:
        named = bool(logged.writer and cursor.writer)
        another = named and logged.writer != cursor.writer
        back = not named and cursor.step is not None and logged.step < cursor.step
        if another or back:
            cursor = next_attempt(cursor)
    if not cursor.begun:
        cursor = replace(cursor, fingerprint=hashlib.sha256(line).hexdigest()[:12])
    return replace(
        cursor,
        index=cursor.index + 1,
        step=max(logged.step, -1 if cursor.step is None else cursor.step),
        writer=logged.writer or cursor.writer,
    )
