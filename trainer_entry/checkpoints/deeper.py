"""Verification beyond hashes: start the process that loads a checkpoint, or makes a forward step with it, and judge it.

Called by verify for the depths ``load`` and ``forward``. The process (:mod:`.loading`) has bounded time and memory and
low priority, and is the first that the kernel ends when memory runs out: none of that can hurt whoever asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec

from trainer_entry.checkpoints.depths import Depth
from trainer_entry.checkpoints.manifest import Manifest
from trainer_entry.checkpoints.problems import Code, Problem

LEAST_SECONDS = 300.0
SLOWEST_BYTES_PER_SECOND = 25e6
"""Beyond the least, so slow may a disk be that is read while training goes on."""

BASE_BYTES = 6 << 30
"""Of address space that torch and transformers take for themselves."""

_MAX_MESSAGE = 600


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is asked; on its standard input as JSON. ``data_limit_bytes`` bounds its writable memory."""

    directory: str
    files: list[str]
    world_sizes: dict[str, int]
    forward: bool
    data_limit_bytes: int
    urgent: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, as the process says it."""

    code: str
    sentence: str
    path: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The process's answer, on its standard output as JSON."""

    problems: list[Found]
    torch_version: str


def verify_deeper(
    path: Path, manifest: Manifest, depth: Depth, seconds_allowed: float | None = None, *, urgent: bool = False
) -> tuple[tuple[Problem, ...], str]:
    """Problems, and the version of torch that found none. Raises OSError where no process can be started."""
    sizes = {entry.path: entry.size for entry in manifest.files}
    tensors = sorted(name for name in sizes if name.endswith(".pt"))
    total = sum(sizes[name] for name in tensors)
    shards = sum(size for name, size in sizes.items() if os.path.basename(name).startswith("model_world_size_"))
    request = Request(
        directory=os.fspath(path),
        files=tensors,
        world_sizes=manifest.world_sizes,
        forward=depth == "forward",
        # Files are mapped privately, so they count though they take no memory.
        urgent=urgent,
        data_limit_bytes=BASE_BYTES + total + (3 * shards if depth == "forward" else 0),
    )
    allowed = seconds_allowed or LEAST_SECONDS + total / SLOWEST_BYTES_PER_SECOND
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trainer_entry.checkpoints.loading", str(os.getpid())],
            input=msgspec.json.encode(request),
            capture_output=True,
            env=_environment(),
            timeout=allowed,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (Problem("not_tried", f"It was not read to its end within {allowed:.0f} s."),), ""
    return _judged(done, manifest)


def _judged(done: subprocess.CompletedProcess[bytes], manifest: Manifest) -> tuple[tuple[Problem, ...], str]:
    try:
        report = msgspec.json.decode(done.stdout.splitlines()[-1] if done.stdout else b"", type=Report)
    except msgspec.DecodeError:
        return (Problem("not_tried", _how_it_ended(done)),), ""
    known = get_args(Code)
    problems = tuple(
        Problem(found.code if found.code in known else "not_loadable", found.sentence[:_MAX_MESSAGE], found.path)  # type: ignore[arg-type]
        for found in report.problems
    )
    return problems, report.torch_version


def _how_it_ended(done: subprocess.CompletedProcess[bytes]) -> str:
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    if done.returncode < 0:
        return (
            f"The process that loads it was ended by signal {-done.returncode}, as it is when memory runs out; try "
            "again on a machine with more."
        )
    return f"The process that loads it ended with code {done.returncode}: {said[0][:300] if said else 'no word'}."


def _environment() -> dict[str, str]:
    """Without a GPU, a network or our own plugin; with the path to the modules that this process has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VERL_SENTINEL_")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
    }
