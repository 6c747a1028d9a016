"""What a scrape costs: ``/metrics`` with 20,000 series, beside ``generate_latest`` of prometheus-client for the same.

``python -m bench.scrape [--series N] [--rounds N] [--json]`` fills a core with runs of eight GPUs that log what verl
logs until it shows that many series. In each round every run logs a step, so that every value is new; then our page and
theirs are made in turn, both as classic text. Theirs is made from metric objects that hold the samples already: what
prometheus-client needs to collect them is not counted against it, while ours reads the state of the runs. That both
pages hold the same samples is checked in every round, with prometheus-client's parser.

Beside it: the same with gzip (ours at its level, theirs as its own handler does it), OpenMetrics, and a scrape of 1,000
runs with the longest time for which it keeps others on the event loop waiting.

Exit code 1 where ours takes more than half of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from bench import verl_step
from exporter.detectors.registry import build_detectors
from exporter.incidents import Rules
from exporter.protocol import (
    PROTOCOL_VERSION,
    Batch,
    CheckpointSaved,
    ClosedPhase,
    GpuReading,
    HooksReported,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    Run,
    RunStarted,
    Sender,
    Step,
)
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.store import RecoveryStore
from exporter.service.admission import Limits
from exporter.service.core import Core
from exporter.service.exposition import Exposition, Ingest
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.recorder import DirectRecorder

TARGET = 0.5
METRICS = 100
GPUS = 8
PHASES = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")
WARM_UP_STEPS = 40
"""Until the detectors say what they expect, and past the first steps of each run."""
MANY_RUNS = 1000
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
START = 1_700_000_000.0


class Fleet:
    """Runs that log steps into a core, one step at a call."""

    def __init__(self, folder: Path) -> None:
        journal = Journal(folder / FILE_NAME)
        engine = RecoveryEngine(RecoveryStore(folder / "recovery.sqlite3"), RecoveryPolicy())
        self.core = Core(
            DirectRecorder(journal),
            engine,
            build_detectors,
            read_snapshot=lambda run_id: None,
            limits=Limits(runs=100_000),
            rules=Rules(),
            ended_grace=900.0,
        )
        self.now = START
        self.exposition = Exposition(self.core, Ingest(), lambda: self.now, "bench", lambda: True)
        self._metrics = verl_step.steps(METRICS, random.Random(1))
        self._steps: dict[str, int] = {}

    def add(self, count: int = 1) -> None:
        """More runs, with their warm-up."""
        fresh = [f"grpo-qwen2.5-7b/seed-{len(self._steps) + number}" for number in range(count)]
        self._steps.update(dict.fromkeys(fresh, 0))
        for run_id in fresh:
            self._hooks(run_id)
            for _ in range(WARM_UP_STEPS):
                self._log(run_id)

    def step(self) -> None:
        """Every run logs a step."""
        self.now += 30.0
        for run_id in self._steps:
            self._log(run_id)

    def series(self) -> int:
        """Samples on the page now."""
        return len(self._samples())

    def of_what(self) -> dict[str, int]:
        """Series of one run: of each GPU, of each phase that has ended, and of the run itself."""
        run_id = next(iter(self._steps))
        names = [line.partition(b"{")[0] for line in self._samples() if f'run="{run_id}"'.encode() in line]
        gpus = sum(name.startswith(b"verl_gpu_") for name in names)
        ended = sum(name.startswith(b"verl_phase_duration_seconds_") for name in names)
        phases = sum(name.startswith(b"verl_phase_") for name in names)
        return {
            "run": len(names) - gpus - phases,
            "gpu": gpus // GPUS,
            "phase": ended // names.count(b"verl_phase_duration_seconds_count"),
        }

    def _samples(self) -> list[bytes]:
        return [line for line in self.exposition.render().body.splitlines() if not line.startswith(b"#")]

    def _log(self, run_id: str) -> None:
        step = self._steps[run_id] = self._steps[run_id] + 1
        self._push(
            run_id,
            "trainer",
            step,
            steps=[Step(step=step, metrics=dict(next(self._metrics)))],
            phase=PhaseReport(
                step=step + 1,
                open=[OpenPhase(name="step", seconds=7.5), OpenPhase(name="gen", seconds=7.25)],
                closed=[ClosedPhase(name=name, seconds=2.0 + number) for number, name in enumerate(PHASES)],
            ),
            gpus=[_reading(index, step) for index in range(GPUS)],
        )
        self._push(run_id, "worker", step, rollout=RolloutCounts(succeeded=512 * step, failed=step // 9, in_flight=64))

    def _hooks(self, run_id: str) -> None:
        hooks = HooksReported(time=START, installed=["step_metrics", "phases"])
        configured = RunStarted(time=START, config={"trainer.total_training_steps": 10_000})
        saved = CheckpointSaved(
            time=START, step=1, path="/ckpt/global_step_1", verified=True, bytes=43_000_000_000, save_seconds=21.5
        )
        self._push(run_id, "plugin", 1, events=[configured, hooks, saved])

    def _push(self, run_id: str, sender: str, seq: int, **parts: Any) -> None:
        batch = Batch(
            protocol=PROTOCOL_VERSION,
            run=Run(run_id=run_id, project="bench", experiment=run_id, trainer="ppo_v1", verl_version="0.9.1"),
            sender=Sender(id=f"{run_id}:{sender}", role="worker" if sender == "worker" else "trainer"),
            seq=seq,
            **parts,
        )
        self.core.accept(batch, self.now)


def _reading(index: int, step: int) -> GpuReading:
    return GpuReading(
        node="gpu-node-17",
        index=index,
        uuid=f"GPU-5e0b7c1d-6f3a-4d7e-9c55-00000000000{index}",
        memory_used_bytes=65_011_712_000 + 1_048_576 * step,
        memory_total_bytes=85_899_345_920,
        utilization_ratio=0.5 + (step * 7 + index) % 50 / 100.0,
        power_watts=650.0 + (step * 13 + index) % 77 / 3.0,
        temperature_celsius=60.0 + step % 7,
        xid_errors=0,
        last_xid=0,
    )


class Prepared:
    """A collector whose metrics are there already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


