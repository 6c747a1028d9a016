"""Whether memory and latency stay flat: the exporter under many times real load, for long.

``python -m bench.soak [--minutes 30] [--runs 25] [--times 20] [--json]``. A run's real load is what our plugin sends
with its defaults: a heartbeat a second with the open phases and the rollout counts, the readings of eight GPUs every
five seconds, and a step of 100 metrics, here every 30 seconds. The runs of a cluster send that, each ``--times`` as
fast, so half an hour is ten hours of their lives; a scrape every five seconds stands for Prometheus. Before the clock
starts every run has logged more steps than are remembered, so that what grows afterwards has no business to.

Printed are, minute by minute, resident memory, the latency of a push (from the moment at which it was due), the time of
a scrape, CPU (also what other programs took, for a latency is theirs, too) and disk; then the least-squares slope of
memory, latency and CPU a push, in per cent an hour, and the medians of the first and the last third. The verdict is
theirs: memory and latency must not have grown.

Exit code 1 where memory or latency grew, or samples are missing at the end; 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.ingest import positive, seconds
from bench.load import LoadError, drive, pace
from bench.memory import besides
from bench.processes import busy_seconds, resident_bytes
from bench.receivers import Exporter, Samples
from demo.processes import StartError
from exporter.service.recent import RECENT_STEPS

METRICS = 100
BEAT_SECONDS = 1.0
GPU_BEATS = 5
STEP_BEATS = 30
SCRAPE_SECONDS = 5.0
FILL_PUSHES = 16
FILL_STEPS = FILL_PUSHES * (RECENT_STEPS // FILL_PUSHES + 4)
WINDOW_SECONDS = 60.0
SAMPLE_SECONDS = 1.0

MEMORY_GROWTH = 1.05
"""The last third may hold so many times the memory of the first and is still flat: a write-ahead log or a scrape more
or less is a few per cent, a leak of one object a push is more after half an hour."""
LATENCY_GROWTH = 1.5
LATENCY_SLACK_MS = 2.0
"""The same for latency, with a difference that another program on the machine makes at any time."""


@dataclass
class Window:
    """One minute (or less, in a short soak)."""

    latencies: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    scrapes: list[float] = field(default_factory=list)
    cpu: float = 0.0
    others: float = 0.0
    disk: int = 0

    def row(self, number: int, length: float) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        return {
            "minute": round((number + 1) * length / 60.0, 2),
            "pushes": len(ordered),
            "push_p50_ms": round(1e3 * ordered[len(ordered) // 2], 3),
            "push_p99_ms": round(1e3 * ordered[len(ordered) * 99 // 100], 3),
            "resident_bytes": round(statistics.median(self.resident)),
            "scrape_ms": round(1e3 * statistics.median(self.scrapes), 1) if self.scrapes else None,
            "cores": round(self.cpu / length, 3),
            "other_cores": round(self.others / length, 3),
            "cpu_ms_per_push": round(1e3 * self.cpu / len(ordered), 4),
            "disk_bytes": self.disk,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    options = _options(argv)
    length = min(WINDOW_SECONDS, 60.0 * options.minutes / 6)
    windows = [Window() for _ in range(max(6, int(60.0 * options.minutes / length + 1e-6)))]
    samples = Samples(options.runs, METRICS)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        exporter = Exporter(samples, Path(folder))
        try:
            exporter.start()
            steps = _soak(exporter, windows, length, options)
            complete = exporter.arrived() == steps * METRICS
        except (StartError, LoadError) as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            exporter.child.stop()
    result = _result([window.row(number, length) for number, window in enumerate(windows)], complete, options)
    print(json.dumps(result) if options.json else _sentences(result))
    return 0 if result["targets_met"] else 1


def _soak(exporter: Exporter, windows: Sequence[Window], length: float, options: argparse.Namespace) -> int:
    """Fill, then load; how many steps were pushed and answered."""
    address = ("127.0.0.1", exporter.port)
    drive(address, [_fill(exporter, run) for run in range(options.runs)])
    paced = [0]
    sources = [_pushes(exporter, run, paced) for run in range(options.runs)]
    interval = BEAT_SECONDS / options.times
    schedules = [_times(interval * run / options.runs, interval) for run in range(options.runs)]
    watch = _Watch(exporter, windows, length)
    watch.start()
    try:
        pace(
            address,
            sources,
            schedules,
            length * len(windows),
            lambda at, took: windows[min(int(at / length), len(windows) - 1)].latencies.append(took),
        )
    finally:
        watch.stop()
    return int(options.runs) * FILL_STEPS + paced[0]


def _fill(exporter: Exporter, run: int) -> Callable[[], bytes | None]:
    """All that a run has, and more steps than are remembered."""
    pushes = iter(
        [
            exporter.push(run, 0, **besides(run)),
            *(exporter.push(run, FILL_STEPS // FILL_PUSHES) for _ in range(FILL_PUSHES)),
        ]
    )
    return lambda: next(pushes, None)


def _times(first: float, interval: float) -> Iterator[float]:
    return (first + interval * number for number in count())


def _pushes(exporter: Exporter, run: int, steps: list[int]) -> Callable[[], bytes]:
    """What a run sends, one heartbeat after the other. ``steps`` counts those that were sent."""
    numbers = count(run)
    gpus = besides(run)["gpus"]

    def make() -> bytes:
        number = next(numbers)
        into = number % STEP_BEATS
        phase = {"step": number // STEP_BEATS + FILL_STEPS, "open": [{"name": "step", "seconds": float(into)}]}
        rollout = {"succeeded": 512 + 16 * number, "in_flight": 64}
        more: dict[str, Any] = {"phase": phase, "rollout": rollout}
        if number % GPU_BEATS == 0:
            more["gpus"] = gpus
        if into:
            return exporter.push(run, 0, **more)
        steps[0] += 1
        phase["closed"] = [{"name": "gen", "seconds": 17.5}, {"name": "step", "seconds": 31.0}]
        return exporter.push(run, 1, **more)

    return make


class _Watch(threading.Thread):
    """Scrapes, and notes memory, CPU and disk, beside the load."""

    def __init__(self, exporter: Exporter, windows: Sequence[Window], length: float) -> None:
        super().__init__(name="watch", daemon=True)
        self._exporter = exporter
        self._windows = windows
        self._length = length
        self._ended = threading.Event()

    def run(self) -> None:
        began = time.perf_counter()
        next_scrape = 0.0
        used, all_used = self._exporter.cpu(), busy_seconds()
        pid = self._exporter.child.pid
        assert pid is not None
        while not self._ended.wait(SAMPLE_SECONDS / (1 if self._length > 10 else 10)):
            now = time.perf_counter() - began
            window = self._windows[min(int(now / self._length), len(self._windows) - 1)]
            try:
                if now >= next_scrape:
                    next_scrape = now + min(SCRAPE_SECONDS, self._length / 3)
                    scrape_began = time.perf_counter()
                    self._exporter.scrape()
                    window.scrapes.append(time.perf_counter() - scrape_began)
                window.resident.append(resident_bytes(pid))
                cpu, busy = self._exporter.cpu(), busy_seconds()
            except OSError:
                # It has ended: the load says so.
                return
            window.cpu += cpu - used
            window.others += max(0.0, busy - all_used - (cpu - used))
            used, all_used = cpu, busy
            window.disk = sum(path.stat().st_size for path in self._exporter.data.iterdir() if path.is_file())

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _result(rows: list[dict[str, Any]], complete: bool, options: argparse.Namespace) -> dict[str, Any]:
    third = max(1, len(rows) // 3)

    def ends(name: str) -> tuple[float, float]:
        values = [row[name] for row in rows]
        return statistics.median(values[:third]), statistics.median(values[-third:])

    figures: dict[str, Any] = {}
    flat = True
    for name in ("resident_bytes", "push_p50_ms", "push_p99_ms", "cpu_ms_per_push"):
        first, last = ends(name)
        figures[f"{name}_first_third"], figures[f"{name}_last_third"] = first, last
        figures[f"{name}_slope_percent_an_hour"] = round(_slope(rows, name), 2)
        if name == "resident_bytes":
            flat = flat and last <= MEMORY_GROWTH * first
        elif name.endswith("_ms"):
            flat = flat and last <= LATENCY_GROWTH * first + LATENCY_SLACK_MS
    return {
        "benchmark": "soak",
        "minutes": options.minutes,
        "runs": options.runs,
        "times_real_load": options.times,
        "pushes_per_second": round(sum(row["pushes"] for row in rows) / (60.0 * options.minutes), 1),
        **figures,
        "flat": flat,
        "samples_complete": complete,
        "targets_met": flat and complete,
        "windows": rows,
    }


def _slope(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Least-squares slope, in per cent of the mean an hour."""
    hours = [row["minute"] / 60.0 for row in rows]
    values = [float(row[name]) for row in rows]
    slope: float = statistics.linear_regression(hours, values).slope
    return 100.0 * slope / statistics.fmean(values)


