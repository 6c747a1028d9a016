"""Hook: end the run cleanly when the supervisor asks, after the step that follows the one in progress.

The supervisor writes ``stop-request`` with the attempt it means into the run's state directory. A thread in the
process that runs the training loop moves the finish line: ``trainer.total_training_steps = trainer.global_steps +
1``. verl then ends that step, saves, validates and returns by itself, with exit code 0.

Before a rollback the request says ``"save": false``: the weights are spoilt, and with a limit on the number of
checkpoints kept (``trainer.max_actor_ckpt_to_keep``) that last save could make verl delete the very target.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer_entry.plugin.hooks.base import SFT, Hook
from trainer_entry.plugin.hooks.fit import FIT_TARGETS
from trainer_entry.plugin.wrapping import Target, wrap

POLL_SECONDS = 0.25
REQUEST_NAME = "stop-request"
_MAX_REQUEST_BYTES = 4096


class CleanStop(Hook):
    name = "clean_stop"
    targets = FIT_TARGETS

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._fit)

    def unavailable(self) -> str:
        """Without a known loop there is no finish line to move. Ranks of SFT see the request at different moments and
        would end at different steps, which is a deadlock.
        """
        if self.runtime.trainer is None:
            return "the training loop is one that verl's own trainers do not have"
        ranks = _world_size() if self.runtime.trainer_kind == SFT else 1
        if ranks > 1:
            return f"SFT on {ranks} ranks cannot agree on a last step; the supervisor stops it with SIGTERM"
        return ""

    def _fit(self, original: Any) -> Any:
        @functools.wraps(original)
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            over = threading.Event()
            self.runtime.guarded(self.name, self._watch, trainer, over)
            try:
                return original(trainer, *args, **kwargs)
            finally:
                over.set()

        return fit

    def _watch(self, trainer: Any, over: threading.Event) -> None:
        threading.Thread(
            target=lambda: self.runtime.guarded(self.name, self._wait, trainer, over),
            name="verl-sentinel-stop",
            daemon=True,
        ).start()

    def _wait(self, trainer: Any, over: threading.Event) -> None:
        while not over.wait(POLL_SECONDS):
            directory = self.runtime.settings.state_dir
            # The state directory is known at the latest when the tracking is open, early in fit.
            if directory is None or self.runtime.client is None or self.unavailable():
                continue
            request = read_request(directory / REQUEST_NAME, self.runtime.settings.attempt)
            if request is not None:
                if request.get("save") is False:
                    _forbid_saves(trainer)
                step = getattr(trainer, "global_steps", None)
                last = (self.runtime.last_step if step is None else int(step)) + 1
                trainer.total_training_steps = min(int(trainer.total_training_steps), last)
                self.runtime.report(f"asked to stop: training ends after step {trainer.total_training_steps}")
                return


def read_request(path: Path, attempt: int) -> dict[str, Any] | None:
    """The request that asks this attempt to stop; None for one for another attempt, or that is no request at all."""
    try:
        with path.open("rb") as file:
            request = json.loads(file.read(_MAX_REQUEST_BYTES))
    except (OSError, ValueError):
        return None
    return request if isinstance(request, dict) and request.get("attempt") == attempt else None


def _forbid_saves(trainer: Any) -> None:
    """No further checkpoint of the PPO trainers, which look at this at every step. SFT saves its last step anyway."""
    settings = getattr(getattr(trainer, "config", None), "trainer", None)
    if settings is not None and hasattr(settings, "save_freq"):
        settings.save_freq = -1


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
