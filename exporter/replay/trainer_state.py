"""Reads ``trainer_state.json`` of Hugging Face's Trainer (and what builds on it, such as TRL). Called by the replay.

``log_history`` has an entry for each logging and one for each evaluation, both with their step, so a step may come in
two parts. The file is one JSON value and is read whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from exporter.follow.parsing import Garbage, LastStep
from exporter.replay.opened import CUT_OFF, DAMAGED, opened
from exporter.replay.rows import FileUnusable, Found, Row, verl_key, whole_step

MOST_BYTES: Final = 256 * 1024 * 1024


class _State(msgspec.Struct):
    log_history: list[dict[str, Any]]
    max_steps: Any = None


def read_trainer_state(path: Path) -> Iterator[Found]:
    """The entries of ``log_history``, by verl's keys."""
    with opened(path) as file:
        try:
            content = file.read(MOST_BYTES + 1)
        except DAMAGED:
            yield CUT_OFF
            return
    if len(content) > MOST_BYTES:
        raise FileUnusable(f"{path} is larger than {MOST_BYTES >> 20} MiB, which no trainer's state is.")
    try:
        try:
            state = msgspec.json.decode(content, type=_State)
        except msgspec.DecodeError:
            # Python's encoder spells NaN as NaN, which is no JSON.
            state = msgspec.convert(json.loads(content), _State)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise FileUnusable(f"{path} is no trainer_state.json of Hugging Face's Trainer: {error}.") from None
    last = whole_step(state.max_steps) if isinstance(state.max_steps, (int, float)) else None
    if last:
        yield LastStep(last)
    for entry in state.log_history:
        yield _row(entry)


def _row(entry: dict[str, Any]) -> Found:
    said = entry.pop("step", None)
    step = whole_step(said) if isinstance(said, (int, float)) else None
    if step is None:
        return Garbage("an entry of log_history has no step")
    metrics: dict[str, float] = {}
    left_out = 0
    for name, value in entry.items():
        if value is None:
            metrics[verl_key(name)] = math.nan
        elif isinstance(value, (int, float)):
            try:
                metrics[verl_key(name)] = float(value)
            except OverflowError:
                left_out += 1
        else:
            left_out += 1
    return Row(step, metrics, left_out=left_out)
