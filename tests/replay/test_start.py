"""Replay starts without what it does not need: that a start is short is measured by ``python -m bench.replay``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import past_files as files

HEAVY = ("numpy", "matplotlib", "typer", "pydantic", "ssl", "http.client", "yaml", "litestar", "asyncio")


def loaded(*arguments: str | Path) -> set[str]:
    """Which of the heavy modules a replay has loaded at its end."""
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('LOADED', *(m for m in {HEAVY} if m in sys.modules), file=sys.stderr))\n"
        "from exporter.__main__ import verl_sentinel\n"
        "verl_sentinel()\n"
    )
    command = [sys.executable, "-c", code, "replay", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.partition("LOADED")[2].split())


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run", files.jsonl(files.growing_gradient()))
    assert loaded(run, "--output", "json", "--max-steps", "100", "--preset", "grpo") == set()


def test_a_file_of_settings_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run", files.jsonl(files.healthy()))
    settings = files.written(tmp_path / "exporter.yml", b"detection: {preset: grpo}\n")
    assert "yaml" in loaded(run, "--config", settings)
    assert not {"typer", "pydantic", "numpy"} & loaded(run, "--config", settings)


def test_the_list_of_commands_names_it_and_its_help_is_its_own() -> None:
    program = [*files.PROGRAM]
    listed = subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "Say of past runs" in listed
    for command in (["replay", "--help"], ["replay", "-h"]):
        text = subprocess.run([*program, *command], capture_output=True, text=True, timeout=60, check=True).stdout
        assert {"--plot", "--policy", "--preset", "--gpu-memory-gb", "--max-steps", "--fail-on"} <= set(text.split())


def test_the_module_and_the_program_are_the_same(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run", files.jsonl(files.growing_gradient()))
    answers = [
        subprocess.run([*command, "replay", str(run), "--output", "json"], capture_output=True, timeout=60, check=True)
        for command in (files.PROGRAM, (sys.executable, "-m", "exporter"))
    ]
    assert answers[0].stdout == answers[1].stdout != b""


def test_options_may_stand_between_the_files(tmp_path: Path) -> None:
    one, two = (files.written(tmp_path / name, files.jsonl(files.healthy())) for name in ("one", "two"))
    command = [*files.PROGRAM, "replay", str(one), "--output", "json", str(two)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("60 steps (1 to 60)") == 2
