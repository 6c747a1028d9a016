"""Hook of a changed run: leave out the training batches that follow the restored place in the data, once.

As PaLM's training did after a spike of the loss. verl keeps the place in the data with torchdata's
``StatefulDataLoader``: after a resume the loader is read on by so many batches, and its new state is put in the place
of the restored one. Within one epoch only, for what comes after it is drawn anew. Where that cannot be done, nothing is
changed, and it is said.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from exporter.protocol import SettingApplied
from trainer_entry.plugin.hooks.base import Hook
from trainer_entry.plugin.hooks.changed_settings import LOADS
from trainer_entry.plugin.runtime import now
from trainer_entry.plugin.wrapping import Target, wrap

NAME = "data.skip_steps"


class CannotSkip(Exception):
    """The message is the reason."""


class SkippedBatches(Hook):
    name = "skipped_batches"
    targets = LOADS

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._load)

    def _load(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(trainer, *args, **kwargs)
            self.runtime.guarded(self.name, self._skip, trainer, bool(getattr(trainer, "global_steps", 0) or result))
            return result

        return load

    def _skip(self, trainer: Any, resumed: bool) -> None:
        wanted = self.runtime.changes.skip_steps
        try:
            if not resumed:
                raise CannotSkip("nothing was resumed, so there is no place in the data to go on from")
            before, after = skip(getattr(trainer, "train_dataloader", None), wanted)
        except CannotSkip as error:
            proof = SettingApplied(time=now(), name=NAME, wanted=wanted, found=0, ok=False, reason=str(error))
            self.runtime.report(f"no batches are skipped: {error}")
        else:
            proof = SettingApplied(time=now(), name=NAME, wanted=wanted, restored=before, found=after - before)
            self.runtime.report(f"{wanted} batches are skipped: the epoch goes on after batch {after}, not {before}")
        self.runtime.proofs.add(proof)


def skip(loader: Any, count: int) -> tuple[int, int]:
    """Read the loader on by ``count`` batches; returns its place in the epoch before and after, in batches.

    Raises CannotSkip, and the loader then is as it was.
    """
    restored = getattr(loader, "next_iter_state", None)
    if restored is None:
        raise CannotSkip("its data loader restored no place in the data")
    before = _place(restored)
    with _RandomStateKept():
        try:
            length = len(loader)
        except TypeError:
            length = None
        if before is None:
            raise CannotSkip("the state of its data loader does not say where in the epoch it is")
        if length is not None and before + count >= length:
            raise CannotSkip(f"only {length - before} batches are left in the epoch")
        try:
            batches = iter(loader)
            for _ in range(count):
                next(batches)
            state = loader.state_dict()
        except Exception as error:
            loader.load_state_dict(restored)
            raise CannotSkip(f"its data loader failed meanwhile: {type(error).__name__}: {str(error)[:200]}") from error
        after = _place(state)
        if after != before + count:
            loader.load_state_dict(restored)
            raise CannotSkip("its data loader does not count the batches it has given")
        loader.load_state_dict(state)
        return before, after


def _place(state: Any) -> int | None:
    """Batches given in this epoch, by either form of the loader's state (with and without worker processes)."""
    if not isinstance(state, dict):
        return None
    snapshot = state.get("_snapshot")
    if isinstance(snapshot, dict):
        parts = (snapshot.get("_snapshot_step"), state.get("_steps_since_snapshot", 0))
        return sum(parts) if all(isinstance(part, int) for part in parts) else None
    found = state.get("_num_yielded")
    return found if isinstance(found, int) else None


class _RandomStateKept:
    """Making an iterator draws from torch's generator, which the checkpoint has just restored."""

    def __enter__(self) -> None:
        import torch

        self._state = torch.get_rng_state()

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_rng_state(self._state)
