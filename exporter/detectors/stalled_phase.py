"""Live detector ``stalled_phase``: a phase of the step has been open for longer than it has ever taken, times a factor.

Every phase (verl's timer names) has its own history, so a validation or a checkpoint that is slow each time is
measured by validations and checkpoints. The first steps of an attempt take many times longer than later ones
(compilation, caches, weights to load); they have a history of their own, which counts for first steps only. A phase
that has never ended yet gets a long limit. A duration that is longer than all before counts once its step was logged or
a later one goes on: a phase that hung ends, too, when somebody kills the trainer, and would let the next hang last
longer.

Phases are nested: while a generation hangs, the step around it hangs too. Only the innermost open phase is judged, and
one thing is said. With none open, the time since the last progress is judged in the same way, under the name ``idle``.
That pause, and a step with no phase inside it, may be anything that verl does not time (loading a checkpoint, SFT's
validation): for them no limit is shorter than the long one.
A run whose senders are silent is left to ``silent_run``: what its phase does now is not known.

Score: seconds open over the limit; threshold 1, and half of that for a warning.

Reference: the time-out by longest observed duration is the watchdog of nvidia-resiliency-ext (its "calculated
timeouts": the largest interval seen, times a safety factor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import FRESH_SECONDS, LiveView, Severity, Verdict
from exporter.detectors.options import at_least, more_than

WARNING_SHARE = 0.5
WARM_STEPS = 2
"""Steps at the start of an attempt that have a history of their own."""
MOST_PHASES = 100
"""Phase names come from outside; more than verl has are not remembered."""
IDLE = "idle"
_UNNAMED = ("step", IDLE)

_ADVICE: Mapping[str, tuple[str, ...]] = {
    "gen": (
        "the rollout servers' logs: is one stuck, or out of memory?",
        "actor_rollout_ref.rollout.max_num_seqs and gpu_memory_utilization: lower them",
        "data.max_response_length: lower it, where a few answers never end",
    ),
    "reward": ("reward.custom_reward_function: give what it calls a time-out",),
    "update_weights": ("the network between trainer and rollout servers, NCCL_DEBUG=INFO",),
    "update_actor": ("a collective that waits for a lost rank: NCCL_DEBUG=INFO, py-spy dump on every worker",),
    "save_checkpoint": ("the file system under trainer.default_local_dir: full, slow or gone?",),
    "testing": ("data.val_batch_size and trainer.test_freq, where validation is too much",),
}
_ANY = ("py-spy dump on the trainer and its workers", "ray status: is a node or an actor lost?")


class StalledPhase:
    """The innermost open phase takes far longer than it ever did.

    ``factor``: times the longest duration that make a page. ``floor_seconds``: no limit is shorter.
    ``unknown_seconds``: least limit for a phase that has never ended in this run, and for time that verl names no phase
    for.

    >>> detector = StalledPhase(factor=3, floor_seconds=20)
    >>> for step in range(1, 11):
    ...     detector.phase_closed("gen", 8.0, step)
    ...     detector.phase_closed("step", 10.0, step)
    >>> for now in range(1000, 1040, 5):
    ...     phases = {"step": now - 999.0, "gen": now - 1000.0}
    ...     for v in detector.look(LiveView(float(now), 10, 1, 10, True, last_push=float(now), open_phases=phases)):
    ...         print(now, v.signal, v.severity.label, "since step", v.onset)
    1015 gen warning since step 10
    1020 gen warning since step 10
    1025 gen critical since step 10
    1030 gen critical since step 10
    1035 gen critical since step 10
    """

    name = "stalled_phase"

    def __init__(self, *, factor: float = 3.0, floor_seconds: float = 120.0, unknown_seconds: float = 1800.0) -> None:
        more_than(self.name, "factor", factor, 1.0)
        more_than(self.name, "floor_seconds", floor_seconds, 0.0)
        at_least(self.name, "unknown_seconds", unknown_seconds, floor_seconds)
        self._factor, self._floor, self._unknown = factor, floor_seconds, unknown_seconds
        self._first: dict[str, float] = {}  # phase: longest duration in the first steps of an attempt
        self._later: dict[str, float] = {}  # phase: longest duration in later steps
        # Phase: longest duration that does not count yet, whether of a first step, and the step that has to be logged.
        self._pending: dict[str, tuple[float, bool, int]] = {}
        self._logged = 0  # newest step that this attempt had logged when somebody looked
        self._base: int | None = None  # first step of the attempt that closed a phase
        self._progress = (-1, -1, "")
        self._progress_at = -math.inf
        self._looked = -math.inf

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Learn how long the phase takes. Negative or non-finite durations are ignored."""
        if not (math.isfinite(seconds) and seconds >= 0.0):
            return
        if self._base is None or step < self._base:
            self._base = step
        self._confirm(step - 1)
        warm = step - self._base < WARM_STEPS
        if seconds <= self._history(warm).get(name, -1.0):
            return
        longest, first, of = self._pending.get(name, (0.0, warm, 0))
        if name in self._pending or len(self._pending) < MOST_PHASES:
            # A sender that knows no step says 0.
            self._pending[name] = (max(seconds, longest), first or warm, max(step, self._logged + 1, of))

    def _history(self, warm: bool) -> dict[str, float]:
        return self._first if warm else self._later

    def _confirm(self, step: int) -> None:
        """The steps up to this one are over: how long their phases took counts."""
        for name, (seconds, warm, of) in list(self._pending.items()):
            if of <= step:
                del self._pending[name]
                self._learn(self._history(warm), name, seconds)

    def _learn(self, history: dict[str, float], name: str, seconds: float) -> None:
        if name in history:
            # Capped at the limit: a pause of the whole machine says little of how long a phase may take.
            longest = history[name]
            history[name] = max(longest, min(seconds, max(self._floor, self._factor * longest)))
        elif len(history) < MOST_PHASES:
            history[name] = seconds

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the innermost open phase, or the pause between phases."""
        warm = view.steps_this_attempt < WARM_STEPS
        self._logged = view.logged
        self._confirm(view.logged)
        innermost = min(view.open_phases, key=lambda p: (view.open_phases[p], p == "step"), default="")
        idle = self._idle(view, innermost, warm=warm)
        if not view.running or view.now - view.last_push > FRESH_SECONDS:
            return ()
        phase, seconds = (innermost, view.open_phases[innermost]) if innermost else (IDLE, idle)
        longest = self._longest(phase, warm=warm)
        floor = self._unknown if longest is None or phase in _UNNAMED else self._floor
        limit = max(floor, self._factor * (longest or 0.0))
        score = seconds / limit
        if not score > WARNING_SHARE:
            return ()
        page = score > 1.0
        usual = "has never ended before" if longest is None else f"never took longer than {longest:.3g} s"
        what = "no phase open and no progress" if phase == IDLE else f"phase {phase} open"
        return (
            Verdict(
                detector=self.name,
                signal=phase,
                severity=Severity.CRITICAL if page else Severity.WARNING,
                step=view.step,
                onset=view.step,
                score=score,
                threshold=1.0 if page else WARNING_SHARE,
                confidence=min(0.99, 1.0 - 0.1 / score**2) if page else 0.3,
                summary=f"{what} for {seconds:.0f} s in step {view.step}; it {usual} (limit {limit:.0f} s)",
                meaning=(
                    "The trainer waits for something that does not come: a server that does not answer, a rank that is "
                    "gone, a file system that hangs. Nothing is logged meanwhile."
                ),
                advice=_ADVICE.get(phase, ()) + _ANY,
            ),
        )

    def _longest(self, phase: str, *, warm: bool) -> float | None:
        """Longest duration that counts: in first steps of all steps, in later ones of later steps if there are any."""
        later, first = self._later.get(phase), self._first.get(phase)
        if later is None or first is None:
            return first if later is None else later
        return max(first, later) if warm else later

    def _idle(self, view: LiveView, innermost: str, *, warm: bool) -> float:
        """Seconds since a step was logged or a phase was open, while a run was watched; learns how long that may be."""
        progress = (view.attempt, view.step, innermost)
        watched = 0.0 <= view.now - self._looked <= FRESH_SECONDS
        self._looked = view.now
        if innermost or progress != self._progress or not view.running or not watched:
            idle = view.now - self._progress_at
            if watched and view.running and self._progress[0] == view.attempt and not self._progress[2]:
                self._learn(self._history(warm), IDLE, idle)
            self._progress, self._progress_at = progress, view.now
            return 0.0
        return view.now - self._progress_at

    def resumed(self, step: int, attempt: int) -> None:
        """A new attempt: its first steps are slow again. How long phases take is kept."""
        self._base, self._logged = None, 0
        self._pending.clear()
        self._progress, self._progress_at = (-1, -1, ""), -math.inf

    def state_dict(self) -> dict[str, Any]:
        watched = math.isfinite(self._looked) and math.isfinite(self._progress_at)
        return {
            "first": dict(self._first),
            "later": dict(self._later),
            "pending": {name: list(waits) for name, waits in self._pending.items()},
            "logged": self._logged,
            "base": self._base,
            "progress": [*self._progress, self._progress_at, self._looked] if watched else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first = {name: float(seconds) for name, seconds in state["first"].items()}
        self._later = {name: float(seconds) for name, seconds in state["later"].items()}
        pending = state.get("pending", {})
        self._pending = {name: (float(longest), bool(warm), int(of)) for name, (longest, warm, of) in pending.items()}
        self._logged = state.get("logged", 0)
        self._base = state["base"]
        self._progress, self._progress_at, self._looked = (-1, -1, ""), -math.inf, -math.inf
        if state["progress"] is not None:
            attempt, step, phase, self._progress_at, self._looked = state["progress"]
            self._progress = (attempt, step, phase)
