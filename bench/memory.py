"""How much memory the exporter holds for a run.

``python -m bench.memory [--runs 1000] [--metrics 60] [--steps 300] [--json]`` starts one exporter with its default
configuration, notes its resident memory, pushes the steps of all runs (every signal there is among the metrics, and
more steps than any window or ring remembers), and with them what a run has besides: its configuration, an open phase,
rollout counters, eight GPUs; and it is scraped. What the memory has grown by, divided by the runs, is the figure.

Exit code 1 where the target is missed or samples are missing at the end, 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.ingest import positive
from bench.load import LoadError, Source, drive
from bench.processes import resident_bytes
from bench.receivers import Exporter, Samples
from demo.client import get_json
from demo.processes import StartError
from exporter.service.recent import RECENT_STEPS

TARGET_BYTES = 300_000.0
CONNECTIONS = 50
STEPS_A_PUSH = 50
GPUS = 8
SETTINGS = 400
"""Entries of verl's resolved configuration, about."""
CALM_SECONDS = 3.0
"""Memory that has not grown for so long will not grow any more: what works in the background is done."""
GIVE_UP_SECONDS = 60.0
SCRAPES = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    options = _options(argv)
    samples = Samples(options.runs, options.metrics, every_signal=True)
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        exporter = Exporter(samples, Path(folder))
        try:
            exporter.start()
            before = _settled(exporter)
            sources = [_source(exporter, runs, options.steps) for runs in _shares(options.runs)]
            served = drive(("127.0.0.1", exporter.port), sources)
            # Prometheus scrapes while it runs, so what a scrape leaves behind counts.
            scraped = len([exporter.scrape() for _ in range(SCRAPES)][-1])
            after = _settled(exporter)
            arrived, signals = exporter.arrived(), _signals(exporter)
        except (StartError, LoadError) as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            exporter.child.stop()
    per_run = (after - before) / options.runs
    complete = arrived == options.runs * options.steps * options.metrics
    result: dict[str, Any] = {
        "benchmark": "memory",
        "runs": options.runs,
        "metrics_per_step": options.metrics,
        "signals_per_run": signals,
        "steps_per_run": options.steps,
        "seconds": round(served.seconds, 1),
        "resident_bytes_before": before,
        "resident_bytes_after": after,
        "resident_bytes_per_run": round(per_run),
        "scrape_bytes": scraped,
        "samples_complete": complete,
        "target_bytes_per_run": round(TARGET_BYTES),
        "targets_met": complete and per_run <= TARGET_BYTES,
    }
    print(json.dumps(result) if options.json else _sentences(result))
    return 0 if result["targets_met"] else 1


def _shares(runs: int) -> list[range]:
    return [range(first, runs, CONNECTIONS) for first in range(min(CONNECTIONS, runs))]


def _source(exporter: Exporter, runs: Sequence[int], steps: int) -> Source:
    """All pushes of some runs, one after the other."""

    def pushes() -> Iterator[bytes]:
        for run in runs:
            yield exporter.push(run, 0, **besides(run))
            for begin in range(0, steps, STEPS_A_PUSH):
                yield exporter.push(run, min(STEPS_A_PUSH, steps - begin))

    remaining = pushes()
    return lambda: next(remaining, None)


def besides(run: int) -> dict[str, Any]:
    """What a run has besides its metrics."""
    config = {f"actor_rollout_ref.section_{number // 20}.setting_{number}": number for number in range(SETTINGS)}
    return {
        "events": [
            {"type": "run_started", "time": 1.7e9, "config": config},
            {"type": "hooks_reported", "time": 1.7e9, "installed": ["steps", "phases", "rollout"], "missing": []},
            *(
                {"type": "checkpoint_saved", "time": 1.7e9, "step": step, "path": f"/c/{run}/{step}", "verified": True}
                for step in range(10, 110, 10)
            ),
        ],
        "phase": {"step": 1, "open": [{"name": "step", "seconds": 3.0}, {"name": "gen", "seconds": 2.0}]},
        "rollout": {"succeeded": 512, "failed": 1, "in_flight": 64},
        "gpus": [
            {
                "node": f"node-{run}",
                "index": index,
                "uuid": f"GPU-{run:08d}-0000-0000-0000-{index:012d}",
                "name": "NVIDIA H100 80GB HBM3",
                "memory_used_bytes": 70 * 1024**3 + index,
                "memory_total_bytes": 80 * 1024**3,
                "utilization_ratio": 0.93,
                "power_watts": 640.0,
                "temperature_celsius": 61.0,
            }
            for index in range(GPUS)
        ],
    }


def _settled(exporter: Exporter) -> int:
    """Resident memory once it has stopped growing."""
    assert exporter.child.pid is not None
    until = time.monotonic() + GIVE_UP_SECONDS
    highest, since = 0, time.monotonic()
    while time.monotonic() - since < CALM_SECONDS and time.monotonic() < until:
        now = resident_bytes(exporter.child.pid)
        if now > highest * 1.001:
            highest, since = now, time.monotonic()
        time.sleep(0.1)
    return resident_bytes(exporter.child.pid)


def _signals(exporter: Exporter) -> int:
    """Signals of the first run, as the API shows them; all of its remembered steps must have them."""
    detail = get_json(exporter.url(f"/api/v1/runs/{exporter.samples.runs[0]}")) or {}
    steps = detail.get("steps", [])
    if not steps:
        raise LoadError("The exporter shows no steps of a run that it has acknowledged.")
    return min(len(step["signals"]) for step in steps[-RECENT_STEPS:])


def _sentences(result: dict[str, Any]) -> str:
    return (
        f"{result['runs']} runs with {result['metrics_per_step']} metrics a step ({result['signals_per_run']} signals) "
        f"and {result['steps_per_run']} steps each, all detectors: resident memory grew from "
        f"{result['resident_bytes_before'] / 1e6:.0f} to {result['resident_bytes_after'] / 1e6:.0f} MB, "
        f"{result['resident_bytes_per_run'] / 1e3:.0f} KB a run (at most {TARGET_BYTES / 1e3:.0f} are wanted)."
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=positive, default=1000, metavar="N", help="active runs (default: 1000)")
    parser.add_argument("--metrics", type=positive, default=60, metavar="N", help="metrics of a step (default: 60)")
    parser.add_argument("--steps", type=positive, default=300, metavar="N", help="steps of a run (default: 300)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
