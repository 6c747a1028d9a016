"""A machine at fault gets no worker of verl's, in a real Ray of several nodes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trainer


def placed(which: str, folder: Path) -> tuple[dict[str, Any], str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VERL_SENTINEL_")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("two_nodes.py")), which],
        capture_output=True,
        text=True,
        env={**environ, "VERL_SENTINEL_STATE_DIR": str(folder)},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found, done.stderr


def test_no_worker_is_placed_on_an_excluded_node(tmp_path: Path) -> None:
    found, _ = placed("one", tmp_path)
    assert found["groups"] == ["b"] * 4, "Ray itself would have chosen a"
    assert "a" not in found["plain"]
    assert "a" not in found["soft"], "actors that verl spreads over all nodes go elsewhere"
    assert found["hard"] == ["a"], "what must be on that very node is there: a sampler of its GPUs, say"


def test_where_too_few_nodes_would_be_left_nothing_waits_for_ever(tmp_path: Path) -> None:
    found, said = placed("all", tmp_path)
    assert len(found["groups"]) == 4
    assert "no machine is left out: the machines that are left have too few GPUs or CPUs for the run" in said