@dataclass(frozen=True)
class Kind:
    """One way to ask for the page: our headers, prometheus-client's way to make the same, and how it is read back."""

    accept: str
    accept_encoding: str
    theirs: Callable[[CollectorRegistry], bytes]
    parse: Callable[[str], Iterable[Metric]]


KINDS: Mapping[str, Kind] = {
    "text": Kind("", "", generate_latest, text_string_to_metric_families),
    "gzip": Kind("", "gzip", lambda r: gzip.compress(generate_latest(r)), text_string_to_metric_families),
    "openmetrics": Kind(OPENMETRICS, "", generate_openmetrics, parse_openmetrics),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.scrape", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--series", type=int, default=20_000, metavar="N", help="series on the page")
    parser.add_argument("--rounds", type=int, default=11, metavar="N", help="pages of each kind; their median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.series < 1000 or options.rounds < 1:
        parser.error("expected at least 1000 series and one round")
    with tempfile.TemporaryDirectory(prefix="verl-sentinel-bench-") as folder:
        result = run(Path(folder), options.series, options.rounds)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0 if result["target_met"] else 1


def run(folder: Path, series: int, rounds: int) -> dict[str, Any]:
    """Measure; times in milliseconds of the processor, so that what else runs on the machine counts for nothing."""
    fleet = Fleet(folder)
    fleet.add(1)
    before = fleet.series()
    fleet.add(1)
    of_a_run = fleet.series() - before
    fleet.add(max(0, -((fleet.series() - series) // of_a_run)))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in KINDS}
    sizes: dict[str, tuple[int, int]] = {}
    for _ in range(rounds):
        for name, kind in KINDS.items():
            fleet.step()
            sizes[name] = _compare(fleet, kind, times[name])
    result: dict[str, Any] = {
        "series": fleet.series(),
        "runs": len(fleet.core.runs),
        "series_a_run": of_a_run,
        "series_of": fleet.of_what(),
        "rounds": rounds,
    }
    for name, found in times.items():
        ours, theirs = (statistics.median(column) * 1000.0 for column in zip(*found, strict=True))
        ending = "" if name == "text" else f"_{name}"
        result[f"ours_ms{ending}"] = round(ours, 2)
        result[f"generate_latest_ms{ending}"] = round(theirs, 2)
        result[f"ratio_to_generate_latest{ending}"] = round(ours / theirs, 4)
        result[f"bytes{ending}"], result[f"generate_latest_bytes{ending}"] = sizes[name]
    fleet.add(max(0, MANY_RUNS - len(fleet.core.runs)))
    result["many_runs"] = _many_runs(fleet, rounds)
    result["target_met"] = result["ratio_to_generate_latest"] <= TARGET
    return result


def _compare(fleet: Fleet, kind: Kind, times: list[tuple[float, float]]) -> tuple[int, int]:
    """Make both pages, and check that they hold the same; their sizes in bytes."""
    ours_seconds, ours = _timed(lambda: fleet.exposition.render(kind.accept, kind.accept_encoding).body)
    samples, metrics = _read(kind, ours)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Prepared(metrics))
    theirs_seconds, theirs = _timed(lambda: kind.theirs(registry))
    if samples != _read(kind, theirs)[0]:
        sys.exit("The two pages do not hold the same samples.")
    times.append((ours_seconds, theirs_seconds))
    return len(ours), len(theirs)


def _read(kind: Kind, page: bytes) -> tuple[set[tuple[Any, ...]], list[Metric]]:
    text = (gzip.decompress(page) if kind.accept_encoding else page).decode()
    metrics = list(kind.parse(text))
    return {(s.name, tuple(sorted(s.labels.items())), s.value) for m in metrics for s in m.samples}, metrics


def _timed(make: Callable[[], bytes]) -> tuple[float, bytes]:
    gc.collect()
    began = time.thread_time()
    page = make()
    return time.thread_time() - began, page


def _many_runs(fleet: Fleet, rounds: int) -> dict[str, Any]:
    """Scrapes on an event loop: how long one takes, and how long it keeps the others waiting at a time."""

    async def one(accept_encoding: str) -> tuple[float, float]:
        waits: list[float] = []

        async def other() -> None:
            while True:
                began = time.perf_counter()
                await asyncio.sleep(0)
                waits.append(time.perf_counter() - began)

        watching = asyncio.create_task(other())
        await asyncio.sleep(0)
        began = time.perf_counter()
        await fleet.exposition.scrape("", accept_encoding)
        seconds = time.perf_counter() - began
        await asyncio.sleep(0)
        watching.cancel()
        return seconds, max(waits)

    found = []
    for _ in range(rounds):
        fleet.step()
        gc.collect()
        found.append((*asyncio.run(one("")), *asyncio.run(one("gzip"))))
    plain, wait, zipped, wait_zipped = (
        round(statistics.median(column) * 1000.0, 1) for column in zip(*found, strict=True)
    )
    return {
        "runs": len(fleet.core.runs),
        "series": fleet.series(),
        "scrape_ms": plain,
        "longest_wait_ms": wait,
        "unchanged_gzip_scrape_ms": zipped,
        "unchanged_gzip_longest_wait_ms": wait_zipped,
    }


def _table(result: Mapping[str, Any]) -> str:
    lines = [
        f"{result['series']} series of {result['runs']} runs, median of {result['rounds']} pages, CPU milliseconds",
        "",
        f"{'':<16}{'ours':>10}{'generate_latest':>18}{'ratio':>10}{'bytes':>12}",
    ]
    for name in KINDS:
        e = "" if name == "text" else f"_{name}"
        row = [
            result[f"{column}{e}"] for column in ("ours_ms", "generate_latest_ms", "ratio_to_generate_latest", "bytes")
        ]
        lines.append(f"{name:<16}{row[0]:>10.1f}{row[1]:>18.1f}{row[2]:>10.3f}{row[3]:>12}")
    many, of = result["many_runs"], result["series_of"]
    verdict = "met" if result["target_met"] else "MISSED"
    return "\n".join(
        [
            *lines,
            "",
            f"a run has {of['run']} series, {of['gpu']} more for each GPU and {of['phase']} for each phase",
            f"{many['runs']} runs, {many['series']} series: a scrape takes {many['scrape_ms']} ms and keeps others "
            f"waiting for at most {many['longest_wait_ms']} ms at a time",
            f"{verdict}: at most {TARGET} of the time of generate_latest",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
