"""What the detector tests feed and how they read the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from bench.detection.runs import read_steps
from exporter.detectors.base import Severity, StepDetector, StepSample, Verdict
from exporter.signals import canonical

Signals = dict[str, float]

HERE = Path(__file__).parent


def read(path: Path) -> Iterator[tuple[int, Signals]]:
    """Steps of a log of verl's file logger."""
    return ((step, canonical(metrics)) for step, metrics in read_steps(path))


def watch(detectors: Iterable[StepDetector], steps: Iterable[tuple[int, Mapping[str, float]]]) -> list[Verdict]:
    """All verdicts of some step detectors on a stream of steps."""
    chosen = list(detectors)
    found: list[Verdict] = []
    for step, signals in steps:
        sample = StepSample(step=step, attempt=1, time=float(step), signals=signals)
        for detector in chosen:
            found.extend(detector.observe(sample))
    return found


def critical(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.severity is Severity.CRITICAL]


def episodes(steps: Iterable[int], apart: int = 20) -> int:
    """How many episodes the steps make, when those within ``apart`` steps are one."""
    count, last = 0, -math.inf
    for step in sorted(steps):
        count += step - last > apart
        last = step
    return count


def series(name: str, values: Iterable[float], first: int = 1) -> list[tuple[int, Signals]]:
    return [(step, {name: value}) for step, value in enumerate(values, start=first)]


def healthy(steps: int, seed: int = 0) -> list[tuple[int, Signals]]:
    """A made run whose signals look like those of a GRPO run: noisy, with a loss that changes sign."""
    noise = _noise(seed)
    return [
        (
            step,
            {
                "loss": 0.012 * noise(),
                "grad_norm": 0.6 * math.exp(0.25 * noise()),
                "ppo_kl": 2e-4 * noise(),
                "kl": 1e-4 * math.exp(0.2 * noise()),
                "entropy": 0.4 * math.exp(0.08 * noise() - step / 2000),
                "reward": 0.5 + 0.1 * noise(),
                "pg_clipfrac": 0.002 * math.exp(0.2 * noise()),
            },
        )
        for step in range(1, steps + 1)
    ]


def _noise(seed: int) -> Callable[[], float]:
    """Reproducible noise of about unit variance, from a small congruential generator (sum of twelve)."""
    state = seed * 2654435761 % 2**32 + 1

    def draw() -> float:
        nonlocal state
        total = -6.0
        for _ in range(12):
            state = (1664525 * state + 1013904223) % 2**32
            total += state / 2**32
        return total

    return draw
