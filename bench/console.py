"""What a page of the console costs, and whether those who push notice that somebody looks.

``python -m bench.console [--runs 1000] [--rounds 15] [--seconds 8] [--json]`` fills one exporter with runs (all
detectors on, GPUs, configuration, open phases), and asks it in turn for the list of all runs, the page of one run and
the data of its charts, and beside them, in the same rounds, for ``/metrics`` and ``GET /api/v1/runs``: the same runs as
other readers get them. Then runs push at a set pace: while nobody looks; while twenty people have a page open, each of
which is fetched anew every five seconds; while pages are loaded one after the other, as fast as they come; and while
``/metrics`` is scraped as fast as it comes. These take turns, so that a machine that is busy with something else is so
for all of them.

Exit code 1 where a page takes longer than it may, 2 where the benchmark cannot run.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from bench.ingest import positive, seconds
from bench.load import LoadError, Source, drive, pace
from bench.memory import besides
from bench.processes import resident_bytes
from bench.receivers import Exporter, Samples
from demo.processes import StartError

METRICS: Final = 60
STEPS: Final = 40
"""Of every run: past the warm-up of its detectors."""
LONG_STEPS: Final = 2000
"""Of the run whose page is asked for."""
CONNECTIONS: Final = 50
PUSHES_A_SECOND: Final = 100.0
PEOPLE: Final = 20
PAGE_SECONDS: Final = 5.0
"""A page that is open is fetched again after as long."""
LIST_TARGET: Final = 1.0
"""The list of all runs takes no longer than a scrape of the same runs."""

BROWSER: Final = {"Accept": "text/html", "Accept-Encoding": "gzip"}
SCRAPER: Final = {"Accept-Encoding": "gzip"}


@dataclass(slots=True)
class Asked:
    """One address, asked for again and again."""

    path: str
    headers: Mapping[str, str]
    seconds: list[float] = field(default_factory=list)
    """To the last byte."""
    first_byte: list[float] = field(default_factory=list)
    size: int = 0
    """Bytes on the wire."""

    def ask(self, host: str) -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.connect()
        try:
            began = time.perf_counter()
            connection.request("GET", self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            self.first_byte.append(time.perf_counter() - began)
            body = answer.read()
            self.seconds.append(time.perf_counter() - began)
        finally:
            connection.close()
        if answer.status != 200:
            raise LoadError(f"{self.path} was answered {answer.status}.")
        self.size = len(body)

    def told(self) -> dict[str, float]:
        return {
            "ms_first_byte": round(1000 * statistics.median(self.first_byte), 1),
            "ms": round(1000 * statistics.median(self.seconds), 1),
            "kilobytes": round(self.size / 1000, 1),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    options = _options(argv)
    with tempfile.TemporaryDirectory(prefix="console-") as folder:
        exporter = Exporter(Samples(options.runs, METRICS, every_signal=True), Path(folder))
        try:
            exporter.start()
            result = _measure(exporter, options.rounds, options.seconds)
        except (StartError, LoadError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            exporter.child.stop()
    print(json.dumps(result) if options.json else _sentences(result))
    return 0 if result["targets_met"] else 1


def _measure(exporter: Exporter, rounds: int, window: float) -> dict[str, Any]:
    _fill(exporter)
    assert exporter.child.pid is not None
    run = exporter.samples.runs[0]
    asked = {
        "list": Asked("/console/", BROWSER),
        "run": Asked(f"/console/run?id={run}", BROWSER),
        "charts_recent": Asked(f"/console/series?id={run}&span=recent", BROWSER),
        "charts": Asked(f"/console/series?id={run}", BROWSER),
        "metrics": Asked("/metrics", SCRAPER),
        "api_runs": Asked("/api/v1/runs", SCRAPER),
    }
    firsts = {name: Asked(one.path, one.headers) for name, one in asked.items()}
    for name in reversed(firsts):
        # What others read comes first, so that what it leaves in memory does not count as the console's.
        firsts[name].ask(exporter.host)
        if name == "metrics":
            before = resident_bytes(exporter.child.pid)
    for _ in range(rounds):
        for one in asked.values():
            one.ask(exporter.host)
    opened = resident_bytes(exporter.child.pid)
    pushes = _pushes(exporter, asked, window, max(2, rounds // 5))
    ms = {name: one.told()["ms"] for name, one in asked.items()}
    return {
        "benchmark": "console",
        "runs": len(exporter.samples.runs),
        "steps_of_the_run": STEPS + LONG_STEPS,
        "pages": {name: one.told() for name, one in asked.items()},
        "first_ms": {name: round(1000 * one.seconds[0], 1) for name, one in firsts.items()},
        "list_to_metrics": round(ms["list"] / ms["metrics"], 2),
        "list_to_api": round(ms["list"] / ms["api_runs"], 2),
        "run_to_metrics": round(ms["run"] / ms["metrics"], 2),
        "memory_of_looking_bytes": opened - before,
        "pushes": pushes,
        "target_list_to_metrics": LIST_TARGET,
        "targets_met": ms["list"] <= LIST_TARGET * ms["metrics"],
    }


def _fill(exporter: Exporter) -> None:
    """All runs with what they have; the first one with many steps."""

    def pushes(runs: Sequence[int]) -> Iterator[bytes]:
        for run in runs:
            yield exporter.push(run, 0, **besides(run))
            yield exporter.push(run, STEPS)
            if run == 0:
                for _ in range(LONG_STEPS // 50):
                    yield exporter.push(run, 50)

    runs = range(len(exporter.samples.runs))
    shares = [runs[first::CONNECTIONS] for first in range(min(CONNECTIONS, len(runs)))]
    drive(("127.0.0.1", exporter.port), [_source(pushes(share)) for share in shares])


def _source(pushes: Iterator[bytes]) -> Source:
    return lambda: next(pushes, None)


def _pushes(exporter: Exporter, asked: Mapping[str, Asked], window: float, rounds: int) -> dict[str, Any]:
    """How long a push takes, in milliseconds, by what else is asked for meanwhile."""
    pages = ("list", "run", "charts")
    kinds: dict[str, tuple[tuple[str, ...], float]] = {
        "alone": ((), 0.0),
        "people": (pages, PEOPLE / PAGE_SECONDS),
        "pages": (pages, math.inf),
        "scrapes": (("metrics",), math.inf),
    }
    latencies: dict[str, list[float]] = {name: [] for name in kinds}
    answers = dict.fromkeys(kinds, 0)
    for _ in range(rounds):
        for name, (wanted, rate) in kinds.items():
            answers[name] += _window(exporter, [asked[one] for one in wanted], rate, window, latencies[name])
    told = {}
    for name, found in latencies.items():
        found.sort()
        told[name] = {
            "p50_ms": round(1000 * found[len(found) // 2], 2),
            "p99_ms": round(1000 * found[int(len(found) * 0.99)], 2),
            "max_ms": round(1000 * found[-1], 2),
            "pushes": len(found),
            "answers_a_second": round(answers[name] / (window * rounds), 1),
        }
    return told


def _window(exporter: Exporter, wanted: Sequence[Asked], rate: float, window: float, latencies: list[float]) -> int:
    """Push for a while, and have another process ask meanwhile; how many answers it got."""
    senders = min(CONNECTIONS, len(exporter.samples.runs))
    # A process of its own: one that shared this interpreter would slow down what measures.
    context = multiprocessing.get_context("spawn")
    stop, answered = context.Event(), context.Value("i", 0)
    addresses = [(one.path, dict(one.headers)) for one in wanted]
    looker = context.Process(target=_look, args=(exporter.host, addresses, rate, stop, answered)) if addresses else None
    if looker is not None:
        looker.start()
    try:
        pace(
            ("127.0.0.1", exporter.port),
            [exporter.source(run, 1) for run in range(senders)],
            [_times(sender / PUSHES_A_SECOND, senders / PUSHES_A_SECOND) for sender in range(senders)],
            window,
            lambda _, took: latencies.append(took),
        )
    finally:
        stop.set()
        if looker is not None:
            looker.join(60)
    return int(answered.value)


def _times(first: float, every: float) -> Iterator[float]:
    return (first + number * every for number in count())


def _look(host: str, addresses: Sequence[tuple[str, dict[str, str]]], rate: float, stop: Event, answered: Any) -> None:
    """One address after the other, at most so many a second, until it is told to stop."""
    one, began = 0, time.perf_counter()
    while not stop.wait(max(0.0, began + one / rate - time.perf_counter())):
        path, headers = addresses[one % len(addresses)]
        Asked(path, headers).ask(host)
        answered.value += 1
        one += 1


def _sentences(result: dict[str, Any]) -> str:
    names = {
        "list": "the list of all runs",
        "run": "the page of a run",
        "charts_recent": "its charts, newest steps",
        "charts": f"its charts, {result['steps_of_the_run']} steps",
        "metrics": "GET /metrics",
        "api_runs": "GET /api/v1/runs",
    }
    lines = [
        f"{result['runs']} runs; medians; compressed as a browser takes it:",
        f"  {'':28} {'first byte':>11} {'complete':>10} {'size':>10} {'the first time':>16}",
        *(
            f"  {names[name]:28} {one['ms_first_byte']:8.1f} ms {one['ms']:7.1f} ms {one['kilobytes']:7.1f} kB "
            f"{result['first_ms'][name]:13.1f} ms"
            for name, one in result["pages"].items()
        ),
        f"Times a scrape: the list {result['list_to_metrics']} (at most {LIST_TARGET:g} is wanted), the page of a run "
        f"{result['run_to_metrics']}. Times GET /api/v1/runs: the list {result['list_to_api']}.",
        f"Memory grew by {result['memory_of_looking_bytes'] / 1e6:.0f} MB when pages were opened.",
        f"A push, {PUSHES_A_SECOND:.0f} a second, meanwhile:",
    ]
    told = {
        "alone": "nobody looks",
        "people": f"{PEOPLE} people look",
        "pages": "pages without a pause",
        "scrapes": "/metrics without a pause",
    }
    for name, one in result["pushes"].items():
        lines.append(
            f"  {told[name]:28} median {one['p50_ms']:6.2f} ms, p99 {one['p99_ms']:7.2f} ms, "
            f"longest {one['max_ms']:7.2f} ms ({one['answers_a_second']} answers a second)"
        )
    return "\n".join(lines)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=positive, default=1000, metavar="N", help="runs (default: 1000)")
    parser.add_argument("--rounds", type=positive, default=15, metavar="N", help="of which the median counts")
    parser.add_argument("--seconds", type=seconds, default=8.0, metavar="S", help="of each window of pushes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
