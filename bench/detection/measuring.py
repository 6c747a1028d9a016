"""Puts runs, cases and contenders together, in one process or in several, and sums up. Called by the command."""

from __future__ import annotations

import importlib.util
import statistics
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from bench.detection import scoring
from bench.detection.baselines import Manual, SixSigma
from bench.detection.cases import Case, Walk, control_cases, fault_cases, walk
from bench.detection.contenders import Contender, Ours
from bench.detection.generators import made_runs
from bench.detection.peers import PEERS
from bench.detection.runs import HELD_OUT, TUNED, HealthyRun, real_runs

SPLITS: Final = ("tuned", "held_out", "generated")
CONTENDERS: Final[dict[str, type[Contender]]] = {"ours": Ours, "manual": Manual, "six_sigma": SixSigma, **PEERS}
TIMED_STEPS: Final = 600
"""Of one real and one generated run, on which speed is measured."""


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
        return cls(places=1, tries=6, most_steps=600, real=1, made=3)


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
        if not installed(name):
            result["contenders"][name] = {"name": CONTENDERS[name]().name, "installed": False}
            continue
        given = {run.name: _fewer(tried[run.name]) for run in runs} if CONTENDERS[name]().slow else tried
        summary = _sum_up(_walk_all([(name, run, given[run.name]) for run in runs], jobs), name)
        summary["microseconds_per_step"] = round(_microseconds(name, runs), 1)
        result["contenders"][name] = summary
    ours = result["contenders"].get("ours")
    if ours is not None:
        for other in result["contenders"].values():
            if other["installed"]:
                other["times_ours"] = round(other["microseconds_per_step"] / ours["microseconds_per_step"], 2)
    result["bars"] = [] if ours is None else scoring.bars(ours, judged)
    result["missed"] = [row["bar"] for row in result["bars"] if not row["met"]]
    result["targets_met"] = not result["missed"]
    return result


def _fewer(cases: Sequence[Case]) -> list[Case]:
    """Those at one place, and a quarter of the controls."""
    faults = [case for case in cases if case.severity >= 0]
    places = sorted({case.place for case in faults})
    middle = places[len(places) // 2] if places else 0
    return [case for case in faults if case.place == middle] + [
        case for case in cases if case.severity < 0 and case.seed % 4 == 0
    ]


def installed(name: str) -> bool:
    """Whether the contender can be asked here."""
    package = CONTENDERS[name]().package
    return not package or importlib.util.find_spec(package) is not None


def _microseconds(name: str, runs: Sequence[HealthyRun]) -> float:
    """A step, on the run that logs most of each source: real, where there is one, and generated."""
    chosen = []
    for generated in (False, True):
        some = [run for run in runs if (run.split == "generated") == generated]
        if some:
            longest = max(some, key=lambda run: len(run.steps[0][1]))
            chosen.append(HealthyRun(longest.name, longest.split, longest.steps[:TIMED_STEPS], longest.setup))
    return statistics.fmean(CONTENDERS[name]().microseconds(run) for run in chosen)


def _runs(size: Size, seed: int) -> list[HealthyRun]:
    return real_runs(size.most_steps, size.real) + made_runs(seed, size.most_steps)[: size.made]


def _walk_all(jobs: Sequence[tuple[str, HealthyRun, list[Case]]], processes: int) -> list[Walk]:
    # Long ones first, so that the processes end together.
    ordered = sorted(jobs, key=lambda job: -len(job[2]) - len(job[1].steps))
    if processes <= 1:
        return [_one(job) for job in ordered]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(_one, ordered))


def _one(job: tuple[str, HealthyRun, list[Case]]) -> Walk:
    name, run, cases = job
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of values that are not finite: packages hand them on to the console
        return walk(CONTENDERS[name](), run, cases)


def _sum_up(walks: list[Walk], name: str) -> dict[str, Any]:
    by_split = {split: [walk for walk in walks if walk.split == split] for split in SPLITS}
    present = {split: some for split, some in by_split.items() if some}
    summary: dict[str, Any] = {
        "name": CONTENDERS[name]().name,
        "installed": True,
        "healthy": {split: scoring.healthy(some) for split, some in present.items()},
        "recall": {split: scoring.recall(some) for split, some in present.items()},
        "controls": scoring.controls(walks),
        "forecasts": {split: scoring.forecasts(some) for split, some in present.items()},
        "faults": scoring.faults(walks),
    }
    if name == "ours":
        summary["alarms"] = scoring.alarms(walks)
        summary["misses"] = scoring.misses(walks)
    return summary
