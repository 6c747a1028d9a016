"""Hook: a checkpoint was saved. The manifest is written beside training, on a thread, and then reported.

``trainer.checkpoint_callback_class`` would be verl's own way, but it exists in 0.9.1's V1 only and its exceptions abort
training; so the save itself is wrapped.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType
from typing import Any

from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1, Hook
from trainer_entry.plugin.manifests import ManifestThread, Save
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.plugin.tiers import TierThread
from trainer_entry.plugin.wrapping import Target, wrap
from trainer_entry.settings import CHECKPOINTS


class Checkpoints(Hook):
    name = "checkpoints"
    targets = (
        Target(
            "verl.trainer.ppo.v1.trainer_base", "PPOTrainer._save_checkpoint", trainers=frozenset({V1}), since=(0, 9)
        ),
        Target("verl.trainer.ppo.ray_trainer", "RayPPOTrainer._save_checkpoint", trainers=frozenset({LEGACY})),
        Target(
            "verl.utils.checkpoint.checkpoint_handler", "CheckpointHandler.save_checkpoint", trainers=frozenset({SFT})
        ),
    )

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._thread = ManifestThread(runtime)
        runtime.at_finish.append(self._thread.finish)
        if os.environ.get(CHECKPOINTS, "").strip():
            tiers = TierThread(runtime)
            self._thread.after.append(tiers.saved)
            runtime.at_open.append(tiers.opened)
            runtime.at_finish.append(tiers.finish)

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._handler if SFT in target.trainers else self._trainer)

    def _trainer(self, original: Any) -> Any:
        @functools.wraps(original)
        def _save_checkpoint(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            save = self.runtime.guarded(self.name, _of_trainer, trainer)
            return self._around(save, original, trainer, *args, **kwargs)

        return _save_checkpoint

    def _handler(self, original: Any) -> Any:
        @functools.wraps(original)
        def save_checkpoint(handler: Any, *args: Any, **kwargs: Any) -> Any:
            step = kwargs.get("step", args[0] if args else None)
            save = self.runtime.guarded(self.name, _of_handler, handler, step)
            return self._around(save, original, handler, *args, **kwargs)

        return save_checkpoint

    def _around(self, save: Save | None, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the save; when it returned, and this process is the trainer, hand it to the manifest thread."""
        client = self.runtime.client
        if client is None or save is None:
            return original(*args, **kwargs)
        self.runtime.guarded(self.name, self._thread.begin, save)
        token = client.phases.begin("save_checkpoint") if self.runtime.trainer_kind == SFT else 0
        began = time.monotonic()
        try:
            result = original(*args, **kwargs)
        finally:
            client.phases.end(token)
        self.runtime.guarded(self.name, self._thread.saved, save, time.monotonic() - began)
        return result


def _of_trainer(trainer: Any) -> Save:
    step = int(trainer.global_steps)
    root = str(trainer.config.trainer.default_local_dir)
    actor = trainer.config.actor_rollout_ref.actor
    checkpoint = actor.get("checkpoint", None) or {}
    return Save(
        os.path.abspath(os.path.join(root, f"global_step_{step}")),
        step,
        bool(checkpoint.get("async_save", False)),
        _batches(getattr(trainer, "train_dataloader", None)),
    )


def _of_handler(handler: Any, step: Any) -> Save:
    return Save(
        os.path.abspath(os.path.join(str(handler.default_local_dir), f"global_step_{int(step)}")),
        int(step),
        False,
        _batches(getattr(handler, "train_dataloader", None)),
    )


def _batches(loader: Any) -> int | None:
    """Batches of an epoch; None for data without an end."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, ValueError):
        return None
