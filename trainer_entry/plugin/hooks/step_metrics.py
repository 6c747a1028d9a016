"""Hook: the metrics of each step, and the configuration at the start.

verl has no way to register a tracking backend (the list is fixed), so ``Tracking.__init__`` and ``Tracking.log`` are
wrapped. Seen with all trainers of 0.7.1 to 0.9.1. Opening the tracking is also the moment at which the trainer is
ready, and at which the plugin says which hooks are in place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from exporter.protocol import RunStarted, Scalar
from trainer_entry.changes import records
from trainer_entry.configuration import MAX_KEPT_TEXT, flatten
from trainer_entry.plugin import memory
from trainer_entry.plugin.hooks.base import Hook
from trainer_entry.plugin.runtime import now
from trainer_entry.plugin.wrapping import Target, wrap


class StepMetrics(Hook):
    name = "step_metrics"
    targets = (
        Target("verl.utils.tracking", "Tracking.__init__"),
        Target("verl.utils.tracking", "Tracking.log"),
    )

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._log if target.attribute.endswith(".log") else self._init)

    def _init(self, original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(tracking: Any, *args: Any, **kwargs: Any) -> None:
            self.runtime.guarded(self.name, self._opened, signature, (tracking, *args), kwargs)
            original(tracking, *args, **kwargs)

        return __init__

    def _log(self, original: Any) -> Any:
        runtime = self.runtime

        @functools.wraps(original)
        def log(tracking: Any, *args: Any, **kwargs: Any) -> Any:
            client = runtime.client
            if client is not None:
                try:
                    data = kwargs["data"] if "data" in kwargs else args[0]
                    step = int(kwargs["step"] if "step" in kwargs else args[1])
                    runtime.logged(step, data)
                    held = runtime.memory.newest
                    client.step(step, data if held is None else {**data, memory.METRIC: held})
                except Exception as error:  # noqa: BLE001 - as Runtime.guarded, without its cost on the hot path
                    runtime.failed("step_metrics", error)
            return original(tracking, *args, **kwargs)

        return log

    def _opened(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = signature.bind(*args, **kwargs).arguments
        config = given.get("config")
        config = config if isinstance(config, Mapping) else None
        client = self.runtime.open_trainer(
            str(given.get("project_name", "")), str(given.get("experiment_name", "")), config
        )
        self.runtime.config = flatten(config or {}, MAX_KEPT_TEXT)
        settings = self.runtime.settings
        self.runtime.guarded(self.name, records.keep_config, settings.state_dir, settings.attempt, self.runtime.config)
        self.runtime.memory.start()
        self.runtime.at_finish.append(self.runtime.memory.stop)
        client.event(RunStarted(time=now(), config=flatten(config or {}) | self._limit()))
        for call in tuple(self.runtime.at_open):
            self.runtime.guarded(self.name, call)

    def _limit(self) -> dict[str, Scalar]:
        """What the run may hold of the node's memory, beside its configuration."""
        found = memory.limit(self.runtime.settings.memory_limit)
        return {} if found is None else {memory.LIMIT_SETTING: found}