def _sentences(result: dict[str, Any]) -> str:
    lines = [
        f"{result['runs']} runs at {result['times_real_load']} times real load for {result['minutes']} minutes: "
        f"{result['pushes_per_second']} pushes a second.",
        f"  {'minute':>6} {'MB':>7} {'p50 ms':>7} {'p99 ms':>7} {'scrape ms':>9} {'cores':>6} {'others':>6} "
        f"{'disk MB':>8}",
        *(
            f"  {row['minute']:>6} {row['resident_bytes'] / 1e6:>7.1f} {row['push_p50_ms']:>7.2f} "
            f"{row['push_p99_ms']:>7.2f} {row['scrape_ms'] or 0:>9.1f} {row['cores']:>6.2f} {row['other_cores']:>6.2f} "
            f"{row['disk_bytes'] / 1e6:>8.1f}"
            for row in result["windows"]
        ),
    ]
    for name, what in (
        ("resident_bytes", "memory"),
        ("push_p50_ms", "median latency"),
        ("push_p99_ms", "p99 latency"),
        ("cpu_ms_per_push", "CPU a push"),
    ):
        first, last = result[f"{name}_first_third"], result[f"{name}_last_third"]
        lines.append(
            f"  {what}: slope {result[f'{name}_slope_percent_an_hour']:+.1f} % an hour; "
            f"last third over first third {last / first:.3f}"
        )
    lines.append("Flat." if result["flat"] else "Not flat.")
    if not result["samples_complete"]:
        lines.append("Samples that were acknowledged are missing in the exporter.")
    return "\n".join(lines)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=seconds, default=30.0, metavar="M", help="how long (default: 30)")
    parser.add_argument("--runs", type=positive, default=25, metavar="N", help="runs of the cluster (default: 25)")
    parser.add_argument("--times", type=positive, default=20, metavar="N", help="times real load (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
