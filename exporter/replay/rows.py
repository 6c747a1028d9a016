"""What every reader of a past run yields, and what is common to them. Called by the readers and by the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from exporter.follow.parsing import MAX_KEY_LENGTH, MAX_STEP, Garbage, LastStep

MOST_METRICS: Final = 20_000
"""Of one step: what has more is no log of a training."""


class FileUnusable(Exception):
    """The file cannot be read, or is none that replay knows; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One step, or a part of one, in the order of the file."""

    step: int
    metrics: dict[str, float]
    writer: str = ""
    """The process or attempt that logged it, where the file says so: another one is another start of the trainer."""
    run: str = ""
    """Name of the run, where one file holds several."""
    time: float = 0.0
    """Unix seconds when it was logged; 0 where the file does not say."""
    left_out: int = 0
    """Values that are no numbers."""


Found = Row | Garbage | LastStep
Reader = Callable[[Path], Iterator[Found]]
"""Begins to read a file. Raises :class:`FileUnusable` where it cannot be read at all."""

# Hugging Face's Trainer and TRL's GRPO, by the keys of verl that mean the same. The trainer's state has the bare names,
# its W&B and TensorBoard callbacks put them below ``train/`` and ``eval/``.
_BARE = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/lr",
    "reward": "critic/score/mean",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "completions/mean_length": "response_length/mean",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "step_time": "timing_s/step",
}
VERL_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {**_BARE, **{f"train/{name}": key for name, key in _BARE.items()}, "eval_loss": "val/loss", "eval/loss": "val/loss"}
)


def verl_key(name: str) -> str:
    """The key under which verl logs what another trainer calls ``name``; the name itself where there is none.

    >>> verl_key("train/learning_rate"), verl_key("eval_loss"), verl_key("actor/lr")
    ('train/lr', 'val/loss', 'actor/lr')
    """
    return VERL_KEYS.get(name, name)[:MAX_KEY_LENGTH]


def whole_step(value: float) -> int | None:
    """A step that was written as any number; None for what is no step.

    >>> whole_step(12.0), whole_step(0.5), whole_step(-1), whole_step(float("nan"))
    (12, None, None, None)
    """
    return int(value) if 0 <= value < MAX_STEP and value == int(value) else None


def listed(names: Iterable[str], most: int) -> str:
    """Names for a sentence.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
