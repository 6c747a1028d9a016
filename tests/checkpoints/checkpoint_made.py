"""Checkpoints as verl leaves them, for tests: bytes in the right places, or a real small model saved by torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

KINDS = ("model", "optim", "extra_state")


def ppo(root: Path, step: int, *, ranks: int = 2, critic: bool = False, seed: str = "a") -> Path:
    """As verl's PPO trainers leave it."""
    directory = root / f"global_step_{step}"
    for component in ("actor", "critic") if critic else ("actor",):
        folder = directory / component
        (folder / "huggingface").mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            for rank in range(ranks):
                (folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(f"{seed}{step}".encode() * 500)
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
        (folder / "huggingface" / "config.json").write_text("{}")
    (directory / "data.pt").write_bytes(b"position")
    return directory


def sft(root: Path, step: int, *, ranks: int = 1, data_ranks: int = 1) -> Path:
    """As verl's SFT trainer leaves it."""
    directory = root / f"global_step_{step}"
    directory.mkdir(parents=True)
    for kind in KINDS:
        for rank in range(ranks):
            (directory / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"w" * 700)
    (directory / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    for rank in range(data_ranks):
        (directory / f"data_{rank}.pt").write_bytes(b"position")
    return directory


def long_ago(directory: Path, seconds: float = 3600.0) -> Path:
    """Make it look untouched for a while, so that it is not taken for one that is being written."""
    then = directory.stat().st_mtime - seconds
    for base, _, names in os.walk(directory):
        for path in (base, *(os.path.join(base, name) for name in names)):
            os.utime(path, (then, then), follow_symlinks=False)
    return directory


def trained(folder: Path, *, ranks: int = 1) -> Path:
    """A tiny real model and its optimizer, sharded by FSDP2 over ``ranks`` and saved as verl saves; one process a rank.

    Returns ``folder/global_step_7`` in the layout of SFT.
    """
    directory = folder / "global_step_7"
    directory.mkdir(parents=True)
    rendezvous = folder / "rendezvous"
    script = str(Path(__file__).with_name("save_shards.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(directory), str(rank), str(ranks), f"file://{rendezvous}"],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode("utf-8", "replace")[-2000:]
    return directory
