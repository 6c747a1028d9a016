"""Measures the gradients that this process holds, by layer. Called in a training process, at the optimizer step.

No collective operation: each rank measures its own shard, and what it finds can be added up (:func:`merged`). A
gradient that several ranks hold whole is measured by one of them. Torch is imported when there is something to measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LOWEST_LOG2 = -40
BINS = 64
"""Each one power of two wide, from 2^-40 to 2^24; before the first stands what is smaller, behind the last the rest."""

MOST_LAYERS = 5000
CHUNK = 1 << 22
"""Values that are looked at in one go: 16 MB of float32, whatever the size of a layer."""


@dataclass(slots=True)
class Layer:
    """Of one parameter. All but the counts are of the finite values; a layer without any has no extremes."""

    count: int = 0
    """Values, those that are not finite included."""
    non_finite: int = 0
    zeros: int = 0
    total: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    bins: list[int] = field(default_factory=lambda: [0] * (BINS + 2))
    """Of log2 of the absolute value; zeros are in none of them."""

    @property
    def norm(self) -> float:
        return math.sqrt(self.squares)

    @property
    def mean(self) -> float:
        finite = self.count - self.non_finite
        return self.total / finite if finite else math.nan

    @property
    def deviation(self) -> float:
        finite = self.count - self.non_finite
        return math.sqrt(max(0.0, self.squares / finite - self.mean**2)) if finite else math.nan

    def add(self, other: Layer) -> None:
        """Take in another shard of the same layer.

        >>> one, other = Layer(count=2, squares=9.0, lowest=-1.0), Layer(count=1, squares=16.0, lowest=-4.0)
        >>> one.add(other)
        >>> one.count, one.norm, one.lowest
        (3, 5.0, -4.0)
        """
        self.count += other.count
        self.non_finite += other.non_finite
        self.zeros += other.zeros
        self.total += other.total
        self.squares += other.squares
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.bins = [mine + its for mine, its in zip(self.bins, other.bins, strict=True)]


def measured(parameters: Iterable[tuple[str, Any]], scale: float = 1.0) -> dict[str, Layer]:
    """The layers of ``parameters`` (name and tensor) that have a gradient here; gradients are divided by ``scale``."""
    found: dict[str, Layer] = {}
    for name, parameter in parameters:
        gradient = getattr(parameter, "grad", None)
        if gradient is None or not _is_ours(gradient):
            continue
        if len(found) >= MOST_LAYERS:
            break
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        found[name] = layer_of(local, scale)
    return found


def layer_of(gradient: Any, scale: float = 1.0) -> Layer:
    """The statistics of one dense tensor of real numbers, on whatever device it is."""
    import torch

    layer = Layer()
    values = gradient.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    values = values.reshape(-1)
    for begin in range(0, values.numel(), CHUNK):
        chunk = values[begin : begin + CHUNK].to(torch.float32)
        if scale != 1.0:
            chunk = chunk / scale
        finite = chunk[torch.isfinite(chunk)]
        part = Layer(count=chunk.numel(), non_finite=chunk.numel() - finite.numel())
        if finite.numel():
            size = finite.abs()
            # Doubles where the device has them: squares of float32 gradients may overflow, or vanish.
            wide = finite.double() if finite.device.type in ("cpu", "cuda") else finite
            sums = torch.stack((wide.sum(), wide.square().sum(), wide.min(), wide.max())).tolist()
            part.total, part.squares, part.lowest, part.highest = map(float, sums)
            size = size[size > 0]
            part.zeros = finite.numel() - size.numel()
            places = (torch.log2(size).floor() - LOWEST_LOG2).clamp(-1, BINS).to(torch.int64) + 1
            part.bins = torch.bincount(places, minlength=BINS + 2).tolist()
        layer.add(part)
    return layer


def _is_ours(gradient: Any) -> bool:
    """Whether this rank is the one to measure it: of those that hold the same values, the first does."""
    mesh = getattr(gradient, "device_mesh", None)
    if mesh is not None:
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return False
        replicated = [place for place, kind in enumerate(gradient.placements) if kind.is_replicate()]
        return all(coordinate[place] == 0 for place in replicated)
    return True


def merged(shards: Iterable[Mapping[str, Layer]]) -> dict[str, Layer]:
    """What several ranks measured of one step, in the order of the first that has each layer."""
    found: dict[str, Layer] = {}
    for shard in shards:
        for name, layer in shard.items():
            if name in found:
                found[name].add(layer)
            else:
                found[name] = layer
    return found
