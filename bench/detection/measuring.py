"""Puts runs, cases and contenders together, in one process or in several, and sums up. Called by the command."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.detection import scoring
from bench.detection.cases import Case, Walk, control_cases, fault_cases, walk
from bench.detection.contenders import CONTENDERS
from bench.detection.generators import made_runs
from bench.detection.runs import HELD_OUT, TUNED, HealthyRun, real_runs

SPLITS = ("tuned", "held_out", "generated")


@dataclass(frozen=True)
class Size:
    """How much is tried."""

    places: int = 4
    """Of each run, at which every kind of fault is put in, in each severity."""
    tries: int = 100
    """Of each control."""
    most_steps: int | None = None
    real: int | None = None
    """Real runs of each split; None: all."""
    made: int | None = None

    @classmethod
    def quick(cls) -> Size:
        """Under a minute."""
        return cls(places=1, tries=6, most_steps=600, real=2, made=4)


def measure(
    *, contenders: Sequence[str], kinds: Sequence[str], controls: Sequence[str], size: Size, jobs: int, seed: int
) -> dict[str, Any]:
    """All of it, as one plain document; what it holds is said in :mod:`bench.detection.scoring`."""
    runs = _runs(size, seed)
    tried: dict[str, list[Case]] = {run.name: fault_cases(run, size.places, seed, kinds) for run in runs}
    for name, cases in control_cases(runs, size.tries, seed, controls).items():
        tried[name] += cases
    judged = "held_out" if any(run.split == "held_out" for run in runs) else "generated"
    result: dict[str, Any] = {
        "benchmark": "detection",
        "seed": seed,
        "real_runs": any(run.split != "generated" for run in runs),
        "judged_on": judged,
        "split": {"tuned": list(TUNED), "held_out": list(HELD_OUT)},
        "contenders": {},
    }
    for name in contenders:
        made = [(name, run, tried[run.name]) for run in runs]
        result["contenders"][name] = _sum_up(_walk_all(made, jobs), name)
    ours = result["contenders"].get("ours")
    result["bars"] = [] if ours is None else scoring.bars(ours, judged)
    result["missed"] = [row["bar"] for row in result["bars"] if not row["met"]]
    result["within_bars"] = not result["missed"]
    return result


def _runs(size: Size, seed: int) -> list[HealthyRun]:
    real = real_runs(size.most_steps)
    chosen = [run for split in ("tuned", "held_out") for run in [r for r in real if r.split == split][: size.real]]
    return chosen + made_runs(seed, size.most_steps)[: size.made]


def _walk_all(jobs: Sequence[tuple[str, HealthyRun, list[Case]]], processes: int) -> list[Walk]:
    # Long ones first, so that the processes end together.
    ordered = sorted(jobs, key=lambda job: -len(job[2]) - len(job[1].steps))
    if processes <= 1:
        return [_one(job) for job in ordered]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(_one, ordered))


def _one(job: tuple[str, HealthyRun, list[Case]]) -> Walk:
    name, run, cases = job
    return walk(CONTENDERS[name](), run, cases)


def _sum_up(walks: list[Walk], name: str) -> dict[str, Any]:
    by_split = {split: [walk for walk in walks if walk.split == split] for split in SPLITS}
    present = {split: some for split, some in by_split.items() if some}
    summary: dict[str, Any] = {
        "name": CONTENDERS[name]().name,
        "healthy": {split: scoring.healthy(some) for split, some in present.items()},
        "recall": {split: scoring.recall(some) for split, some in present.items()},
        "controls": scoring.controls(walks),
        "forecasts": {split: scoring.forecasts(some) for split, some in present.items()},
        "microseconds_per_step": scoring.microseconds(walks),
    }
    if name == "ours":
        summary["alarms"] = scoring.alarms(walks)
        summary["misses"] = scoring.misses(walks)
    return summary
