"""Where the training loop is, by trainer: used by the hooks that wrap it (run end and clean stop)."""

from __future__ import annotations

from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1
from trainer_entry.plugin.wrapping import Target

FIT_TARGETS = (
    Target("verl.trainer.ppo.v1.trainer_base", "PPOTrainer.fit", trainers=frozenset({V1}), since=(0, 9)),
    Target("verl.trainer.ppo.ray_trainer", "RayPPOTrainer.fit", trainers=frozenset({LEGACY})),
    Target("verl.trainer.sft_trainer", "SFTTrainer.fit", trainers=frozenset({SFT}), since=(0, 8)),
)


def kind_of(target: Target) -> str:
    """The one trainer whose loop the target is."""
    (kind,) = target.trainers
    return kind
