"""Which limits the detector ``fixed_limits`` knows: the signal, the direction, the unit, and what to say of it.

A table, read by :mod:`exporter.detectors.fixed_limits` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from exporter.detectors.base import StepSample

Rule = Literal["k_of_n", "in_a_row", "percentile", "over_median"]

_LR = "actor_rollout_ref.actor.optim.lr (SFT: optim.lr): lower it"
_CLIP = "actor_rollout_ref.actor.optim.clip_grad (SFT: optim.clip_grad): lower it"
_TIME = (
    "the parts of the step (timing_s/…) at the onset: which of them grew",
    "actor_rollout_ref.rollout.n, data.max_response_length: lower them, where it is the generation",
)


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on one signal."""

    option: str
    signal: str
    unit: str
    """As words that follow a number."""
    meaning: str
    advice: tuple[str, ...]
    below: bool = False
    """Passed by what is below it."""
    rule: Rule = "k_of_n"
    capacity: Literal["", "gpu_memory_bytes", "host_memory_bytes"] = ""
    """What the signal is taken as a share of, in :class:`~exporter.detectors.setup.RunSetup`."""
    least: float | None = 0.0
    """A limit has to be above it; None: any number will do."""
    most: float = float("inf")

    @property
    def key(self) -> str:
        """Names its state; an option can be about two signals."""
        return f"{self.option} {self.signal}"

    def reading(self, value: float, sample: StepSample) -> float | None:
        """What is compared with the limit; None where it cannot be known."""
        if not self.capacity:
            return value
        whole: float | None = getattr(sample.setup, self.capacity)
        return value / whole if whole else None


LIMITS: Final = (
    Limit("step_seconds_p95", "step_time", "s", "Steps take longer than they may.", _TIME, rule="percentile"),
    Limit("step_seconds", "step_time", "s", "Steps take longer than they may.", _TIME, rule="in_a_row"),
    Limit(
        "kl_above",
        "kl",
        "nats",
        "The policy is further from the reference than it may be.",
        ("actor_rollout_ref.actor.kl_loss_coef (or algorithm.kl_ctrl.kl_coef): raise it", _LR),
    ),
    Limit(
        "kl_below",
        "kl",
        "nats",
        "The policy hardly moves away from the reference: it may not be learning. Many GRPO runs live there and learn.",
        ("actor_rollout_ref.actor.optim.lr: raise it", "actor_rollout_ref.actor.kl_loss_coef: lower it"),
        below=True,
    ),
    Limit(
        "memory_ratio",
        "gpu_memory",
        "of the GPU's memory",
        "The next long batch may not fit into the GPU.",
        (
            "actor_rollout_ref.rollout.gpu_memory_utilization: lower it",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu: lower it",
        ),
        capacity="gpu_memory_bytes",
        most=1.0,
    ),
    Limit(
        "memory_ratio",
        "host_memory",
        "of the host's memory",
        "The host may soon end a process of the run for want of memory.",
        ("data.dataloader_num_workers: lower it", "actor_rollout_ref.actor.fsdp_config.optimizer_offload: false"),
        capacity="host_memory_bytes",
        most=1.0,
    ),
    Limit(
        "loss_times",
        "loss",
        "times its recent median",
        "The loss is far from where it was. One of a policy gradient is near 0, where that says little.",
        (_LR, _CLIP),
        rule="over_median",
        least=1.0,
    ),
    Limit("grad_norm_above", "grad_norm", "", "Gradients are larger than they may be.", (_CLIP, _LR)),
    Limit(
        "entropy_below",
        "entropy",
        "nats",
        "The policy explores less than it has to.",
        ("actor_rollout_ref.actor.entropy_coeff: raise it", _LR),
        below=True,
    ),
    Limit(
        "reward_below",
        "reward",
        "",
        "The policy earns less than it has to.",
        (_LR, "reward.custom_reward_function: check what it returns"),
        below=True,
        least=None,
    ),
    Limit(
        "response_length_above",
        "response_length",
        "tokens",
        "Responses are longer than they may be.",
        ("data.max_response_length", "reward.custom_reward_function: penalise what is too long"),
    ),
    Limit(
        "clip_ratio_above",
        "clip_ratio",
        "of the responses",
        "More responses than allowed are cut at the length limit, and mostly earn nothing for it.",
        ("data.max_response_length: raise it", "reward.custom_reward_function: penalise what is too long"),
        most=1.0,
    ),
    Limit("throughput_below", "throughput", "tokens a second and GPU", "The run is too slow.", _TIME, below=True),
    Limit("mfu_below", "mfu", "of peak FLOPs", "The GPUs compute less than they have to.", _TIME, below=True, most=1.0),
)
