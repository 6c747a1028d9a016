"""What a picture of a recovery shows: which signals, as lines by attempt, and which steps are marked. Pure, without
matplotlib; drawn by :mod:`exporter.postmortem.picture`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from exporter.postmortem.material import Material
from exporter.signals import SIGNALS

ALWAYS: Final = ("grad_norm", "loss", "kl", "ppo_kl", "reward", "lr", "step_time", "host_memory")
MOST_SIGNALS: Final = 6
AROUND: Final = 60
"""Steps before the onset, or the target, that are shown."""
LOG_RANGE: Final = 100.0
"""A signal that is always above 0, and spans a larger factor, is drawn by its logarithm."""

Part = Literal["before", "failed", "after", "other"]
What = Literal["onset", "planned", "target"]


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt of one signal. ``values`` that are not finite are NaN and named in ``lost``."""

    part: Part
    attempt: int
    steps: list[int]
    values: list[float]
    lost: list[int]


@dataclass(frozen=True, slots=True)
class Panel:
    signal: str
    unit: str
    lines: list[Line]
    logarithmic: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line."""

    step: int
    what: What


@dataclass(frozen=True, slots=True)
class Plot:
    panels: list[Panel]
    marks: list[Mark]


def plot_of(material: Material) -> Plot:
    """Empty where nothing was remembered."""
    it = material.recovery
    places: tuple[tuple[int | None, What], ...] = (
        (it.resumed_from, "target"),
        (it.onset, "onset"),
        (it.planned_at_step, "planned"),
    )
    marks = [Mark(step, what) for step, what in places if step is not None]
    first = min([mark.step for mark in marks], default=0) - AROUND
    steps = [one for one in material.steps if one.step >= first]
    panels = []
    for signal in _signals(material):
        lines = []
        for attempt in sorted({one.attempt for one in steps}):
            known = [
                (one.step, one.signals[signal]) for one in steps if one.attempt == attempt and signal in one.signals
            ]
            if known:
                lines.append(
                    Line(
                        part=_part(attempt, it.attempt, it.new_attempt),
                        attempt=attempt,
                        steps=[step for step, _ in known],
                        values=[value if math.isfinite(value) else math.nan for _, value in known],
                        lost=[step for step, value in known if not math.isfinite(value)],
                    )
                )
        if lines:
            panels.append(Panel(signal, SIGNALS[signal].unit, lines, _logarithmic(lines)))
    return Plot(panels, marks)


def _part(attempt: int, failed: int, new: int | None) -> Part:
    if attempt == failed:
        return "failed"
    if new is not None and attempt == new:
        return "after"
    return "before" if attempt < failed else "other"


def _signals(material: Material) -> list[str]:
    """Those with findings first; a name that is no signal of ours is left out."""
    found = [str(one.get("signal", "")) for one in material.recovery.incidents]
    present = {name for one in material.steps for name in one.signals}
    wanted = dict.fromkeys([*found, *ALWAYS])
    return [name for name in wanted if name in present and name in SIGNALS][:MOST_SIGNALS]


def _logarithmic(lines: list[Line]) -> bool:
    values = [value for line in lines for value in line.values if not math.isnan(value)]
    return bool(values) and min(values) > 0.0 and max(values) / min(values) > LOG_RANGE
