"""One file on its way into an archive, with a note of how far it is, so that a kill costs no byte twice.

age never makes the same bytes twice, so what was sealed is kept until it was sent; then it is deleted, to make room for
the next, and the note alone says that it is there.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from trainer_entry.checkpoints.atomic import write_json_atomically
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.sealing import seal
from trainer_entry.checkpoints.tiers.stores import Content, Sent, Store, StoreError


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """``origin`` is the SHA-256 of the plain file; size and SHA-256 are of the sealed one."""

    origin: str
    size: int
    sha256: str
    sent: bool = False
    checksum: str = ""


class Sealing:
    """``own`` is the path, without its ending, of the sealed file and its note."""

    def __init__(self, own: Path, recipients: list[Any], level: int) -> None:
        self._target = own.with_suffix(".zst.age")
        self._path = own.with_suffix(".json")
        self._recipients = recipients
        self._level = level

    def send(self, far: Store, key: str, content: Content, pace: Pace) -> tuple[Content, Sent]:
        """See that the sealed file is there; returns what it is. Raises what sealing and the store raise."""
        note = self._note(content)
        if note is not None and note.sent:
            try:
                far.prove(key, note.size, note.sha256, note.checksum, pace)
                return self._content(note), Sent(0, "store" if note.checksum else "read back", note.checksum)
            except StoreError as error:
                if error.kind not in ("missing", "lies"):
                    raise
                note = None  # it was lost there: made and sent again
        if note is None or not self._whole(note):
            made = seal(content, self._target, self._recipients, self._level, pace)
            note = _Note(origin=content.sha256, size=made.size, sha256=made.sha256)
            write_json_atomically(self._path, note)
        sealed = self._content(note)
        sent = far.send(key, sealed, pace)
        write_json_atomically(self._path, msgspec.structs.replace(note, sent=True, checksum=sent.checksum))
        with contextlib.suppress(FileNotFoundError):
            self._target.unlink()
        return sealed, sent

    def _note(self, content: Content) -> _Note | None:
        try:
            note = msgspec.json.decode(self._path.read_bytes(), type=_Note)
        except (OSError, msgspec.DecodeError):
            return None
        return note if note.origin == content.sha256 else None

    def _whole(self, note: _Note) -> bool:
        try:
            return os.path.getsize(self._target) == note.size
        except OSError:
            return False

    def _content(self, note: _Note) -> Content:
        return Content(os.fspath(self._target), note.size, note.sha256)
