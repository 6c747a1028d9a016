"""How soon ``verl-sentinel replay`` starts, and how many steps a second it replays.

``python -m bench.replay [--steps N] [--rounds N] [--json]`` runs the command as a user does, as a process of its own on
one core: over a log of three steps (the start), and over one of 5,000 steps with the hundred keys that verl logs,
plain and packed, with all detectors. Beside the start: ``python -c pass`` and ``python -c "import numpy"``. Beside the
replay: the same file read without being judged, and Python's ``json.loads`` of each line.

Of the rounds the fastest counts, for whatever else runs on the machine only ever makes one slower; the median, and the
least CPU time of a round, which others add little to, are shown too. Compiled modules are cached, as they are where a
package is installed.

Exit code 1 where the start takes 0.3 s or more, or fewer than 2,000 steps a second are replayed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import verl_step

START_SECONDS = 0.3
STEPS_A_SECOND = 2000.0
METRICS = 100
PROGRAM = ("-c", "from exporter.__main__ import verl_sentinel; verl_sentinel()", "replay")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.steps < 10 or asked.rounds < 1:
        parser.error("at least 10 steps and 1 round are needed")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # processes that are started have the same core
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder), asked.steps, asked.rounds)
    print(json.dumps(figures, indent=2) if asked.json else shown(figures))
    return 0 if figures["met"] else 1


def measured(folder: Path, steps: int, rounds: int) -> dict[str, Any]:
    """All figures; times in seconds."""
    from exporter.detectors.registry import build_detectors

    few, many, packed = folder / "few.jsonl", folder / "many.jsonl", folder / "many.jsonl.gz"
    few.write_bytes(log(3))
    many.write_bytes(log(steps))
    packed.write_bytes(gzip.compress(many.read_bytes(), 6))
    start = process([*PROGRAM, str(few)], folder, rounds)
    figures: dict[str, Any] = {
        "start": start,
        "python": process(["-c", "pass"], folder, rounds),
        "python_numpy": process(["-c", "import numpy"], folder, rounds),
    }
    for name in ("python", "python_numpy"):
        figures[f"start_over_{name}"] = start["best"] / figures[name]["best"]
    few_rounds = max(1, rounds // 3)
    for name, file in (("replay", many), ("replay_packed", packed)):
        took = process([*PROGRAM, str(file), "--output", "json"], folder, few_rounds)
        figures[name] = took
        figures[f"{name}_steps_a_second"] = steps / took["best"]
        figures[f"{name}_steps_a_cpu_second"] = steps / took["cpu"]
    for name, read in (("reading", _read), ("json_loads", _loads)):
        figures[name] = timed(lambda read=read: read(many), few_rounds)  # type: ignore[misc]
        figures[f"{name}_steps_a_second"] = steps / figures[name]["best"]
    rate = figures["replay_steps_a_second"]
    return {
        "steps": steps,
        "metrics_a_step": METRICS,
        "detectors": len(build_detectors().step),
        **figures,
        "targets": {"start_seconds": START_SECONDS, "steps_a_second": STEPS_A_SECOND},
        "met": start["best"] < START_SECONDS and rate >= STEPS_A_SECOND,
    }


def log(steps: int) -> bytes:
    """A log of verl's ``file`` logger."""
    metrics = verl_step.steps(METRICS, random.Random(7))
    lines = (json.dumps({"step": step, "data": dict(next(metrics))}) for step in range(1, steps + 1))
    return ("\n".join(lines) + "\n").encode()


def process(arguments: Sequence[str], folder: Path, rounds: int) -> dict[str, float]:
    """Seconds that a run of Python with these arguments takes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")

    def run() -> None:
        subprocess.run(
            [sys.executable, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            check=True,
        )

    run()  # compiles
    return timed(run, rounds)


def timed(call: Callable[[], object], rounds: int) -> dict[str, float]:
    """Seconds of the fastest of some rounds, their median, and the least CPU time, ended children included."""
    took, busy = [], []
    for _ in range(rounds):
        began, worked = time.perf_counter(), _cpu_seconds()
        call()
        took.append(time.perf_counter() - began)
        busy.append(_cpu_seconds() - worked)
    return {"best": min(took), "median": statistics.median(took), "cpu": min(busy)}


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _read(file: Path) -> int:
    from exporter.replay.recognised import READERS

    return sum(1 for _ in READERS["jsonl"](file))


def _loads(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if json.loads(line))


def shown(figures: dict[str, Any]) -> str:
    """For a person."""

    def times(name: str) -> str:
        took = figures[name]
        return f"{took['best']:7.3f} s   (median {took['median']:6.3f} s, CPU {took['cpu']:6.3f} s)"

    def rate(name: str) -> str:
        return f"{times(name)}   {figures[f'{name}_steps_a_second']:10,.0f} steps a second"

    def beside(name: str) -> str:
        return f"{times(name)}   that is {figures[f'start_over_{name}']:.1f} times as long"

    return "\n".join(
        (
            f"Start, over a log of 3 steps                   {times('start')}   target: below {START_SECONDS:g} s",
            f"  beside python -c pass                        {beside('python')}",
            f"  beside python -c 'import numpy'              {beside('python_numpy')}",
            f"Replay of {figures['steps']:,} steps of {figures['metrics_a_step']} metrics, "
            f"{figures['detectors']} detectors, start included",
            f"  plain                                        {rate('replay')}   target: {STEPS_A_SECOND:,.0f}",
            f"  packed                                       {rate('replay_packed')}",
            f"  the plain file only read                     {rate('reading')}",
            f"  json.loads of its lines                      {rate('json_loads')}",
            "Targets met." if figures["met"] else "Targets missed.",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
