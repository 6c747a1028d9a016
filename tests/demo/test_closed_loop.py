"""The main job from end to end: the stock trainer breaks, is found out, and is brought back, with real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 900

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1200)]


def start_demo(out: Path, scenario: str, path: str | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "COLUMNS": "160"}
    if path is not None:
        environment["PATH"] = path
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--scenario", scenario, "--out", str(out)],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_that_name(folder: Path) -> list[str]:
    """Command lines and environments of live processes in which the folder occurs: whatever the demo started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            told = (entry / "cmdline").read_bytes() + b" " + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.append(f"{entry.name}: {told[:200]!r}")
    return found


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "out"
    yield folder
    assert processes_that_name(folder) == []


def test_a_wrecked_policy_is_found_alerted_on_and_rolled_back(out: Path) -> None:
    demo = start_demo(out, "learning_rate")
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)

    assert demo.returncode == 0, output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["outcome"] == "recovered"
    assert summary["verl_version"] == "0.9.1"
    assert summary["action"] == "rollback"
    assert summary["false_pages"] == 0
    assert summary["fault_step"] <= summary["detected_step"] <= summary["fault_step"] + 6
    assert summary["target_step"] < summary["fault_step"]
    assert summary["resumed_step"] == summary["target_step"] + 1
    assert summary["recovery_seconds"] >= summary["trainer_start_seconds"] > 0


def test_without_prometheus_a_crash_is_recovered_through_the_fast_path_and_that_is_said(
    out: Path, tmp_path: Path
) -> None:
    # Only what the trainer and the rollback script need, so that neither Prometheus nor Alertmanager is found.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "date", "cat", "uname", "dirname", "readlink", "ps", "nproc"):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder, name))
    demo = start_demo(out, "crash", path=str(tools))
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)

    assert demo.returncode == 0, output
    assert "prometheus and prometheus-alertmanager not found" in output
    assert json.loads((out / "summary.json").read_text())["outcome"] == "recovered"


def test_an_interrupt_ends_everything_that_was_started(out: Path) -> None:
    demo = start_demo(out, "healthy")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (out / "metrics.jsonl").exists():
        assert demo.poll() is None, demo.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)

    assert demo.returncode == 130, output
    assert json.loads((out / "summary.json").read_text())["outcome"] == "interrupted"
