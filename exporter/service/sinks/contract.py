"""What a sink reads and what it tells of itself. Implemented by the archive; the health is read by exposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from exporter.service.stored import Entry


class EntrySource(Protocol):
    """The journal as a sink sees it. Called from the sink's thread only; may raise ``JournalUnavailable``."""

    def entries(self, after: int, limit: int) -> Sequence[Entry]:
        """Entries of every kind with a position above ``after``, in order, at most ``limit``."""

    def last_position(self) -> int:
        """Position of the newest entry; 0 where there is none."""

    def moved_upto(self) -> int:
        """Position up to which :meth:`entries` has nothing any more, because it was moved to the history; or 0.

        What is missing above it is missing on purpose: a heartbeat that was replaced, a run that was forgotten.
        """


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """One sink at one moment. The counts are since the exporter's start."""

    name: str
    up: bool = True
    """False from a write that failed to the next that succeeds."""
    lag_entries: int = 0
    """Positions of the journal that are not sent yet; heartbeats among them are only passed over."""
    lag_seconds: float = 0.0
    """Age of the oldest entry that is not sent yet; 0 where all are."""
    written_points: int = 0
    """Points that the server took; one that was sent twice after a failure counts twice."""
    rejected_points: int = 0
    """Points that the server will never take, and that were left out."""
    failed_writes: int = 0
    """Requests that failed, and times that the journal could not be read; each is tried again."""
    dropped_entries: int = 0
    """Pushes that were never sent, because the sink was behind by more than its bound or they could not be read."""
    last_error: str = ""
    """Why it is not up, a sentence; empty while it is."""
