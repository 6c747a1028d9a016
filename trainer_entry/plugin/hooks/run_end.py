"""Hook: the run has ended, and how.

``Tracking.finish(exit_code)`` exists since 0.9 and its exit code means something with V1 only (elsewhere it is called
from ``__del__``, with 0 even after an exception). The end of ``fit`` is there in all versions and knows whether it
raised, so that comes first; ``finish`` covers a tracking that was opened by something else. Only the first of them
counts.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from exporter.protocol import RunFinished
from trainer_entry.plugin.hooks.base import Hook
from trainer_entry.plugin.hooks.fit import FIT_TARGETS, kind_of
from trainer_entry.plugin.runtime import now
from trainer_entry.plugin.wrapping import Target, wrap


class RunEnd(Hook):
    name = "run_end"
    targets = (Target("verl.utils.tracking", "Tracking.finish", since=(0, 9)), *FIT_TARGETS)

    def install(self, module: ModuleType, target: Target) -> None:
        if target.attribute == "Tracking.finish":
            wrap(module, target.attribute, self.name, self._finish)
        else:
            kind = kind_of(target)
            wrap(module, target.attribute, self.name, lambda original: self._fit(original, kind))

    def _finish(self, original: Any) -> Any:
        runtime = self.runtime

        @functools.wraps(original)
        def finish(tracking: Any, *args: Any, **kwargs: Any) -> Any:
            if not runtime.finished and runtime.trainer is None:
                code = kwargs.get("exit_code", args[0] if args else None)
                runtime.guarded(self.name, self._ended, code if isinstance(code, int) else None)
            return original(tracking, *args, **kwargs)

        return finish

    def _fit(self, original: Any, kind: str) -> Any:
        runtime = self.runtime

        @functools.wraps(original)
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            runtime.guarded(self.name, runtime.enter_fit, trainer, kind)
            code = 1
            try:
                result = original(trainer, *args, **kwargs)
                code = 0
                return result
            finally:
                runtime.guarded(self.name, self._ended, code)

        return fit

    def _ended(self, exit_code: int | None) -> None:
        self.runtime.finish(RunFinished(time=now(), exit_code=exit_code))
