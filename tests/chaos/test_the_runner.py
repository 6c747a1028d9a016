"""``python -m tests.chaos`` leaves nothing behind, also when it is interrupted; and says what it cannot find."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def processes_of(folder: Path) -> list[str]:
    """Command lines of live processes in which that folder is named."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdecimal() else b""
            if os.fsencode(folder) in words and int(name) != os.getpid():
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def runner(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos", *words],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.programs
def test_after_ctrl_c_no_process_and_no_folder_is_left(tmp_path: Path) -> None:
    suite = runner(tmp_path, "--only", "plain observe", "--scenarios", "0")
    try:
        deadline = time.monotonic() + 90
        while not any("fast_trainer" in words for words in processes_of(tmp_path)):
            assert suite.poll() is None, suite.communicate()[0]
            assert time.monotonic() < deadline, "no trainer was started"
            time.sleep(0.1)
        suite.send_signal(signal.SIGINT)
        said, _ = suite.communicate(timeout=90)
    finally:
        suite.kill()
        suite.wait()
    assert suite.returncode == 130, said
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_none_is_told(tmp_path: Path) -> None:
    suite = runner(tmp_path, "--only", "no such thing")
    said, _ = suite.communicate(timeout=60)
    assert suite.returncode == 2
    assert "--list" in said
