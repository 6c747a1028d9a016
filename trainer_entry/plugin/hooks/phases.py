"""Hook: the phase in progress, from which the heartbeat is made.

PPO times its phases with ``marked_timer``, which ``verl.utils.profiler`` re-exports from one of three modules and
which the trainers import by name. SFT has no phases: there the optimizer step is one, and from one to the next it is
``step``.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType, TracebackType
from typing import Any

from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1, Hook
from trainer_entry.plugin.wrapping import Target, wrap
from trainer_entry.push import PhaseBoard

_PPO = frozenset({V1, LEGACY})
_SFT = frozenset({SFT})
_OTHER = "verl.workers.engine.{}.transformer_impl"


class Phases(Hook):
    name = "phases"
    targets = (
        Target("verl.utils.profiler", "marked_timer", trainers=_PPO),
        Target("verl.workers.engine.fsdp.transformer_impl", "FSDPEngine.optimizer_step", trainers=_SFT, since=(0, 8)),
        Target(_OTHER.format("megatron"), "MegatronEngine.optimizer_step", trainers=_SFT, optional=True),
        Target(_OTHER.format("veomni"), "VeOmniEngine.optimizer_step", trainers=_SFT, optional=True),
        Target(_OTHER.format("torchtitan"), "TorchTitanEngine.optimizer_step", trainers=_SFT, optional=True),
        Target(_OTHER.format("automodel"), "AutomodelEngine.optimizer_step", trainers=_SFT, optional=True),
    )

    def install(self, module: ModuleType, target: Target) -> None:
        if target.attribute != "marked_timer":
            wrap(module, target.attribute, self.name, self._optimizer_step)
            return
        original = module.__dict__.get("marked_timer")
        wrap(module, target.attribute, self.name, self._marked_timer)
        # Modules that were imported before the plugin hold the original by name.
        for name, other in list(sys.modules.items()):
            if name.startswith("verl.") and getattr(other, "__dict__", {}).get("marked_timer") is original:
                other.marked_timer = module.marked_timer  # type: ignore[attr-defined]

    def _marked_timer(self, original: Any) -> Any:
        runtime = self.runtime

        @functools.wraps(original)
        def marked_timer(name: str, *args: Any, **kwargs: Any) -> Any:
            timer = original(name, *args, **kwargs)
            client = runtime.client
            return timer if client is None else _Timed(timer, client.phases, name)

        return marked_timer

    def _optimizer_step(self, original: Any) -> Any:
        runtime = self.runtime
        step_token = 0

        @functools.wraps(original)
        def optimizer_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal step_token
            client = runtime.client
            if client is None or runtime.trainer_kind != SFT or runtime.finished:
                return original(engine, *args, **kwargs)
            token = client.phases.begin("optimizer_step")
            try:
                return original(engine, *args, **kwargs)
            finally:
                client.phases.end(token)
                client.phases.end(step_token)
                step_token = client.phases.begin("step")

        return optimizer_step


class _Timed:
    """verl's timer, with the phase open while it runs. The timer's own exceptions and suppression pass through."""

    __slots__ = ("_name", "_phases", "_timer", "_token")

    def __init__(self, timer: Any, phases: PhaseBoard, name: str) -> None:
        self._timer = timer
        self._phases = phases
        self._name = str(name)
        self._token = 0

    def __enter__(self) -> Any:
        self._token = self._phases.begin(self._name)
        return self._timer.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> Any:
        try:
            return self._timer.__exit__(kind, error, trace)
        finally:
            self._phases.end(self._token)
