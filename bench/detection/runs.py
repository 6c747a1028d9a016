"""The runs that detection is measured on: real ones where they are there, and the split by run.

Called by the benchmark, and by the tests of the detectors, which use the same split. Real logs of verl are no part of
the repository; ``VERL_SENTINEL_DATA`` names the folder that holds ``verl-runs``.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from exporter.detectors.setup import UNKNOWN, RunSetup
from exporter.signals import GIB

Metrics = dict[str, float]
Step = tuple[int, Metrics]
"""Number of the step, and what verl logged for it, under verl's keys."""

Split = Literal["tuned", "held_out", "generated"]

DATA: Final = Path(os.environ.get("VERL_SENTINEL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "verl-runs"

TUNED: Final = (
    "babyai-dapo-dapo",
    "babyai-grpo-grpo_base",
    "babyai-prefix_grpo-prefix_grpo",
    "babyai-prefix_grpo_fixedgp1-prefix_grpo",
    "babyai-replay_grpo-replay_grpo",
    "babyai-sft-dapo-sft_drpo",
)
"""Thresholds may be chosen on these."""
HELD_OUT: Final = (
    "babyai-grpo-mis-grpo_mis",
    "babyai-prefix_grpo-prefix_grpo_new",
    "babyai-prefix_grpo_fixedgp2-prefix_grpo",
    "babyai-prefix_grpo_raw-prefix_grpo",
    "babyai-sft-grpo-sft_grpo",
    "babyai-sft_grpo_mis-sft_grpo_mis",
)
"""The figures that count come from these."""

ROOM: Final = 1.15
"""Memory of the machine, where the log does not tell it, over the most that the run ever took."""
HOST_SIZES: Final = (256, 512, 1024, 2048, 8192)
"""GiB."""


@dataclass(frozen=True)
class HealthyRun:
    """One run of which nothing bad is known."""

    name: str
    split: Split
    steps: list[Step]
    setup: RunSetup = UNKNOWN
    """What a live run, or the options of replay, would have told of it."""


def available() -> bool:
    """Whether the real runs are on this machine."""
    return all((DATA / f"{name}.jsonl.gz").is_file() for name in TUNED + HELD_OUT)


def real_runs(most_steps: int | None = None, each: int | None = None) -> list[HealthyRun]:
    """All real runs, or ``each`` of both splits, and their first ``most_steps``; none where they are not there."""
    if not available():
        return []
    named: list[tuple[str, Split]] = [(name, "tuned") for name in TUNED[:each]]
    named += [(name, "held_out") for name in HELD_OUT[:each]]
    return [_real(name, split, most_steps) for name, split in named]


def read_steps(path: Path) -> Iterator[Step]:
    """Steps of a log of verl's ``file`` logger, packed by gzip. It writes NaN as null."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["step"], {key: math.nan if value is None else float(value) for key, value in row["data"].items()}


def _real(name: str, split: Split, most_steps: int | None) -> HealthyRun:
    steps = list(read_steps(DATA / f"{name}.jsonl.gz"))[:most_steps]
    host = max(metrics.get("perf/cpu_memory_used_gb", 0.0) for _, metrics in steps)
    # The log names neither the machine nor the configuration. Given is what an option of replay could give.
    setup = RunSetup(
        total_steps=steps[-1][0],
        gpu_memory_bytes=_gpu_memory(steps),
        host_memory_bytes=min(size for size in HOST_SIZES if size > 1.25 * host) * GIB,
    )
    return HealthyRun(name, split, steps, setup)


def _gpu_memory(steps: list[Step]) -> float:
    most = max(metrics.get("perf/max_memory_reserved_gb", 0.0) for _, metrics in steps)
    return math.ceil(most * ROOM) * GIB
