"""How far a followed file has been brought to the exporter, kept over restarts of the follower. Called by it.

Whether a line was taken is the exporter's to say; what only this file knows is how many attempts there were before the
one that the followed file holds now, for verl truncates it at every start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from exporter.follow.lives import Cursor


class PlaceUnusable(Exception):
    """The state cannot be kept; the text is a sentence."""


@dataclass
class Place:
    """``start``: where the run stood at the file's first byte. ``now``: where it stood at ``offset``."""

    file: str = ""
    kind: str = ""
    start: Cursor = field(default_factory=Cursor)
    now: Cursor = field(default_factory=Cursor)
    offset: int = 0
    anchor: str = "0:"
    skip_to: int = 0
    """Lines that end here or before are not pushed (``--from-end``)."""
    last_step: int = 0
    """What verl said in the log; 0 where it has not."""
    finished: bool = False
    """The exporter was told that the run is over."""


def default_folder() -> Path:
    """In the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "verl-sentinel" / "follow"


class PlaceFile:
    """One file for each run at each exporter; locked while it is open, for two followers would contradict each other.

    Raises :class:`PlaceUnusable`.
    """

    def __init__(self, folder: Path, url: str, run_id: str) -> None:
        # The name is a digest: a run id may be anything, and must not become a path.
        name = hashlib.sha256(f"{url.rstrip('/')}\0{run_id}".encode()).hexdigest()[:24]
        self.path = folder / f"{name}.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: IO[bytes] = (folder / f"{name}.lock").open("ab")
        except OSError as error:
            raise PlaceUnusable(
                f"The state folder {folder} cannot be written: {error.strerror or error}. "
                "Name another with --state-dir."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise PlaceUnusable(f"Run {run_id} is followed by another process already.") from None

    def read(self) -> Place | None:
        """What was kept; None where there is nothing, or nothing that can be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Place)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, place: Place) -> None:
        """Keep it, whole or not at all. Raises :class:`PlaceUnusable`."""
        part = self.path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(place))
            os.replace(part, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise PlaceUnusable(f"{self.path} cannot be written: {error.strerror or error}.") from None

    def close(self) -> None:
        self._lock.close()
