"""Which file a name stands for. Used by the journal and the history, whose files somebody may delete or replace."""

from __future__ import annotations

from pathlib import Path


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that has this name now; None where none has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
