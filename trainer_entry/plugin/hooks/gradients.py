"""Hook: the gradients of an optimizer step, by layer, before they are clipped; when the exporter asks for them.

verl's workers do the optimizer step, so the hook sits there, counts, and does nothing else until it is armed. The
request comes to the trainer's process with an answer to its pushes, which arms the workers of its own worker groups.
SFT trains where it logs and arms itself.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from types import ModuleType
from typing import Any

from exporter.protocol import HistogramRequest
from trainer_entry.gradients.armed import STATE
from trainer_entry.plugin.hooks.base import SFT, Hook
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.plugin.wrapping import Target, wrap

FOLDER = "gradients"
"""In the run's state directory."""

REMEMBERED = 100


class Gradients(Hook):
    name = "gradients"
    targets = (Target("verl.workers.engine.fsdp.transformer_impl", "FSDPEngine.optimizer_step", since=(0, 8)),)

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._known: deque[str] = deque(maxlen=REMEMBERED)
        runtime.on_histogram = self.asked

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._optimizer_step)

    def _optimizer_step(self, original: Any) -> Any:
        runtime = self.runtime

        @functools.wraps(original)
        def optimizer_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                STATE.measure(engine)
            except Exception as error:  # noqa: BLE001 - as Runtime.guarded, without its cost on the hot path
                runtime.failed("gradients", error)
            return original(engine, *args, **kwargs)

        return optimizer_step

    def asked(self, request: HistogramRequest) -> None:
        """An answer of the exporter carries a request; the same one again is ignored. Returns at once."""
        if request.id in self._known or request.steps < 1:
            return
        self._known.append(request.id)
        threading.Thread(
            target=lambda: self.runtime.guarded(self.name, self._carry_out, request),
            name="verl-sentinel-gradients",
            daemon=True,
        ).start()

    def _carry_out(self, request: HistogramRequest) -> None:
        from trainer_entry.gradients.gathering import Gathering, InThisProcess, RayWorkers

        runtime = self.runtime
        directory, client = runtime.settings.state_dir, runtime.client
        if directory is None or client is None:
            return
        groups = [getattr(runtime.trainer, name, None) for name in ("actor_rollout_wg", "critic_wg")]
        found = [group for group in groups if group is not None]
        if not found and runtime.trainer_kind != SFT:
            runtime.report("gradient histograms were asked for, but this trainer has no worker groups that could tell")
            return
        gathering = Gathering(
            request=request,
            workers=InThisProcess() if runtime.trainer_kind == SFT else RayWorkers(found),
            folder=directory / FOLDER,
            run=(client.run.run_id, client.run.attempt),
            logged=lambda: runtime.last_step,
            over=lambda: runtime.finished,
            told=runtime.send,
        )
        files = gathering.carry_out()
        runtime.report(f"{files} gradient histograms written to {directory / FOLDER}: {request.reason}")
