"""Live detector ``gpu_idle``: the GPUs do nothing although a step is in progress.

A hang need not leave a phase open for longer than ever, but it leaves the GPUs idle. The mean utilisation over the
run's GPUs has to stay below ``limit``, without a break, for ``seconds``, in one and the same phase of one step.

Phases that idle by nature are known from the run itself: a rollout that waits for tools, a reward that is computed on
the CPU. What a phase idled before it went on sets its limit, times a factor. Validations, checkpoints and the first
steps of an attempt get six times as long. A phase that has not ended a few times yet gets a warning first, and a page
at twice the limit. Nothing is said of GPUs that were never busy (a device that cannot tell, a run on the CPU), without
a fresh reading, or of a run that has gone silent: that one is left to ``silent_run``.

Score: seconds of idleness over the limit; threshold 1.

Reference: a limit from the longest stretch observed, times a factor, is the watchdog of nvidia-resiliency-ext (its
"calculated timeouts"), as in ``stalled_phase``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import LiveView, Severity, Verdict
from exporter.detectors.options import at_most, more_than

FACTOR = 3.0
"""Times the longest stretch that a phase idled and went on."""
PATIENCE = 6.0
"""Times the seconds that slow phases and first steps get."""
SLOW = frozenset(("testing", "save_checkpoint", "start_profile", "stop_profile"))
WARM_STEPS = 2
KNOWN = 3
"""Times a phase has to have ended for its idleness to be known."""
FRESH_SECONDS = 60.0
"""Readings that are older tell nothing."""
HEARD_SECONDS = 5.0
GAP_SECONDS = 60.0
"""The exporter itself was away for so long: what happened meanwhile is not known."""
MOST_PHASES = 100


class GpuIdle:
    """Mean utilisation of all GPUs below ``limit`` (0 to 1) for ``seconds`` within a phase.

    >>> from exporter.detectors.base import GpuView
    >>> detector = GpuIdle()
    >>> for step in range(1, 6):
    ...     detector.phase_closed("update_actor", 20.0, step)
    >>> for now in range(0, 700, 20):
    ...     busy = 0.9 if now < 200 else 0.0
    ...     gpus = tuple(GpuView("a", index, now - 1.0, utilization=busy) for index in range(8))
    ...     phases = {"step": now + 9.0, "update_actor": now + 1.0}
    ...     view = LiveView(float(now), 6, 1, 5, True, float(now), phases, gpus=gpus)
    ...     for v in detector.look(view):
    ...         if now in (500, 520, 680):
    ...             print(now, v.severity.label, f"{v.score:.2f}")
    520 critical 1.07
    680 critical 1.60
    """

    name = "gpu_idle"

    def __init__(self, *, limit: float = 0.1, seconds: float = 300.0) -> None:
        more_than(self.name, "limit", limit, 0.0)
        at_most(self.name, "limit", limit, 1.0, "all of the time")
        more_than(self.name, "seconds", seconds, 0.0)
        self._limit, self._seconds = limit, seconds
        self._longest: dict[str, float] = {}  # phase: longest stretch that it idled and went on
        self._closed: dict[str, int] = {}  # phase: times that it ended
        self._busy = False  # whether the GPUs were seen at work
        self._clear()

    def _clear(self) -> None:
        self._since = math.nan  # beginning of the stretch
        self._where: tuple[int, int, str] | None = None  # attempt, step and phase of it
        self._looked = math.nan

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Learn that the phase has ended, and that its idleness, if any, has too."""
        if name in self._closed or len(self._closed) < MOST_PHASES:
            self._closed[name] = min(self._closed.get(name, 0) + 1, KNOWN)
        if self._where is not None and self._where[2] == name:
            self._over(self._looked)

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the moment."""
        gone_by = view.now - self._looked
        if not 0.0 <= gone_by <= GAP_SECONDS:
            self._clear()
        self._looked = view.now
        readings = [
            gpu.utilization
            for gpu in view.gpus
            if gpu.utilization is not None
            and view.now - gpu.read_at <= FRESH_SECONDS
            and math.isfinite(gpu.utilization)
        ]
        if not (readings and view.running and view.open_phases):
            self._over(math.nan)
            return ()
        mean = sum(readings) / len(readings)
        if mean >= self._limit:
            self._busy = True
            self._over(view.now)
            return ()
        phase = min(view.open_phases, key=lambda name: (view.open_phases[name], name == "step"))
        where = (view.attempt, view.step, phase)
        if where != self._where:
            self._over(view.now)
            self._since, self._where = view.now, where
        if not self._busy or view.now - view.last_push > HEARD_SECONDS:
            return ()
        return self._judge(view, phase, view.now - self._since, mean, len(readings))

    def _over(self, now: float) -> None:
        """The stretch has ended; ``now`` is NaN where that is not by its own doing."""
        if self._where is not None:
            phase, idled = self._where[2], now - self._since
            if idled > self._longest.get(phase, 0.0) and (phase in self._longest or len(self._longest) < MOST_PHASES):
                # Capped: a hang that somebody ended says little of how long the phase may idle.
                self._longest[phase] = min(idled, max(self._seconds, FACTOR * self._longest.get(phase, 0.0)))
        self._since, self._where = math.nan, None

    def _judge(self, view: LiveView, phase: str, idled: float, mean: float, gpus: int) -> Sequence[Verdict]:
        patient = phase in SLOW or view.steps_this_attempt < WARM_STEPS
        longest = self._longest.get(phase, 0.0)
        limit = max(self._seconds * (PATIENCE if patient else 1.0), FACTOR * longest)
        score = idled / limit
        if not score > 1.0:
            return ()
        known = self._closed.get(phase, 0) >= KNOWN
        page = known or score > 2.0
        before = f"it never idled longer than {longest:.0f} s" if longest else "it never idled before"
        return (
            Verdict(
                detector=self.name,
                signal="gpu_utilization",
                severity=Severity.CRITICAL if page else Severity.WARNING,
                step=view.step,
                onset=view.step,
                score=score,
                threshold=1.0,
                confidence=min(0.9, 1.0 - 0.3 / score) if page else 0.3,
                summary=(
                    f"{gpus} GPUs at {mean:.0%} on average for {idled:.0f} s in phase {phase} of step {view.step}; "
                    f"{before if known else 'that phase has hardly ended yet in this run'} (limit {limit:.0f} s)"
                ),
                meaning=(
                    "A step is in progress and the GPUs do nothing: the trainer waits for something off the GPU that "
                    "does not come, a tool, a server, a file system or a lost process."
                ),
                advice=(
                    "py-spy dump on the trainer and its workers: what do they wait for?",
                    "reward.custom_reward_function and the tools of actor_rollout_ref.rollout.multi_turn: time-outs",
                    "ray status: is a node or an actor lost?",
                ),
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """A new attempt: the stretch is over. How long phases idle is kept."""
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "longest": dict(self._longest),
            "closed": dict(self._closed),
            "busy": self._busy,
            "since": None if self._where is None else self._since,
            "where": None if self._where is None else list(self._where),
            "looked": self._looked if math.isfinite(self._looked) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._longest = {name: float(seconds) for name, seconds in state["longest"].items()}
        self._closed = {name: int(times) for name, times in state["closed"].items()}
        self._busy = bool(state["busy"])
        self._clear()
        if state["where"] is not None:
            attempt, step, phase = state["where"]
            self._since, self._where = float(state["since"]), (int(attempt), int(step), str(phase))
        self._looked = math.nan if state["looked"] is None else float(state["looked"])
