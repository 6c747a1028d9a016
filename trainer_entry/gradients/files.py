"""The files of gradient histograms: one a step, JSON lines, in ``<state_dir>/gradients``. Written by the plugin, read
by ``verl-sentinel-train gradients``.

The first line says what it is of, each other line is a layer. Numbers that are not finite are spelled as on the wire.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.protocol import json_number
from trainer_entry.gradients.measuring import BINS, LOWEST_LOG2, Layer

FORMAT = 1
MOST_FILES = 60
MOST_BYTES = 200 * 1024 * 1024
"""Of all files of a run together; the oldest go."""
READ_BYTES = 64 * 1024 * 1024


class GradientFileError(ValueError):
    """A file cannot be shown; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class About:
    """What a file is of."""

    run_id: str
    attempt: int
    step: int
    """The training step."""
    update: int
    """Optimizer steps of this model since the attempt began, this one included."""
    model: str
    """``actor`` or ``critic``."""
    ranks: Sequence[int]
    """Whose shards are in it."""
    world_size: int
    reason: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Written:
    """A file, and the figures of the event that tells of it."""

    path: Path
    layers: int
    norm: float
    largest_layer: str
    largest_norm: float
    non_finite: int


def write(folder: Path, about: About, layers: Mapping[str, Layer]) -> Written:
    """Write one file whole or not at all, and remove old ones. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"attempt-{about.attempt}-step-{about.step:08d}-{about.model}-{about.update}.jsonl"
    path, partial = folder / name, folder / f"{name}.partial"
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(_head(about)) + "\n")
            for layer, found in layers.items():
                file.write(json.dumps(_line(layer, found)) + "\n")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _trim(folder, path)
    largest = max(layers, key=lambda layer: layers[layer].norm, default="")
    return Written(
        path=path,
        layers=len(layers),
        norm=math.sqrt(sum(found.squares for found in layers.values())),
        largest_layer=largest,
        largest_norm=layers[largest].norm if largest else 0.0,
        non_finite=sum(found.non_finite for found in layers.values()),
    )


def _head(about: About) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run_id": about.run_id,
        "attempt": about.attempt,
        "step": about.step,
        "update": about.update,
        "model": about.model,
        "ranks": list(about.ranks),
        "world_size": about.world_size,
        "reason": about.reason,
        "time": about.time,
        "lowest_log2": LOWEST_LOG2,
        "bins": BINS,
    }


def _line(name: str, found: Layer) -> dict[str, Any]:
    finite = found.count > found.non_finite
    return {
        "layer": name,
        "count": found.count,
        "non_finite": found.non_finite,
        "zeros": found.zeros,
        "norm": json_number(found.norm),
        "min": found.lowest if finite else None,
        "max": found.highest if finite else None,
        "mean": json_number(found.mean),
        "std": json_number(found.deviation),
        "histogram": found.bins,
    }


def _trim(folder: Path, newest: Path) -> None:
    """Keep the newest files within the bounds; the one just written stays."""
    known = [(path.stat().st_mtime, path.stat().st_size, path) for path in folder.glob("*.jsonl") if path != newest]
    left_files, left_bytes = MOST_FILES - 1, MOST_BYTES - newest.stat().st_size
    for _, size, path in sorted(known, reverse=True):
        left_files -= 1
        left_bytes -= size
        if left_files < 0 or left_bytes < 0:
            path.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head and the layers of a file. Raises :class:`GradientFileError`."""
    try:
        if path.stat().st_size > READ_BYTES:
            raise GradientFileError(f"{path} has more than {READ_BYTES >> 20} MB: it is no gradient histogram of ours.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise GradientFileError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise GradientFileError(f"{path} is no text: it is no gradient histogram of ours.") from None
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            one = None
        if not isinstance(one, dict) or (number == 1 and one.get("format") != FORMAT):
            wanted = f"the head of a gradient histogram of format {FORMAT}" if number == 1 else "a layer as JSON"
            raise GradientFileError(f"{path}, line {number}: expected {wanted}.")
        found.append(one)
    if not found:
        raise GradientFileError(f"{path} is empty.")
    return found[0], found[1:]
