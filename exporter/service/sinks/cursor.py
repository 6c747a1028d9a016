"""A sink's place in the journal, kept on disk. Used by the sink's thread.

The place is written after what it stands for was taken by the server, so a crash in between sends a little again and
never leaves anything out. A file that is damaged or for another server counts as none.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

log = logging.getLogger("exporter.sinks")


class _Place(msgspec.Struct, frozen=True):
    target: str
    position: int


class Cursor:
    """One file with one position.

    Args:
        path: in the data folder; its folder has to exist.
        target: what the position is about; a file about something else is not used, and is overwritten.
    """

    def __init__(self, path: Path, target: str) -> None:
        self.path = path
        self._target = target
        self._saved: int | None = None

    def load(self) -> int | None:
        """The position, or None where there is none for this target."""
        try:
            place = msgspec.json.decode(self.path.read_bytes(), type=_Place)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("The place in %s cannot be read, what is still there is sent again: %s", self.path, error)
            return None
        if place.target != self._target or place.position < 0:
            return None
        self._saved = place.position
        return place.position

    def save(self, position: int) -> None:
        """Write it whole or not at all. Raises ``OSError``."""
        if position == self._saved:
            return
        new = self.path.with_name(self.path.name + ".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(_Place(self._target, position)))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        self._saved = position
