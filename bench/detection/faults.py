"""What goes wrong: kinds of fault, each in three severities, put into a healthy run at a known step.

Called by the benchmark. Every kind moves those signals together that such a failure moves, keeps the noise of the run,
and has a deadline in steps, with the reason why the run is beyond repair after it. Severities: 0 mild, 1 moderate,
2 severe. Moderate and severe faults have to page, mild ones at least to warn, but for the kinds that say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.detection import injections
from bench.detection.patch import (
    ADVANTAGES,
    CLIP_RATIO,
    ENTROPY,
    GPU_MEMORY,
    GRAD,
    HOST_MEMORY,
    LENGTH,
    LOSS,
    LR,
    REWARD,
    ROLLOUT_KL,
    Patch,
)
from exporter.detectors.base import Severity
from exporter.signals import GIB

SEVERITIES: Final = ("mild", "moderate", "severe")
WARN: Final = Severity.WARNING
PAGE: Final = Severity.CRITICAL

Inject = Callable[[Patch, int], None]


def _always(patch: Patch) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    name: str
    deadline: tuple[int, int, int]
    """Steps from the first changed one, that one included, within which it has to be said; by severity."""
    why: str
    """Why it is too late then."""
    needs: tuple[tuple[str, ...], ...]
    """Of each group the run must log one."""
    inject: Inject
    expects: tuple[Severity, Severity, Severity] = (WARN, PAGE, PAGE)
    """The least that has to be said."""
    fits: Callable[[Patch], bool] = _always
    """Whether the fault means anything where the run stands: no entropy can collapse that is 0 already."""
    reaches: tuple[int, int, int] | None = None
    """Of a leak, the step at which the limit is reached."""


def _entropy_above(least: float) -> Callable[[Patch], bool]:
    return lambda patch: patch.level(*ENTROPY) >= least


def _validates(patch: Patch) -> bool:
    """Often enough that eight validations or so lie before the deadline."""
    return sum(any(key.startswith("val-core/") for key in metrics) for _, metrics in patch.before) >= 4


def _rate_known(patch: Patch) -> bool:
    """Without the configuration nobody can tell it from a change that was meant."""
    return patch.setup.lr is not None


def _reward_counts(patch: Patch) -> bool:
    return patch.level(*REWARD) >= 0.15


def _length_left(patch: Patch) -> bool:
    cap = patch.setup.max_response_length or max(patch.recent("response_length/max", *LENGTH), default=0.0)
    return patch.level(*LENGTH) * 1.7 <= cap and patch.level(*CLIP_RATIO) < 0.4


def _gpu_limit(patch: Patch) -> bool:
    limit, level = patch.setup.gpu_memory_bytes, patch.level(*GPU_MEMORY)
    return limit is not None and 0.0 < level < 0.93 * limit / GIB


def _host_limit(patch: Patch) -> bool:
    limit, level = patch.setup.host_memory_bytes, patch.level(*HOST_MEMORY)
    return limit is not None and 0.0 < level < 0.9 * limit / GIB


KINDS: Final = (
    Kind("nan_loss", (2, 2, 2), "the first update writes the NaN into the weights", (LOSS,), injections.nan_loss),
    Kind(
        "infinite_gradient", (2, 2, 2), "so does a gradient that is not finite", (GRAD,), injections.infinite_gradient
    ),
    Kind(
        "nan_elsewhere",
        (5, 5, 5),
        "what cannot be computed will be in the loss next",
        (ENTROPY,),
        injections.nan_elsewhere,
    ),
    Kind(
        "gradient_explosion",
        (16, 9, 5),
        "a few updates of many times the usual size leave the region where the policy works",
        (GRAD,),
        injections.gradient_explosion,
    ),
    Kind(
        "gradient_instability",
        (40, 40, 40),
        "the spread grows into a divergence within tens of steps",
        (GRAD,),
        injections.gradient_instability,
    ),
    Kind("loss_surge", (12, 10, 8), "ten steps on a wrong objective undo hundreds", (LOSS,), injections.loss_surge),
    Kind(
        "kl_runaway",
        (60, 40, 15),
        "by then the policy is so far from the reference that the KL term rules the loss",
        (("actor/kl_loss", "actor/reward_kl_penalty"),),
        injections.kl_runaway,
    ),
    Kind(
        "ppo_kl_runaway",
        (30, 20, 10),
        "the samples no longer come from the policy",
        (("actor/ppo_kl",),),
        injections.ppo_kl_runaway,
    ),
    Kind(
        "entropy_collapse",
        (75, 50, 25),
        "a policy that no longer explores does not come back",
        (ENTROPY,),
        injections.entropy_collapse,
        fits=_entropy_above(0.03),
    ),
    Kind("entropy_explosion", (60, 40, 22), "the policy is noise", (ENTROPY,), injections.entropy_explosion),
    Kind("length_collapse", (40, 25, 15), "the policy has unlearned to reason", (LENGTH,), injections.length_collapse),
    Kind(
        "length_explosion",
        (50, 35, 20),
        "nearly every answer is cut off and earns nothing",
        (LENGTH, CLIP_RATIO),
        injections.length_explosion,
        fits=_length_left,
    ),
    Kind(
        "reward_collapse",
        (35, 22, 14),
        "what was learned is overwritten",
        (REWARD,),
        injections.reward_collapse,
        fits=_reward_counts,
    ),
    Kind(
        "reward_hacking",
        (120, 120, 120),
        "validation after validation has fallen while the training score rose",
        (("val-core/",), REWARD),
        injections.reward_hacking,
        expects=(WARN, WARN, WARN),
        fits=_validates,
    ),
    Kind(
        "plateau_at_the_floor",
        (160, 130, 90),
        "without exploration the reward stays where it is",
        (ENTROPY, REWARD),
        injections.plateau_at_the_floor,
        fits=_entropy_above(0.05),
    ),
    Kind(
        "dead_run",
        (20, 15, 15),
        "each further step is paid for and teaches nothing",
        (GRAD, ADVANTAGES),
        injections.dead_run,
    ),
    Kind("stuck_metrics", (25, 20, 15), "nobody sees what the run does", (GRAD, LOSS), injections.stuck_metrics),
    Kind(
        "step_time_drift",
        (110, 90, 50),
        "the time of the reservation runs out before the last step",
        (("timing_s/step",),),
        injections.step_time_drift,
    ),
    Kind("step_time_jump", (20, 15, 10), "so it does", (("timing_s/step",),), injections.step_time_jump),
    Kind(
        "slow_generation",
        (20, 15, 10),
        "so it does",
        (("timing_s/gen",), ("timing_s/step",)),
        injections.slow_generation,
    ),
    Kind(
        "gpu_memory_leak",
        tuple(int(0.9 * over) for over in injections.LEAKS),  # type: ignore[arg-type]
        "out of memory; a checkpoint has to be saved before",
        (GPU_MEMORY,),
        injections.gpu_leak,
        fits=_gpu_limit,
        reaches=injections.LEAKS,
    ),
    Kind(
        "host_memory_leak",
        tuple(int(0.9 * over) for over in injections.LEAKS),  # type: ignore[arg-type]
        "the kernel ends the trainer; a checkpoint has to be saved before",
        (HOST_MEMORY,),
        injections.host_leak,
        fits=_host_limit,
        reaches=injections.LEAKS,
    ),
    Kind(
        "wrong_learning_rate",
        (10, 10, 6),
        "ten updates of ten times the size ruin the policy",
        (LR,),
        injections.wrong_rate,
    ),
    Kind(
        "learning_rate_dropped",
        (15, 15, 15),
        "each further step is paid for and teaches little",
        (LR,),
        injections.rate_dropped,
    ),
    Kind(
        "learning_rate_not_restored",
        (20, 20, 16),
        "the resumed run has left the course of the one it continues",
        (LR,),
        injections.rate_not_restored,
        fits=_rate_known,
    ),
    Kind(
        "weight_sync_growth",
        (60, 40, 25),
        "the network is failing, and the next sync may not end",
        (("timing_s/update_weights",), ("timing_s/step",)),
        injections.weight_sync,
    ),
    Kind(
        "rollout_mismatch",
        (70, 50, 28),
        "the gradient is that of another policy",
        (ROLLOUT_KL,),
        injections.rollout_mismatch,
    ),
    Kind(
        "clipfrac_saturated",
        (40, 25, 14),
        "most tokens no longer count",
        (("actor/pg_clipfrac",),),
        injections.clipfrac_saturated,
    ),
    Kind(
        "answers_cut",
        (55, 35, 20),
        "cut answers earn nothing",
        (CLIP_RATIO,),
        injections.answers_cut,
        fits=_length_left,
    ),
    Kind(
        "rollout_failures",
        (40, 20, 10),
        "the batches are no longer what they should be",
        (("response/aborted_ratio",),),
        injections.rollouts_fail,
    ),
)


def applies(kind: Kind, patch: Patch) -> bool:
    """Whether the run logs what the fault moves, and stands where it means something."""
    logged = {key for _, metrics in patch.before for key in metrics}
    for group in kind.needs:
        if not any(key in logged or (key.endswith("/") and any(k.startswith(key) for k in logged)) for key in group):
            return False
    return kind.fits(patch)
