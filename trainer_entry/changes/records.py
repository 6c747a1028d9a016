"""What the trainer leaves in the supervisor's folder of its attempt: its configuration, and proofs of what was changed.

Small JSON in ``attempts/<n>/`` of the state directory. Written by the plugin, which may never fail for it; read by the
supervisor and the command line, also with the exporter down. A trainer on a machine that does not have that folder
leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from exporter.protocol import Scalar, SettingApplied

CONFIG_NAME = "config.json"
"""The resolved configuration, flat."""
APPLIED_NAME = "applied.json"
"""A list of ``SettingApplied``."""
_MAX_BYTES = 8 * 1024 * 1024


def attempt_dir(state_dir: Path | None, attempt: int) -> Path | None:
    """The supervisor's folder for this attempt, where it lies on this machine; None without a supervisor."""
    if state_dir is None:
        return None
    directory = state_dir / "attempts" / str(attempt)
    return directory if directory.is_dir() else None


def keep_config(state_dir: Path | None, attempt: int, config: Mapping[str, Scalar]) -> None:
    """Leave the resolved configuration where the supervisor can compare it with another one."""
    directory = attempt_dir(state_dir, attempt)
    if directory is not None:
        _write(directory / CONFIG_NAME, config)


def keep_applied(directory: Path, applied: list[SettingApplied]) -> None:
    """Leave the proofs so far."""
    _write(directory / APPLIED_NAME, applied)


def read_applied(directory: Path) -> list[SettingApplied]:
    """The proofs so far; none where there is no such file, or no such list in it."""
    try:
        with (directory / APPLIED_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=list[SettingApplied])
    except (OSError, msgspec.DecodeError, RecursionError):
        return []


def _write(path: Path, value: object) -> None:
    """Replace a small file; a disk that is full is no reason for anything here to fail."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(msgspec.to_builtins(value)), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
