"""A replay buffer for verl's V1 trainer that looks for finished rollouts every 20 ms instead of every 2 s.

Configured, not patched in: `trainer.v1.sampler.custom_sampler.path=pkg://trainer_entry.cpu.replay_buffer` and
`.name=FastReplayBuffer`. With verl's own interval every generation phase of a toy run takes 2 s, all of it waiting.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.02


class FastReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's buffer for synchronous training, with a short poll interval."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "poll_interval": POLL_SECONDS})
