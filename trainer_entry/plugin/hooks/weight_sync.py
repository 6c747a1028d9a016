"""Hook: the rollout engines received new weights, and how long that took.

``CheckpointEngineManager.update_weights`` is a coroutine behind verl's ``auto_await``, which looks at the frame of its
caller to decide whether to await. A wrapper around it would be that caller and change the decision, so the coroutine
inside is wrapped and ``auto_await`` is put around it again.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

from exporter.protocol import WeightsSynced
from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1, Hook
from trainer_entry.plugin.runtime import now
from trainer_entry.plugin.wrapping import Target, wrap


class WeightSync(Hook):
    name = "weight_sync"
    targets = (
        Target(
            "verl.checkpoint_engine.base", "CheckpointEngineManager.update_weights", trainers=frozenset({V1, LEGACY})
        ),
    )
    not_for: ClassVar[Mapping[str, str]] = {SFT: "SFT has no rollout engine to send weights to"}

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._update_weights)

    def _update_weights(self, original: Any) -> Any:
        inner = inspect.unwrap(original)
        if inspect.iscoroutinefunction(original):
            return self._timed_coroutine(original)
        if inspect.iscoroutinefunction(inner):
            from verl.utils.ray_utils import auto_await

            return functools.wraps(original)(auto_await(self._timed_coroutine(inner)))
        return self._timed_call(original)

    def _timed_coroutine(self, original: Any) -> Any:
        @functools.wraps(original)
        async def update_weights(manager: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            result = await original(manager, *args, **kwargs)
            self.runtime.guarded(self.name, self._synced, began, args, kwargs)
            return result

        return update_weights

    def _timed_call(self, original: Any) -> Any:
        @functools.wraps(original)
        def update_weights(manager: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            result = original(manager, *args, **kwargs)
            self.runtime.guarded(self.name, self._synced, began, args, kwargs)
            return result

        return update_weights

    def _synced(self, began: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step = kwargs.get("global_steps", args[0] if args else None)
        self.runtime.send(
            WeightsSynced(
                time=now(),
                step=int(step) if step is not None else self.runtime.last_step,
                seconds=time.monotonic() - began,
            )
        )
