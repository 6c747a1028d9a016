"""What is known of a run beside its metrics: what it was configured with, and what its machine has.

Read by the detectors that judge against a promise (a learning rate's schedule, a memory's size, a length limit). The
service makes it from the configuration that the trainer reported and from GPU readings, replay from its options. All of
it may be unknown, and a detector has to do without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """The learning rate that was asked for: linear warm-up to ``peak``, then constant or cosine, as verl does it.

    ``total_steps`` counts steps of the trainer; None where it is not known, which matters to cosine only.
    """

    peak: float
    warmup_steps: int = 0
    kind: str = "constant"
    """``constant`` or ``cosine``; any other is not understood, and nothing is expected."""
    total_steps: int | None = None
    min_ratio: float = 0.0
    cycles: float = 0.5

    def at(self, update: int) -> float | None:
        """The rate after ``update`` updates (0: the first), None where it cannot be known.

        Source: verl 0.9.1, ``verl.utils.torch_functional.get_{constant,cosine}_schedule_with_warmup``.

        >>> schedule = LrSchedule(1e-6, warmup_steps=10, kind="cosine", total_steps=110)
        >>> [f"{schedule.at(update):.2g}" for update in (0, 5, 10, 60, 110)]
        ['0', '5e-07', '1e-06', '5e-07', '0']
        """
        if update < self.warmup_steps:
            return self.peak * update / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        if self.kind != "cosine" or self.total_steps is None:
            return None
        progress = min((update - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps), 1.0)
        wave = 0.5 * (1.0 + math.cos(math.pi * self.cycles * 2.0 * progress))
        return self.peak * max(self.min_ratio, self.min_ratio + (1.0 - self.min_ratio) * wave)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """None, or nothing, is unknown."""

    total_steps: int | None = None
    gpu_memory_bytes: float | None = None
    """Memory of one GPU, the smallest where they differ."""
    host_memory_bytes: float | None = None
    max_response_length: int | None = None
    """Tokens."""
    lr: LrSchedule | None = None
    uses_kl: bool | None = None
    """Whether a KL term against a reference is part of loss or reward."""


UNKNOWN: Final = RunSetup()
