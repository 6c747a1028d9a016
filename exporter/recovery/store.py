"""SQLite store of the recovery engine: recoveries, alerts seen, audit log. Made by the app, used by the engine only."""

from __future__ import annotations

from pathlib import Path


class RecoveryStore:
    """``path`` is a file of its own (``<data_dir>/recovery.sqlite``) or ``:memory:``. Raises ``OSError`` with a sentence."""

    def __init__(self, path: Path | str) -> None: ...

    def close(self) -> None: ...
