"""Whether a budget of false pages holds: ``python -m bench.budget [--json]``.

For several budgets, healthy runs are watched with thresholds that follow from the budget and from each run's own past,
and the pages that they cost are counted, per week of the run's own time. A budget holds where the pages seen are no
surprise to it: where a Poisson variable of the mean that it allows reaches that number with a probability of at least
5 %. Beside it: what the calibrated test finds by itself on the signals it watches, with no demand on how large a change
is. That is more than its share of the budget wherever a run learns, since learning moves everything; it shows what the
demand on the size of a change is there for.

The runs are those that thresholds were not chosen on: the held-out half of the real ones, where they are there, and
generated ones of seeds that nothing else uses.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.detection.generators import made_runs
from bench.detection.runs import HealthyRun, real_runs
from exporter.detectors.base import Severity, StepSample
from exporter.detectors.calibration import SERIES, USUAL_STEP_SECONDS, WEEK, Budget
from exporter.detectors.registry import build_detectors
from exporter.detectors.shift import Shift
from exporter.signals import canonical

BUDGETS: Final = (0.1, 1.0, 10.0, 100.0)
SEEDS: Final = (101, 102)
APART: Final = 20
"""Findings within so many steps of each other are one."""
SIGNALS: Final = (
    "entropy",
    "kl",
    "ppo_kl",
    "grad_norm",
    "response_length",
    "reward",
    "clip_ratio",
    "throughput",
    "rollout_k3_kl",
    "loss",
)
LOGARITHMIC: Final = frozenset(
    {"entropy", "kl", "ppo_kl", "grad_norm", "response_length", "throughput", "rollout_k3_kl"}
)
SURPRISE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Seen:
    """What one budget cost on some runs."""

    runs: str
    pages_per_week: float
    weeks: float
    allowed: float
    """Pages that the budget allows in this time."""
    pages: int
    """Of all detectors."""
    test_allowed: float
    """Findings that it allows the calibrated test on the signals that the runs log."""
    test_findings: int
    holds: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 where a budget does not hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.budget", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    arguments = parser.parse_args(argv)
    found = list(measure())
    missed = [one for one in found if not one.holds]
    if arguments.json:
        rows = [{name: getattr(one, name) for name in Seen.__slots__} for one in found]
        print(json.dumps({"benchmark": "budget", "budgets": rows, "within_bars": not missed}))
    else:
        _show(found)
    return 1 if missed else 0


def measure() -> Iterable[Seen]:
    """Every budget on every group of runs."""
    groups = {"held-out real runs": [run for run in real_runs() if run.split == "held_out"]}
    groups["generated runs"] = [run for seed in SEEDS for run in made_runs(seed)]
    for name, runs in groups.items():
        prepared = [(run, [(step, canonical(metrics)) for step, metrics in run.steps]) for run in runs]
        if not prepared:
            continue
        weeks = sum(len(steps) * _seconds(steps) for _, steps in prepared) / WEEK
        for pages in BUDGETS:
            budget = Budget(pages)
            seen = sum(_pages(run, steps, budget) for run, steps in prepared)
            findings, share = 0, 0.0
            for _, steps in prepared:
                of_run, series = _findings(steps, budget)
                findings += of_run
                share += series / SERIES * len(steps) * _seconds(steps) / WEEK
            allowed, test_allowed = pages * weeks, pages * share
            yield Seen(name, pages, weeks, allowed, seen, test_allowed, findings, not _surprising(seen, allowed))


def _seconds(steps: Sequence[tuple[int, dict[str, float]]]) -> float:
    """Usual length of a step."""
    return median([signals["step_time"] for _, signals in steps if "step_time" in signals] or [USUAL_STEP_SECONDS])


def _pages(run: HealthyRun, steps: Sequence[tuple[int, dict[str, float]]], budget: Budget) -> int:
    detectors = build_detectors(budget=budget).step
    paged = []
    for step, signals in steps:
        sample = StepSample(step, 1, float(step), signals, run.setup)
        if any(v.severity is Severity.CRITICAL for d in detectors for v in d.observe(sample)):
            paged.append(step)
    return _episodes(paged)


def _findings(steps: Sequence[tuple[int, dict[str, float]]], budget: Budget) -> tuple[int, int]:
    """Findings of the calibrated test alone, and the series (a signal in one direction) that it watched."""
    rarity = budget.rarity(_seconds(steps))
    count = series = 0
    for name in SIGNALS:
        values = [(step, signals[name]) for step, signals in steps if math.isfinite(signals.get(name, math.nan))]
        if len(values) < len(steps) // 2:
            continue
        shift = Shift(least_noise=1e-9)
        said: tuple[list[int], list[int]] = ([], [])
        for step, value in values:
            shift.push(step, math.log(abs(value) + 1e-4) if name in LOGARITHMIC else value)
            for rising in (False, True):
                if shift.change(rising=rising, least=0.0, rarity=rarity) is not None:
                    said[rising].append(step)
        count += _episodes(said[0]) + _episodes(said[1])
        series += 2
    return count, series


def _episodes(steps: Sequence[int]) -> int:
    return sum(place == 0 or step - steps[place - 1] > APART for place, step in enumerate(steps))


def _surprising(count: int, mean: float) -> bool:
    """Whether a Poisson variable hardly ever reaches ``count``.

    >>> _surprising(3, 2.0), _surprising(9, 2.0)
    (False, True)
    """
    below = sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count)) if mean > 0 else 0.0
    return 1.0 - below < SURPRISE


def _show(found: Sequence[Seen]) -> None:
    table = Table(title="False pages, by the budget that was set")
    for name in (
        "runs",
        "budget a week",
        "weeks seen",
        "allowed",
        "pages",
        "the test alone: allowed",
        "found",
        "holds",
    ):
        table.add_column(name, justify="left" if name in ("runs", "holds") else "right")
    for one in found:
        cells: tuple[Any, ...] = (
            one.runs,
            f"{one.pages_per_week:g}",
            f"{one.weeks:.2f}",
            f"{one.allowed:.2g}",
            one.pages,
        )
        cells += (f"{one.test_allowed:.2g}", one.test_findings, "yes" if one.holds else "no")
        table.add_row(*map(str, cells))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
