"""What a training process keeps of a request for histograms: how many updates are left to measure, what was measured.

Called by the hook at each optimizer step, and from the trainer's process through Ray (:func:`arm`, :func:`collect`),
which finds these functions by their names; so there is one state for the process, and its lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from trainer_entry.gradients.measuring import Layer, measured

MOST_UPDATES = 100
"""That one request may ask for."""

MOST_KEPT = 16
"""Measured updates that wait to be collected; each is some 100 KB for a model of 300 layers."""

ACTOR, CRITIC = "actor", "critic"


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank measured at one update."""

    request: str
    model: str
    update: int
    """Of this model since the process began: the same number on every rank."""
    time: float
    """Unix seconds."""
    rank: int
    world_size: int
    layers: dict[str, Layer]


class Armed:
    """Of one process.

    >>> state = Armed()
    >>> state.arm("a", 2), state.arm("a", 2)                 # the same request again changes nothing
    (True, False)
    >>> state.due("actor"), state.due("actor"), state.due("actor")
    (True, True, False)
    """

    def __init__(self) -> None:
        self.pending = False
        """Whether any model of this process may have an update to measure. Read without the lock, at every update."""
        self.updates: dict[str, int] = {}
        """Updates of each model so far."""
        self.fault = ""
        """Why the newest update could not be measured."""
        self._lock = threading.Lock()
        self._request = ""
        self._steps = 0
        self._left: dict[str, int] = {}
        self._found: deque[Shard] = deque(maxlen=MOST_KEPT)

    def arm(self, request: str, steps: int) -> bool:
        """Measure the next ``steps`` updates of each model here."""
        with self._lock:
            if request == self._request:
                return False
            self._request, self._steps = request, min(max(steps, 0), MOST_UPDATES)
            self._left = {}
            self._found.clear()
            self.pending = self._steps > 0
            return True

    def due(self, model: str) -> bool:
        """Whether the update that begins now is to be measured."""
        with self._lock:
            left = self._left.setdefault(model, self._steps)
            self._left[model] = max(0, left - 1)
            self.pending = any(self._left.values())
            return left > 0

    def measure(self, engine: Any) -> None:
        """Count an update, and measure it where that is asked for."""
        model = CRITIC if "ValueHead" in type(engine).__name__ else ACTOR
        update = self.updates[model] = self.updates.get(model, 0) + 1
        if not self.pending or not self.due(model):
            return
        scaler = getattr(engine, "scaler", None)
        layers = measured(engine.module.named_parameters(), float(scaler.get_scale()) if scaler is not None else 1.0)
        rank, world_size = _place()
        with self._lock:
            self._found.append(Shard(self._request, model, update, time.time(), rank, world_size, layers))

    def collect(self, request: str) -> list[Shard]:
        """Take what was measured for a request."""
        with self._lock:
            found = [shard for shard in self._found if shard.request == request]
            self._found.clear()
            return found


STATE = Armed()


def arm(_worker: Any, request: str, steps: int) -> bool:
    """:meth:`Armed.arm` in a Ray worker."""
    return STATE.arm(request, steps)


def collect(_worker: Any, request: str) -> list[Shard]:
    """:meth:`Armed.collect` in a Ray worker."""
    return STATE.collect(request)


def _place() -> tuple[int, int]:
    import torch

    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return int(distributed.get_rank()), int(distributed.get_world_size())
