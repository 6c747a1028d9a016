"""A short form of ``python tests/http/fuzz.py``: whatever is sent, nothing breaks."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


def test_whatever_is_sent_is_answered_as_described_and_breaks_nothing(tmp_path: Path) -> None:
    from fuzz import fuzz

    count = int(os.environ.get("VERL_SENTINEL_FUZZ_REQUESTS", "1200"))
    seed = int(os.environ.get("VERL_SENTINEL_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    report = fuzz(tmp_path, count, seed)
    assert not report.wrong, f"seed {seed}: " + "\n".join(report.wrong[:10])
    assert report.sent >= count
    assert report.by_status.get("200", 0) > count // 15, report.by_status
    assert report.by_status.get("400", 0) > count // 20, report.by_status
