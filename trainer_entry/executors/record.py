"""``attempts/<n>/job.json``: which job an attempt is, written before it is submitted. By the shadow; read by whoever
has to find the job after the shadow is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from trainer_entry.supervisor.state import read_record, write_record

FILE = "job.json"


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``submitting`` until the cluster gave an id; ``over`` once the cluster said that nothing of it runs."""

    executor: str
    settings: str
    """Absolute path of the settings file; empty for the defaults."""
    name: str
    stage: Literal["submitting", "submitted", "over"] = "submitting"
    id: str = ""
    exit_code: int | None = None
    detail: str = ""
    log_offset: int = 0
    """Bytes of the job's log that the attempt's output has, to the last few seconds."""
    created_at: float = 0.0


def read_job(directory: Path) -> JobRecord | None:
    """The job of the attempt with this folder, or None where it has none. Raises StateError."""
    return read_record(directory / FILE, JobRecord)


def write_job(directory: Path, record: JobRecord) -> None:
    """Replace it. Raises StateError."""
    write_record(directory / FILE, record)
