"""``python -m tests.chaos``: play the list of scenarios, then random schedules, and print a table of how each ended.

Exit code 0 where every scenario ended in a state that it may have and broke no invariant, 1 where one did not, 130
after Ctrl-C. Everything that was started is ended by its process id, also then.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from tests.chaos.catalogue import catalogue
from tests.chaos.play import Result, Scenario, play
from tests.chaos.schedule import schedule
from tests.chaos.world import Interrupted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite; the exit code is its result."""
    options = _parser().parse_args(argv)
    chosen = _chosen(options)
    if options.list:
        for scenario in chosen:
            print(f"{scenario.name:<60} {scenario.what}")
        return 0
    if not chosen:
        print("No scenario has such a name; --list shows them.", file=sys.stderr)
        return 2
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    began = time.monotonic()
    results = _play_all(chosen, options, interrupted)
    seconds = time.monotonic() - began
    if options.json:
        print(json.dumps(_summary(results, seconds, options.seed), indent=2))
    else:
        _print_summary(results, seconds)
    if interrupted.is_set():
        return 130
    return 0 if all(result.ok for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--scenarios", type=int, default=20, metavar="N", help="random schedules after the list (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the first of them (1)")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="those with TEXT in their name")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the list, only every Nth")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="scenarios at a time (2)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder of every scenario, not of failed ones only"
    )
    parser.add_argument("--list", action="store_true", help="show the scenarios and play none")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _chosen(options: argparse.Namespace) -> list[Scenario]:
    listed = catalogue()[:: max(1, options.every)]
    drawn = [schedule(options.seed + number) for number in range(max(0, options.scenarios))]
    everything = [*listed, *drawn]
    if not options.only:
        return everything
    return [scenario for scenario in everything if any(text in scenario.name for text in options.only)]


def _play_all(chosen: list[Scenario], options: argparse.Namespace, interrupted: threading.Event) -> list[Result]:
    results: list[Result] = []
    with ThreadPoolExecutor(max_workers=max(1, options.jobs)) as pool:
        playing: list[Future[Result]] = [pool.submit(_play, scenario, options.keep, interrupted) for scenario in chosen]
        for future in as_completed(playing):
            try:
                result = future.result()
            except Interrupted:
                continue
            results.append(result)
            if not options.json:
                _print_row(result)
    return results


def _play(scenario: Scenario, keep: bool, interrupted: threading.Event) -> Result:
    if interrupted.is_set():
        raise Interrupted
    return play(scenario, keep=keep, interrupted=interrupted)


def _print_row(result: Result) -> None:
    invariants = "held" if not result.breaches else "BROKEN: " + "; ".join(result.breaches)
    mark = "  " if result.ok else "! "
    print(f"{mark}{result.name:<58} {result.end:<10} {result.seconds:6.1f} s  {invariants}", flush=True)
    if not result.ok:
        for line in (result.why, *result.story, f"kept in {result.folder}"):
            print(f"      {line}", flush=True)


def _print_summary(results: list[Result], seconds: float) -> None:
    ends = Counter(result.end for result in results)
    told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    broken = sum(bool(result.breaches) for result in results)
    bad = sum(not result.ok for result in results)
    print(f"{len(results)} scenarios in {seconds:.0f} s: {told}.")
    print(f"An invariant was broken in {broken}; {bad} did not end as they must.")


def _summary(results: list[Result], seconds: float, seed: int) -> dict[str, object]:
    return {
        "suite": "chaos",
        "seed": seed,
        "scenarios": len(results),
        "seconds": round(seconds, 1),
        "ends": dict(Counter(result.end for result in results)),
        "invariants_broken": sum(bool(result.breaches) for result in results),
        "not_ok": sum(not result.ok for result in results),
        "results": [dataclasses.asdict(result) for result in results],
    }


if __name__ == "__main__":
    sys.exit(main())
