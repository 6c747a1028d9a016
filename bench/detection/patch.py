"""The piece of a run that a fault or a control changes, and ways to change it that keep the noise of the run.

Called by :mod:`bench.detection.faults` and :mod:`bench.detection.controls`. Values are multiplied, or moved by an
amount; what the run itself does stays in them. Times count from 1 at the first changed step.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bench.detection.runs import Metrics, Step
from exporter.detectors.setup import RunSetup

Shape = Callable[[int], float]
"""From the time (1 is the first changed step) to a factor or an amount."""

LOOKBACK: Final = 60

LOSS: Final = ("actor/pg_loss", "actor/loss", "train/loss")
GRAD: Final = ("actor/grad_norm", "train/grad_norm")
ENTROPY: Final = ("actor/entropy",)
REWARD: Final = ("critic/score/mean", "critic/rewards/mean")
ADVANTAGES: Final = tuple(
    f"critic/{what}/{which}" for what in ("advantages", "returns") for which in ("max", "min", "mean")
)
LENGTH: Final = ("response_length/mean", "response_length_non_aborted/mean", "assistant_response_length/mean")
CLIP_RATIO: Final = ("response_length/clip_ratio", "response_length_non_aborted/clip_ratio")
ROLLOUT_KL: Final = (
    "rollout_corr/kl",
    "rollout_corr/k3_kl",
    "rollout_corr/log_ppl_abs_diff",
    "training/rollout_probs_diff_mean",
)
LR: Final = ("actor/lr", "train/lr")
STEP_TIME: Final = ("timing_s/step", "perf/time_per_step")
GPU_MEMORY: Final = ("actor/perf/max_memory_reserved_gb", "perf/max_memory_reserved_gb")
GPU_ALLOCATED: Final = ("actor/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb")
HOST_MEMORY: Final = ("actor/perf/cpu_memory_used_gb", "perf/cpu_memory_used_gb")
MFU: Final = ("perf/mfu/actor", "train/mfu")
RATIOS: Final = frozenset((*CLIP_RATIO, "actor/pg_clipfrac", "response/aborted_ratio"))
"""What stays within 0 and 1."""


def ramp(to: float, over: int, start: float = 1.0) -> Shape:
    """From ``start`` in a straight line to ``to`` at time ``over``, and there from then on.

    >>> shape = ramp(3.0, 4)
    >>> [shape(time) for time in (1, 2, 4, 9)]
    [1.5, 2.0, 3.0, 3.0]
    """
    return lambda time: start + (to - start) * min(time / over, 1.0)


def growth(to: float, over: int) -> Shape:
    """From 1 by the same factor each step to ``to`` at time ``over``, and there from then on.

    >>> shape = growth(16.0, 4)
    >>> [round(shape(time), 6) for time in (1, 2, 4, 9)]
    [2.0, 4.0, 16.0, 16.0]
    """
    return lambda time: float(to ** min(time / over, 1.0))


def flat(value: float) -> Shape:
    """The same at all times."""
    return lambda time: value


class Patch:
    """Copies of some steps, to be changed, with what the run showed before.

    Args:
        before: steps before the first that may change; nothing in them is changed.
        steps: those that may change; they are copied.
        setup: what is known of the run.
        rng: all chance in the change comes from it.
    """

    def __init__(self, before: Sequence[Step], steps: Iterable[Step], setup: RunSetup, rng: random.Random) -> None:
        self.steps: list[Step] = [(step, dict(metrics)) for step, metrics in steps]
        self.before = before[-LOOKBACK:]
        self.earlier = before
        self.setup = setup
        self.rng = rng

    @property
    def rows(self) -> list[Metrics]:
        """The metrics of the steps, in order."""
        return [metrics for _, metrics in self.steps]

    def has(self, *keys: str) -> bool:
        """Whether the run logged one of the keys lately."""
        return any(key in metrics for _, metrics in self.before[-20:] for key in keys)

    def recent(self, *keys: str) -> list[float]:
        """Finite values before the change, of the first of the keys that the run logs."""
        for key in keys:
            values = [metrics[key] for _, metrics in self.before if key in metrics and math.isfinite(metrics[key])]
            if values:
                return values
        return []

    def level(self, *keys: str) -> float:
        """Median before the change; NaN where there is none."""
        return statistics.median(values) if (values := self.recent(*keys)) else math.nan

    def size(self, *keys: str) -> float:
        """Median of the absolute values before the change; NaN where there is none."""
        return statistics.median(map(abs, values)) if (values := self.recent(*keys)) else math.nan

    def top(self, *keys: str) -> float:
        """The largest absolute value before the change but 5 %; NaN where there is none."""
        values = sorted(map(abs, self.recent(*keys)))
        return values[int(0.95 * (len(values) - 1))] if values else math.nan

    def times(self, keys: Iterable[str], shape: Shape) -> None:
        """Multiply."""
        for key in keys:
            for time, row in enumerate(self.rows, start=1):
                if key in row:
                    row[key] = self._within(key, row[key] * shape(time))

    def add(self, keys: Iterable[str], shape: Shape) -> None:
        """Move by an amount."""
        for key in keys:
            for time, row in enumerate(self.rows, start=1):
                if key in row:
                    row[key] = self._within(key, row[key] + shape(time))

    def lift(self, keys: Iterable[str], to: float, over: int, *, straight: bool = False) -> None:
        """Add what brings 0 to ``to``, with noise of a tenth: slowly first, or in a straight line."""
        grown, line = growth(32.0, over), ramp(to, over, 0.0)

        def amount(time: int) -> float:
            course = line(time) if straight else to * (grown(time) - 1.0) / 31.0
            return course * math.exp(0.1 * self.rng.gauss(0.0, 1.0))

        self.add(keys, amount)

    def put(self, keys: Iterable[str], value: float, when: Callable[[int], bool] = lambda time: True) -> None:
        """Set to a value where the key is logged."""
        for key in keys:
            for time, row in enumerate(self.rows, start=1):
                if key in row and when(time):
                    row[key] = value

    def longer(self, phase: str, shape: Shape) -> None:
        """One phase takes ``shape`` times as long, and the step with it; throughput falls accordingly."""
        key = f"timing_s/{phase}"
        for time, row in enumerate(self.rows, start=1):
            if key in row:
                extra = row[key] * (shape(time) - 1.0)
                row[key] += extra
                if (per_token := f"timing_per_token_ms/{phase}") in row:
                    row[per_token] *= shape(time)
                self._step_longer(row, extra)

    def slower(self, shape: Shape) -> None:
        """The whole step takes ``shape`` times as long: all its phases, throughput and MFU."""
        for time, row in enumerate(self.rows, start=1):
            factor = shape(time)
            for key in row:
                if key.startswith(("timing_s/", "timing_per_token_ms/")) or key in STEP_TIME:
                    row[key] *= factor
                elif key == "perf/throughput" or key in MFU:
                    row[key] /= factor

    def lengths(self, shape: Shape) -> None:
        """Responses are ``shape`` times as long, up to the limit, and what goes with the tokens: their number, time."""
        cap = float(self.setup.max_response_length or self._seen_cap())
        for time, row in enumerate(self.rows, start=1):
            old = row.get(LENGTH[0])
            if old is None or old <= 0:
                continue
            factor = min(old * shape(time), cap) / old
            for key in (*LENGTH, "perf/total_num_tokens"):
                if key in row:
                    row[key] *= factor
            if "response_length/max" in row:
                row["response_length/max"] = min(row["response_length/max"] * max(factor, 0.3), cap)
            for phase in ("gen", "update_actor"):
                if f"timing_s/{phase}" in row:
                    extra = row[f"timing_s/{phase}"] * (factor**0.8 - 1.0)
                    row[f"timing_s/{phase}"] += extra
                    self._step_longer(row, extra)
            if "perf/throughput" in row:
                row["perf/throughput"] *= factor

    def _seen_cap(self) -> float:
        return (
            max((m.get("response_length/max", m.get(LENGTH[0], 0.0)) for _, m in self.earlier), default=0.0) or math.inf
        )

    def _step_longer(self, row: Metrics, extra: float) -> None:
        old = row.get("timing_s/step", math.nan)
        for key in STEP_TIME:
            if key in row:
                row[key] += extra
        if "perf/throughput" in row and old > 0 and old + extra > 0:
            row["perf/throughput"] *= old / (old + extra)

    @staticmethod
    def _within(key: str, value: float) -> float:
        return min(max(value, 0.0), 1.0) if key in RATIOS else value
