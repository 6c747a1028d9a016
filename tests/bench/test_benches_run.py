"""Every benchmark of the service runs, and prints what it promises. How fast anything is, no test says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
INGEST = ("--runs", "10", "--metrics", "60", "--steps-a-batch", "5", "--rounds", "1", "--seconds", "0.3")
PROGRAMS = ("prometheus-pushgateway", "victoria-metrics")


def result(name: str, *arguments: str, path: str | None = None) -> dict[str, Any]:
    """What a benchmark prints with --json; both exit codes of a benchmark that could run are fine."""
    ran = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *arguments, "--json"],
        cwd=ROOT,
        env={**os.environ, **({"PATH": path} if path is not None else {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    printed: dict[str, Any] = json.loads(ran.stdout)
    assert printed["benchmark"] == name
    assert printed["targets_met"] == (ran.returncode == 0)
    return printed


def check_ours(printed: dict[str, Any]) -> None:
    for kind in ("single", "batched"):
        assert printed[f"samples_per_second_{kind}"] > 0
        assert printed[f"samples_per_core_second_{kind}"] > 0
        assert 0 < printed[f"push_p50_ms_{kind}"] <= printed[f"push_p99_ms_{kind}"]
    assert printed["samples_arrived"] == printed["samples_sent"]


@pytest.mark.programs
@pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {' and '.join(PROGRAMS)}")
def test_ingest_stands_beside_its_peers_and_every_sample_arrives() -> None:
    printed = result("ingest", *INGEST)
    check_ours(printed)
    assert printed["programs_missing"] == []
    assert printed["pushgateway_samples_per_second_single"] > 0
    assert printed["victoria_metrics_samples_per_second_batched"] > 0
    assert printed["ratio_to_pushgateway"] > 0
    assert printed["ratio_to_victoria_metrics"] > 0
    assert set(printed["samples_sent"]) == {"the exporter", "Pushgateway", "VictoriaMetrics"}


def test_ingest_without_its_peers_says_which_are_missing_and_gives_no_figure_for_them(tmp_path: Path) -> None:
    printed = result("ingest", *INGEST, path=str(tmp_path))
    check_ours(printed)
    assert printed["programs_missing"] == list(PROGRAMS)
    assert printed["ratio_to_pushgateway"] is None
    assert printed["ratio_to_victoria_metrics"] is None


def test_memory_says_what_a_run_takes() -> None:
    printed = result("memory", "--runs", "3", "--steps", "20")
    assert printed["samples_complete"]
    assert printed["signals_per_run"] >= 40
    assert printed["resident_bytes_after"] > printed["resident_bytes_before"] > 0


def test_soak_prints_slopes_and_a_verdict() -> None:
    printed = result("soak", "--runs", "2", "--minutes", "0.05")
    assert printed["samples_complete"]
    assert isinstance(printed["flat"], bool)
    for name in ("resident_bytes", "push_p50_ms", "push_p99_ms"):
        assert isinstance(printed[f"{name}_slope_percent_an_hour"], float)
    assert len(printed["windows"]) == 6
    assert all(row["pushes"] > 0 for row in printed["windows"])


@pytest.mark.parametrize("name", ["ingest", "memory", "soak"])
def test_a_number_that_makes_no_sense_is_refused_with_a_sentence(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--runs", "0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "'0' is not a whole number of at least 1" in ran.stderr
