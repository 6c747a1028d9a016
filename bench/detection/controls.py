"""What only looks like a fault: negative controls, put into a healthy run, on which nobody may be paged.

Called by the benchmark. A control changes a run from a step on, or (``whole``) from its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.detection.patch import (
    ADVANTAGES,
    ENTROPY,
    GPU_ALLOCATED,
    GPU_MEMORY,
    GRAD,
    LOSS,
    LR,
    REWARD,
    STEP_TIME,
    Patch,
    growth,
    ramp,
)
from bench.detection.runs import Metrics
from exporter.detectors.setup import LrSchedule, RunSetup
from exporter.signals import GIB


@dataclass(frozen=True, slots=True)
class Control:
    """One kind of harmless change."""

    name: str
    steps: int
    """How long the run is watched after it."""
    change: Callable[[Patch], None]
    needs: tuple[str, ...] = ()
    """The run must log one of them; empty: none."""
    whole: bool = False
    setup: Callable[[RunSetup], RunSetup] = lambda setup: setup
    """What the watcher knows of the changed run."""


def _once(patch: Patch, at: int = 1, width: int = 1) -> Callable[[float], Callable[[int], float]]:
    return lambda factor: lambda time: factor if at <= time < at + width else 1.0


def _spike_of_gradient(patch: Patch) -> None:
    factor = patch.rng.uniform(5.0, 60.0)
    patch.times(GRAD, _once(patch, width=patch.rng.choice((1, 1, 2)))(factor))
    patch.add(LOSS, lambda time: 3.0 * patch.size(*LOSS) if time == 1 else 0.0)


def _spike_of_loss(patch: Patch) -> None:
    amount = patch.size(*LOSS) * patch.rng.uniform(10.0, 40.0)
    patch.add(LOSS, lambda time: amount * (1.0, 0.3)[time - 1] if time <= 2 else 0.0)


def _spike_of_kl(patch: Patch) -> None:
    amount = patch.rng.uniform(0.01, 0.2)
    patch.add(["actor/ppo_kl"], lambda time: amount if time == 1 else 0.0)
    patch.add(["actor/pg_clipfrac"], lambda time: 0.1 if time == 1 else 0.0)
    patch.times(["actor/kl_loss"], lambda time: 4.0 if time == 1 else 1.0)


def _spike_of_length(patch: Patch) -> None:
    factor = patch.rng.choice((0.3, 2.5))
    patch.lengths(lambda time: (factor, 1.0 + (factor - 1.0) / 3)[time - 1] if time <= 2 else 1.0)


def _spike_of_time(patch: Patch) -> None:
    factor = patch.rng.uniform(3.0, 12.0)
    patch.slower(lambda time: factor if time == 1 else 1.0)


def _slow_pauses(patch: Patch) -> None:
    every = patch.rng.choice((5, 10, 20))
    usual = patch.level("timing_s/step")
    for time, row in enumerate(patch.rows, start=1):
        for phase, period, share in (("testing", every, 2.5), ("save_checkpoint", 2 * every, 1.5)):
            if time % period == 0:
                extra = usual * share * math.exp(0.3 * patch.rng.gauss(0.0, 1.0))
                row[f"timing_s/{phase}"] = extra
                for key in STEP_TIME:
                    if key in row:
                        row[key] += extra


def _lengthening(patch: Patch) -> None:
    patch.lengths(growth(2.0, 400))
    patch.add(REWARD, ramp(0.05, 400, 0.0))


def _slow_decline_of_entropy(patch: Patch) -> None:
    patch.times(ENTROPY, growth(0.5, 400))
    patch.add(REWARD, ramp(0.1 * abs(patch.level(*REWARD)), 400, 0.0))


def _entropy_rises_with_reward(patch: Patch) -> None:
    patch.times(ENTROPY, growth(2.0, 300))
    patch.add(REWARD, ramp(0.3 * abs(patch.level(*REWARD)), 300, 0.0))


def _resume(patch: Patch) -> None:
    """Back to a checkpoint: the steps since then come again, with another seed, after a slow first step."""
    back = patch.rng.randint(5, 50)
    again = [(step, dict(metrics)) for step, metrics in patch.earlier[-back:]]
    patch.steps[:] = again + patch.steps
    factors = {
        key: patch.rng.uniform(0.85, 1.2) for key in (*GRAD, *ENTROPY, "actor/pg_clipfrac", "response_length/mean")
    }
    for key, factor in factors.items():
        patch.times([key], lambda time, factor=factor: factor)  # type: ignore[misc]
    patch.times(LOSS, lambda time: patch.rng.uniform(0.7, 1.3))
    patch.times((*GPU_MEMORY, *GPU_ALLOCATED), lambda time: 0.96)
    patch.slower(lambda time: 3.0 if time == 1 else 1.0)


def _streak_of_zeros(patch: Patch) -> None:
    length = patch.rng.randint(2, 5)
    patch.put((*GRAD, *ADVANTAGES, *LOSS, "actor/pg_clipfrac"), 0.0, lambda time: time <= length)


def _wild_gradient(patch: Patch) -> None:
    """One step, many powers of ten."""
    patch.put(GRAD, 10.0 ** patch.rng.uniform(4.0, 14.0), lambda time: time == 1)


def _curriculum(patch: Patch) -> None:
    """Harder tasks from one step on, which are learned."""
    drop = patch.rng.uniform(0.1, 0.3)
    patch.times(REWARD, lambda time: 1.0 - drop * max(0.0, 1.0 - time / 150))


def _gap(patch: Patch) -> None:
    gap = patch.rng.randint(2, 60)
    every = patch.rng.choice((1, 1, 5))
    patch.steps[:] = [(step, metrics) for step, metrics in patch.steps[gap:] if step % every == 0]


def _kl_never_a_number(patch: Patch) -> None:
    for row in patch.rows:
        row["actor/kl_loss"] = math.nan
        row.pop("actor/kl_coef", None)


def _kl_at(low: float, high: float) -> Callable[[Patch], None]:
    def change(patch: Patch) -> None:
        level, wander = math.exp(patch.rng.uniform(math.log(low), math.log(high))), 0.0
        for row in patch.rows:
            wander = 0.97 * wander + 0.03 * patch.rng.gauss(0.0, 1.0)
            row["actor/kl_loss"] = level * math.exp(wander + 0.2 * patch.rng.gauss(0.0, 1.0))

    return change


SCHEDULE: Final = LrSchedule(2e-6, warmup_steps=40, kind="cosine", total_steps=400, min_ratio=0.05)


def _schedule(patch: Patch) -> None:
    # The run may be one that began in the middle: its steps are counted from 1, as the schedule is.
    patch.steps[:] = [(index, metrics) for index, (_, metrics) in enumerate(patch.steps, start=1)]
    for index, row in patch.steps:
        rate = SCHEDULE.at(index)
        for key in LR:
            if key in row and rate is not None:
                row[key] = rate


def _told_schedule(setup: RunSetup) -> RunSetup:
    return RunSetup(
        400, setup.gpu_memory_bytes, setup.host_memory_bytes, setup.max_response_length, SCHEDULE, setup.uses_kl
    )


def _memory_plateau(patch: Patch) -> None:
    """Half a dozen jumps in the first steps, to nine tenths of the limit, and no further."""
    limit = (patch.setup.gpu_memory_bytes or 80 * GIB) / GIB
    jumps = sorted(patch.rng.randint(2, 60) for _ in range(6))
    for index, row in enumerate(patch.rows, start=1):
        _set_memory(row, limit * (0.7 + 0.2 * sum(index >= at for at in jumps) / len(jumps)))


def _memory_settles(patch: Patch) -> None:
    """A running peak that comes ever more slowly to where it stays."""
    limit, slow = (patch.setup.gpu_memory_bytes or 80 * GIB) / GIB, patch.rng.uniform(15.0, 120.0)
    for index, row in enumerate(patch.rows, start=1):
        share = 0.62 + 0.28 * (1.0 - math.exp(-index / slow))
        _set_memory(row, max(limit * 0.62, math.floor(limit * share / 0.25) * 0.25))


def _memory_saw(patch: Patch) -> None:
    """Validations that take more for a step, or empty a cache that fills slowly until the next one."""
    every, limit = patch.rng.choice((5, 10)), (patch.setup.gpu_memory_bytes or 80 * GIB) / GIB
    saw, height = patch.rng.random() < 0.5, patch.rng.uniform(0.04, 0.1)
    for time, row in enumerate(patch.rows, start=1):
        since = time % every
        _set_memory(row, limit * (0.8 + height * (since / every if saw else since == 0)))
        if since == 0:
            row["timing_s/testing"] = row.get("timing_s/step", 30.0) * 0.5
            for key in STEP_TIME:
                if key in row:
                    row[key] *= 1.5


def _set_memory(row: Metrics, gib: float) -> None:
    for keys, share in ((GPU_MEMORY, 1.0), (GPU_ALLOCATED, 0.92)):
        for key in keys:
            if key in row:
                row[key] = gib * share


CONTROLS: Final = (
    Control("spike of the gradient", 40, _spike_of_gradient, GRAD),
    Control("spike of the loss", 40, _spike_of_loss, LOSS),
    Control("spike of the KL", 40, _spike_of_kl, ("actor/ppo_kl", "actor/kl_loss")),
    Control("spike of the length", 40, _spike_of_length, ("response_length/mean",)),
    Control("spike of the step time", 40, _spike_of_time, STEP_TIME),
    Control("slow validation and checkpoints", 120, _slow_pauses, STEP_TIME),
    Control("length doubles", 400, _lengthening, ("response_length/mean",)),
    Control("entropy declines slowly", 400, _slow_decline_of_entropy, ENTROPY),
    Control("entropy rises with the reward", 300, _entropy_rises_with_reward, ENTROPY),
    Control("resume", 120, _resume),
    Control("streak of zero gradients", 40, _streak_of_zeros, GRAD),
    Control("one wild gradient", 60, _wild_gradient, GRAD),
    Control("curriculum", 150, _curriculum, REWARD),
    Control("gaps", 120, _gap),
    Control("KL is never a number", 300, _kl_never_a_number, GRAD, whole=True),
    Control("KL of 1e-4 all its life", 300, _kl_at(5e-5, 2e-4), GRAD, whole=True),
    Control("KL at another level", 300, _kl_at(0.3, 5.0), GRAD, whole=True),
    Control("learning rate as configured", 400, _schedule, LR, whole=True, setup=_told_schedule),
    Control("memory plateau", 250, _memory_plateau, GPU_MEMORY, whole=True),
    Control("memory settles", 400, _memory_settles, GPU_MEMORY, whole=True),
    Control("memory saw-tooth", 200, _memory_saw, GPU_MEMORY),
)
