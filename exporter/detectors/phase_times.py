"""Which phase of a step has grown, and what to try about it; a part of the detector ``step_time``.

The timers of a step are kept for the newest steps one by one, and for blocks of steps by their medians, in step with
the blocks of :class:`exporter.detectors.slowdown.Slowdown`. Also here: a step's time without its validation and its
saving.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from exporter.detectors.slowdown import BLOCK, BLOCKS

_NODE: Final = "the nodes: other jobs on them, clocks of the GPUs (nvidia-smi -q -d PERFORMANCE), ECC and NVLink errors"
_MICRO: Final = (
    "actor_rollout_ref.actor.use_dynamic_bsz and ppo_max_token_len_per_gpu (or ppo_micro_batch_size_per_gpu): raise "
    "them as far as memory allows"
)
_LOG_PROB: Final = (
    "actor_rollout_ref.{}.log_prob_max_token_len_per_gpu (or log_prob_micro_batch_size_per_gpu): raise it"
)

ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "generation_time": (
        "actor_rollout_ref.rollout.gpu_memory_utilization: raise it, where the servers evict and compute again",
        "the longest answers of a step: data.max_response_length bounds how long all others wait for them",
        "actor_rollout_ref.rollout.max_num_seqs and tensor_model_parallel_size",
        _NODE,
    ),
    "reward_time": (
        "the reward function, or what it calls: a sandbox or a judge that has become slow",
        "reward.num_workers: raise it (before verl 0.8: reward_model.reward_manager=prime scores in parallel)",
    ),
    "old_log_prob_time": (_LOG_PROB.format("rollout"), _NODE),
    "ref_time": (_LOG_PROB.format("ref"), "actor_rollout_ref.ref.fsdp_config.param_offload: false, where it fits"),
    "values_time": ("critic.forward_max_token_len_per_gpu (or forward_micro_batch_size_per_gpu): raise it", _NODE),
    "adv_time": ("the driver's host: CPU and memory in use there, swapping", "algorithm.adv_estimator"),
    "update_critic_time": ("critic.ppo_max_token_len_per_gpu (or ppo_micro_batch_size_per_gpu): raise it", _NODE),
    "update_actor_time": (
        _NODE,
        _MICRO,
        "actor_rollout_ref.actor.fsdp_config.param_offload and optimizer_offload: false, where it fits",
    ),
    "weight_sync_time": (
        "the network between trainer and rollout servers: NCCL_DEBUG=INFO shows the transport in use",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes: raise it",
    ),
}
"""What to try, by the signal of the phase."""
PHASES: Final = tuple(ADVICE)
ELSEWHERE: Final = (
    "the driver's host: CPU and memory in use there, swapping, a slow file system or logger",
    _NODE,
)


class Blame(NamedTuple):
    """The phase that grew most. ``share``: of the growth of the step."""

    phase: str
    before: float
    now: float
    share: float


def clean(value: float | None) -> float | None:
    """The value where it is finite and not negative, else None."""
    return value if value is not None and 0.0 <= value < math.inf else None


def net_time(signals: Mapping[str, float], usual: float | None) -> float | None:
    """Seconds of the step without validation and saving, None where it has no time that can be judged.

    verl's timer of the step includes both in some versions and neither in others. Which it is, the other timers tell:
    what they leave of the step is large enough for both or is not. Without other timers, the result is whichever is
    nearer to the ``usual`` seconds, where there are any.

    >>> timers = {"generation_time": 20.0, "update_actor_time": 10.0, "checkpoint_time": 30.0}
    >>> net_time({"step_time": 31.0, **timers}, None), net_time({"step_time": 61.0, **timers}, None)
    (31.0, 31.0)
    """
    whole = signals.get("step_time")
    if whole is None or not 0.0 < whole < math.inf:
        return None
    extra = (clean(signals.get("validation_time")) or 0.0) + (clean(signals.get("checkpoint_time")) or 0.0)
    less = whole - extra
    if extra == 0.0 or less <= 0.0:
        return whole
    timed = sum(clean(signals.get(phase)) or 0.0 for phase in PHASES)
    if 0.0 < timed <= 1.02 * whole:
        return less if whole - timed > 0.5 * extra else whole
    if usual is None or not usual > 0.0:
        return less
    return min(whole, less, key=lambda seconds: abs(math.log(seconds / usual)))


class PhaseTimes:
    """Timers of the newest steps, and of blocks of steps."""

    __slots__ = ("_blocks", "_count", "_recent")

    def __init__(self) -> None:
        # In the order of PHASES; NaN where there is no timer, or none that can be judged.
        self._recent: list[array[float]] = []
        self._blocks: list[array[float]] = []
        self._count = 0

    def push(self, signals: Mapping[str, float]) -> None:
        """Take the timers of one step that was pushed to the pace."""
        self._recent.append(array("d", [signals.get(phase, math.nan) for phase in PHASES]))
        self._count += 1
        if self._count % BLOCK == 0:
            self._blocks.append(array("d", _medians(self._recent[-BLOCK:])))
            del self._blocks[:-BLOCKS]
            del self._recent[: -3 * BLOCK]

    def blame(self, newest: int, block: int, growth: float) -> Blame | None:
        """The phase that explains most of ``growth`` seconds since a block, None if none explains three tenths."""
        if growth <= 0.0 or -block > len(self._blocks):
            return None
        found = [
            Blame(phase, before, now, min((now - before) / growth, 1.0))
            for phase, before, now in zip(PHASES, self._blocks[block], _medians(self._recent[-newest:]), strict=True)
            if not math.isnan(now - before)
        ]
        worst = max(found, key=lambda blame: blame.share, default=None)
        return worst if worst is not None and worst.share >= 0.3 else None

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        return {
            "recent": [[clean(value) for value in step] for step in self._recent],
            "blocks": [[clean(value) for value in block] for block in self._blocks],
            "count": self._count,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self._recent, self._blocks = _unpacked(state["recent"]), _unpacked(state["blocks"])
        self._count = state["count"]


def _unpacked(kept: Sequence[Sequence[float | None]]) -> list[array[float]]:
    return [array("d", [math.nan if value is None else value for value in row]) for row in kept]


def _medians(steps: Sequence[Sequence[float]]) -> list[float]:
    """By phase; NaN where fewer than half of the steps have it."""
    found = []
    for values in zip(*steps, strict=True):
        there = sorted(value for value in values if 0.0 <= value < math.inf)
        found.append(there[len(there) // 2] if 2 * len(there) >= len(steps) else math.nan)
    return found
