"""A made run with the timers of verl: what a step takes follows its tokens, as in real logs."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable

from exporter.detectors.base import StepDetector, StepSample, Verdict

Signals = dict[str, float]
Steps = list[tuple[int, Signals]]
TIMERS = ("generation_time", "old_log_prob_time", "update_actor_time", "weight_sync_time")


def timed(steps: int, seed: int = 0, length: Callable[[int], float] = lambda step: 1.0) -> Steps:
    """Noise of about a tenth; ``length``: times the usual answer, by step."""
    rng = random.Random(seed)
    run: Steps = []
    for step in range(1, steps + 1):
        size = length(step) * math.exp(rng.gauss(0.0, 0.1))
        timers = {
            "generation_time": 20.0 * size * math.exp(rng.gauss(0.0, 0.1)),
            "old_log_prob_time": 2.0 * size,
            "update_actor_time": 10.0 * size * math.exp(rng.gauss(0.0, 0.03)),
            "weight_sync_time": 3.0 * math.exp(rng.gauss(0.0, 0.05)),
        }
        run.append(
            (step, summed({**timers, "tokens": 2e5 * size, "response_length": 1500 * size}, 4.0 if step == 1 else 1.0))
        )
    return run


def summed(signals: Signals, slower: float = 1.0, extra: float = 0.0) -> Signals:
    """With the step's time, throughput and utilisation that follow from its timers."""
    signals.update({timer: signals[timer] * slower for timer in TIMERS})
    signals["step_time"] = sum(signals[timer] for timer in TIMERS) + 0.3 + extra
    signals["throughput"] = signals["tokens"] / signals["step_time"] / 8
    signals["mfu"] = 1e-5 * signals["tokens"] / signals["update_actor_time"] / 2.0
    return signals


def slowed(run: Steps, since: int, factor: Callable[[int], float], timers: Iterable[str] = TIMERS) -> Steps:
    """The run with some timers longer from step ``since`` on; ``factor``: by the place of the step in the fault."""
    chosen = tuple(timers)
    for step, signals in run:
        if step >= since:
            for timer in chosen:
                signals[timer] *= factor(step - since)
            summed(signals)
    return run


def observed(detector: StepDetector, steps: Iterable[tuple[int, Signals]]) -> list[Verdict]:
    return [v for step, signals in steps for v in detector.observe(StepSample(step, 1, 0.0, signals))]


def wild(seed: int, names: Iterable[str], steps: int) -> Steps:
    """Anything: signals that come and go, values without sense, steps that repeat, go back and skip."""
    rng = random.Random(seed)
    extremes = (0.0, -0.0, 1e30, -1e30, 1e-30, 1e308, 5e-324, math.nan, math.inf, -math.inf)
    run, step, level = [], 0, {name: 10.0 ** rng.uniform(-3, 3) for name in names}
    for _ in range(steps):
        step += rng.choice((1, 1, 1, 1, 1, 1, 2, 0, -1, 5) if rng.random() < 0.1 else (1,))
        if rng.random() < 0.02:
            level[rng.choice(list(level))] *= rng.choice((0.01, 0.5, 2.0, 4.0, 1000.0))
        signals = {
            name: rng.choice(extremes) if rng.random() < 0.02 else level[name] * math.exp(rng.gauss(0.0, 0.1))
            for name in level
            if rng.random() > 0.03
        }
        run.append((step, signals))
    return run


def restarted_in_between(
    make: Callable[[], StepDetector], steps: Steps, cut: int
) -> tuple[list[Verdict], list[Verdict]]:
    """What is said after ``cut`` steps: by the detector that saw all, and by one that took over its state as JSON."""
    first, second = make(), make()
    observed(first, steps[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    return observed(first, steps[cut:]), observed(second, steps[cut:])
