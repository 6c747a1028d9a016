"""The main job from end to end: the stock trainer breaks, is found out, and is brought back, with real programs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.scenarios import RATE

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 1600

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1800)]


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


def summary_of(out: Path, scenario: str) -> dict[str, Any]:
    """Of a demo that has to succeed."""
    demo = start_demo(out, scenario)
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, output
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert found["outcome"] == "recovered"
    assert found["false_pages"] == 0
    return found


@pytest.mark.programs
def test_a_ruinous_rate_is_not_cured_by_a_rollback_and_is_by_the_rate_of_the_stable_branch(out: Path) -> None:
    summary = summary_of(out, "bad_config")

    *earlier, config = summary["rungs"]
    assert {rung["rung"] for rung in earlier} == {"checkpoint"}
    assert not any(rung["held"] for rung in earlier)
    assert config["rung"] == "config"
    assert config["held"]
    assert config["changes"][RATE] == [0.01, 0.0001]
    (proof,) = [one for one in config["proofs"] if one["name"] == RATE]
    assert (proof["wanted"], proof["found"], proof["ok"]) == (0.0001, 0.0001, True)
    assert proof["restored"] > 0.0001
    # What the trainer itself logs as actor/lr.
    assert config["learning_rate"] == pytest.approx(0.0001)


def test_a_broken_version_is_left_for_the_last_that_ran_healthy_in_an_environment_of_its_own(out: Path) -> None:
    summary = summary_of(out, "bad_version")

    *earlier, version = summary["rungs"]
    assert {rung["rung"] for rung in earlier} == {"checkpoint"}
    assert version["rung"] == "version"
    assert "config" in version["passed_over"]
    broken, present = version["changes"]["verl_version"]
    assert present == version["verl_version"] == importlib.metadata.version("verl")
    assert broken == earlier[-1]["verl_version"] != present


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(out: Path) -> None:
    summary = summary_of(out, "corrupt_checkpoint")

    (rung,) = summary["rungs"]
    assert rung["target_step"] == 20
    assert any("25" in line for line in rung["refused_checkpoints"])


def test_a_leak_of_host_memory_is_foreseen_and_the_restart_loses_no_step(out: Path) -> None:
    summary = summary_of(out, "memory_leak")

    assert summary["action"] == "restart"
    assert "memory/run_memory" in summary["detected_by"]
    assert summary["steps_lost"] == 0


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
