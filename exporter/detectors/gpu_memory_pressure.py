"""Live detector ``gpu_memory_pressure``: a GPU fills up, by what the device itself says.

The step detector ``memory`` sees what the trainer's process reserved, once a step. The device also has the rollout
engine's memory and that of strangers, and a step may last an hour. Here the share in use of the fullest GPU is taken as
its peak in each slot of ``slot_seconds``, so the saw-tooth of a step (weights and caches that go and come) does not
show, and the peaks are judged as ``memory`` judges steps: growth that is steady, larger than any fall before it, and
not carried on to more than three times the time that was seen. A share that is high and stays is nothing: a rollout
engine takes what it was given.

Score: the horizon over the time to the limit; threshold 1, and half of that for a warning.

Reference: see :mod:`exporter.detectors.growth`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exporter.detectors.base import Forecast, LiveView, Severity, Verdict
from exporter.detectors.climb import Climb
from exporter.detectors.growth import Growth
from exporter.detectors.memory import GPU_ADVICE, PAGE_LARGEST, PAGE_RISES, SEEN_SHARE, SLACKENS, TOOTH, steady
from exporter.detectors.options import at_most, more_than

FRESH_SECONDS = 60.0
GAP_SLOTS = 3.0
"""Slots without a reading after which what was seen before is forgotten."""
LEAST_SEEN = 10
"""Slots of growth below which nothing is said."""
LEAST_CLIMB = 0.02
MOST_STEPS = 100


class GpuMemoryPressure:
    """The fullest GPU reaches its end within ``horizon_seconds``; nothing is said below the share ``above``.

    ``slot_seconds``: readings within it count as one.

    >>> from exporter.detectors.base import GpuView
    >>> detector = GpuMemoryPressure()
    >>> for now in range(0, 7200, 15):
    ...     used = 0.7 + max(0, now - 3000) / 10000
    ...     card = GpuView("a", 0, now - 1.0, memory_used=min(used, 1.0) * 80e9, memory_total=80e9)
    ...     for v in detector.look(LiveView(float(now), now // 600, 1, now // 600, True, float(now), gpus=(card,))):
    ...         if now == 5100:
    ...             print(v.severity.label, "since step", v.onset, f"full in {v.forecast.seconds / 60:.0f} min")
    critical since step 4 full in 16 min
    """

    name = "gpu_memory_pressure"

    def __init__(self, *, above: float = 0.85, horizon_seconds: float = 1800.0, slot_seconds: float = 60.0) -> None:
        more_than(self.name, "above", above, 0.0)
        at_most(self.name, "above", above, 1.0, "all of the memory")
        more_than(self.name, "horizon_seconds", horizon_seconds, 0.0)
        more_than(self.name, "slot_seconds", slot_seconds, 0.0)
        self._above, self._horizon, self._slot_seconds = above, horizon_seconds, slot_seconds
        self._restart()

    def _restart(self) -> None:
        self._climb = Climb()
        self._begun = math.nan  # time at which slot 0 began
        self._slot, self._peak = 0, 0.0  # the slot in progress
        self._steps: deque[tuple[int, int]] = deque(maxlen=MOST_STEPS)  # slot in which a step was first seen, step

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Not needed here."""

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the moment. A moment without a reading adds nothing."""
        share = max(_shares(view), default=None)
        if not view.running or share is None:
            return ()
        slot = math.floor((view.now - self._begun) / self._slot_seconds) if self._begun == self._begun else -1
        if not self._slot <= slot <= self._slot + GAP_SLOTS:
            self._restart()
            self._begun, self._peak, slot = view.now, share, 0
        if slot > self._slot:
            if self._climb.push(self._slot, self._peak):
                self._climb.said = self._judge(view)
            self._slot, self._peak = slot, share
        self._peak = max(self._peak, share)
        if not self._steps or self._steps[-1][1] != view.step:
            self._steps.append((slot, view.step))
        return self._said(view)

    def _judge(self, view: LiveView) -> Verdict | None:
        """Whether the peaks of the slots grow towards the end; the verdict's times count from the slot in progress."""
        if self._peak <= self._above or not any(rise > LEAST_CLIMB for rise, _ in self._climb.heights()):
            return None
        growth = self._climb.growth(steady)
        if growth is None or not growth.rise > TOOTH * self._climb.deepest_tooth():
            return None
        when = growth.arrival(1.0)
        if when is None or growth.seen < LEAST_SEEN or growth.level <= self._above:
            return None
        seconds, early, late = (slots * self._slot_seconds for slots in when)
        page = (
            seconds <= self._horizon
            and growth.seen >= SEEN_SHARE * when.steps
            and growth.rises >= PAGE_RISES
            and growth.largest <= PAGE_LARGEST
            and growth.bending >= SLACKENS
            and self._climb.settles_at(growth) > 1.0
        )
        if not page and not seconds < 2.0 * self._horizon:
            return None
        score = min(self._horizon / max(seconds, 1.0), self._horizon)
        return Verdict(
            detector=self.name,
            signal="gpu_memory_used",
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=view.step,
            onset=self._step_at(growth, view.step),
            score=score,
            threshold=1.0 if page and score > 1.0 else 0.5,
            confidence=0.8 if page else 0.3,
            summary=(
                f"the fullest GPU went from {growth.shape.base:.1%} to {growth.level:.1%} of its memory within "
                f"{growth.seen * self._slot_seconds / 60.0:.0f} min; full in {seconds / 60.0:.0f} min "
                f"({early / 60.0:.0f} to {late / 60.0:.0f})"
            ),
            meaning="Something on the GPU keeps growing between and within steps. At its end a process on it dies.",
            advice=GPU_ADVICE,
            forecast=Forecast(1.0, None, seconds),
        )

    def _step_at(self, growth: Growth, step: int) -> int:
        """The step in progress when the growth began."""
        began = [first for slot, first in self._steps if slot <= growth.onset]
        return min(began[-1] if began else self._steps[0][1], step)

    def _said(self, view: LiveView) -> Sequence[Verdict]:
        verdict = self._climb.said
        return () if verdict is None else (replace(verdict, step=max(view.step, verdict.onset)),)

    def resumed(self, step: int, attempt: int) -> None:
        """New processes have fresh memory: forget everything."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "climb": self._climb.state_dict(),
            "begun": self._begun if math.isfinite(self._begun) else None,
            "slot": self._slot,
            "peak": self._peak,
            "steps": [list(pair) for pair in self._steps],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        self._climb.load_state_dict(state["climb"])
        self._begun = math.nan if state["begun"] is None else float(state["begun"])
        self._slot, self._peak = int(state["slot"]), float(state["peak"])
        self._steps.extend((int(slot), int(step)) for slot, step in state["steps"])


def _shares(view: LiveView) -> list[float]:
    """Memory in use over memory there is, of every GPU that tells both and was read lately."""
    return [
        min(gpu.memory_used / gpu.memory_total, 1.0)
        for gpu in view.gpus
        if gpu.memory_used is not None
        and gpu.memory_total is not None
        and 0.0 <= gpu.memory_used < math.inf
        and 0.0 < gpu.memory_total < math.inf
        and view.now - gpu.read_at <= FRESH_SECONDS
        and not gpu.lost
    ]
