"""Hook: rollout requests by outcome, counted where they are made (the agent loop workers).

The V1 trainer goes on in silence when requests fail, and no metric of verl says so; counting them is the only way to
see it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1, Hook
from trainer_entry.plugin.wrapping import Target, wrap
from trainer_entry.push import RolloutCounter

_PPO = frozenset({V1, LEGACY})
_ABORTED = frozenset({"abort", "aborted"})
"""Stop reasons of a request that the trainer interrupted to update weights; its rest is asked for again."""


class Rollouts(Hook):
    name = "rollouts"
    targets = (
        Target("verl.workers.rollout.llm_server", "LLMServerClient.generate", trainers=_PPO, since=(0, 8)),
        Target(
            "verl.experimental.agent_loop.agent_loop", "AsyncLLMServerManager.generate", trainers=_PPO, before=(0, 8)
        ),
    )
    not_for: ClassVar[Mapping[str, str]] = {SFT: "SFT has no rollouts"}

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._generate)

    def _generate(self, original: Any) -> Any:
        @functools.wraps(original)
        async def generate(client: Any, *args: Any, **kwargs: Any) -> Any:
            counter = self.runtime.guarded(self.name, self._counter, client)
            if counter is None:
                return await original(client, *args, **kwargs)
            counter.started()
            try:
                output = await original(client, *args, **kwargs)
            except (asyncio.CancelledError, GeneratorExit):
                counter.cancelled()
                raise
            except BaseException:
                counter.failed()
                raise
            if getattr(output, "stop_reason", None) in _ABORTED:
                counter.cancelled()
            else:
                counter.succeeded()
            return output

        return generate

    def _counter(self, client: Any) -> RolloutCounter:
        return self.runtime.rollout_client(getattr(client, "config", None)).rollouts
