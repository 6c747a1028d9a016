"""Which signals the detector ``surge`` watches, in which direction, and what to say when one leaves its range.

A table, read by :mod:`exporter.detectors.surge` only. Floors are in the signal's unit and were set well above what
healthy runs of verl log.
"""

from __future__ import annotations

from dataclasses import dataclass

_LR = (
    "actor_rollout_ref.actor.optim.lr (SFT: optim.lr): lower it, and compare what the run logs with what is configured"
)
_CLIP = "actor_rollout_ref.actor.optim.clip_grad (SFT: optim.clip_grad): lower it"
_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size: raise it; ppo_epochs: lower it"


@dataclass(frozen=True, slots=True)
class SurgeWatch:
    """One signal, watched in one direction."""

    signal: str
    floor: float
    """Rising: magnitudes below it are never high. Falling: the least drop from the median. In the signal's unit."""
    meaning: str
    advice: tuple[str, ...]
    falls: bool = False
    slack: float = 1.0
    """Ratios are divided by it: above 1 for a signal that grows in a healthy run."""
    before: int = 0
    """Steps by which the cause comes before the step that shows it: verl computes entropy before the step's update."""

    @property
    def key(self) -> str:
        return f"{self.signal} falling" if self.falls else self.signal


WATCHES = (
    SurgeWatch(
        "loss",
        0.01,
        "The loss has left its usual range: the policy moves away from what the batch asks for, or the data changed.",
        (_LR, _CLIP, "data.train_files: look at the batch of the onset"),
    ),
    SurgeWatch(
        "grad_norm",
        0.0,
        "Gradients grow out of their usual range. Clipping bounds the length of a step, not its direction: the updates "
        "are driven by a few samples.",
        (_CLIP, _LR, _BATCH),
    ),
    SurgeWatch(
        "critic_loss",
        0.01,
        "The value model diverges; its advantages will mislead the policy.",
        ("critic.optim.lr", "critic.optim.clip_grad", "critic.cliprange_value"),
    ),
    SurgeWatch(
        "kl",
        0.05,
        "The policy runs away from the reference: it forgets what it knew, and the reward model is asked about text it "
        "has never seen.",
        (
            "actor_rollout_ref.actor.kl_loss_coef (or algorithm.kl_ctrl.kl_coef): raise it",
            _LR,
            "actor_rollout_ref.actor.ppo_epochs: lower it",
        ),
        slack=1.5,
    ),
    SurgeWatch(
        "ppo_kl",
        0.01,
        "One step moves the policy much further than before: updates are too large for the batch they come from.",
        (_LR, "actor_rollout_ref.actor.ppo_epochs: lower it", "actor_rollout_ref.actor.clip_ratio: lower it"),
    ),
    SurgeWatch(
        "pg_clipfrac",
        0.05,
        "Far more tokens than before reach the clip range: the policy leaves its trust region.",
        (_LR, _BATCH, "actor_rollout_ref.actor.clip_ratio"),
    ),
    SurgeWatch(
        "entropy",
        0.05,
        "The policy becomes much more random from one step to the next: it loses what it learned.",
        (_LR, "actor_rollout_ref.actor.entropy_coeff: lower it", "actor_rollout_ref.rollout.temperature"),
        before=1,
    ),
    SurgeWatch(
        "entropy",
        0.05,
        "The policy collapses onto few tokens within some steps: nothing is explored any more.",
        (_LR, "actor_rollout_ref.actor.entropy_coeff: raise it", "actor_rollout_ref.actor.kl_loss_coef: raise it"),
        falls=True,
        before=1,
    ),
)
