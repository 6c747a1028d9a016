"""All detectors by name, and how a configuration becomes a set of them.

Called by the service and by replay for every run, and by the configuration to check its sections ``detection`` and
``detectors`` at start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from exporter.detectors.aborted_rollouts import AbortedRollouts
from exporter.detectors.base import Detector, LiveDetector, StepDetector
from exporter.detectors.calibration import Budget
from exporter.detectors.clipping import Clipping
from exporter.detectors.communication import Communication
from exporter.detectors.dead_run import DeadRun
from exporter.detectors.entropy import Entropy
from exporter.detectors.fixed_limits import FixedLimits
from exporter.detectors.gpu_idle import GpuIdle
from exporter.detectors.gpu_memory_pressure import GpuMemoryPressure
from exporter.detectors.gradient_instability import GradientInstability
from exporter.detectors.kl import Kl
from exporter.detectors.learning_rate import LearningRate
from exporter.detectors.level import Level
from exporter.detectors.memory import Memory
from exporter.detectors.non_finite import NonFinite
from exporter.detectors.options import unknown_name
from exporter.detectors.presets import DEFAULT_PRESET, ENABLED, in_effect
from exporter.detectors.response_length import ResponseLength
from exporter.detectors.reward import Reward
from exporter.detectors.rollout_failures import RolloutFailures
from exporter.detectors.rollout_mismatch import RolloutMismatch
from exporter.detectors.silent_run import SilentRun
from exporter.detectors.slow_worker import SlowWorker
from exporter.detectors.stalled_phase import StalledPhase
from exporter.detectors.step_time import StepTime
from exporter.detectors.stragglers import Stragglers
from exporter.detectors.surge import Surge
from exporter.detectors.trainer_exited import TrainerExited

STEP_DETECTORS: Final[Mapping[str, Callable[..., StepDetector]]] = {
    NonFinite.name: NonFinite,
    Surge.name: Surge,
    GradientInstability.name: GradientInstability,
    Level.name: Level,
    Kl.name: Kl,
    Entropy.name: Entropy,
    ResponseLength.name: ResponseLength,
    Clipping.name: Clipping,
    RolloutMismatch.name: RolloutMismatch,
    Reward.name: Reward,
    LearningRate.name: LearningRate,
    DeadRun.name: DeadRun,
    StepTime.name: StepTime,
    Communication.name: Communication,
    AbortedRollouts.name: AbortedRollouts,
    Memory.name: Memory,
    FixedLimits.name: FixedLimits,
    SlowWorker.name: SlowWorker,
}
LIVE_DETECTORS: Final[Mapping[str, Callable[..., LiveDetector]]] = {
    StalledPhase.name: StalledPhase,
    RolloutFailures.name: RolloutFailures,
    SilentRun.name: SilentRun,
    TrainerExited.name: TrainerExited,
    GpuIdle.name: GpuIdle,
    GpuMemoryPressure.name: GpuMemoryPressure,
    Stragglers.name: Stragglers,
}
NAMES: Final = (*STEP_DETECTORS, *LIVE_DETECTORS)
BUDGET: Final = "budget"
"""The keyword by which a detector takes the false-page budget; no option of a user's."""


@dataclass(frozen=True, slots=True)
class DetectorSet:
    """The detectors of one run, with their state."""

    step: tuple[StepDetector, ...]
    live: tuple[LiveDetector, ...]

    def all(self) -> tuple[Detector, ...]:
        """Both kinds."""
        return (*self.step, *self.live)

    def resumed(self, step: int, attempt: int) -> None:
        """Tell all of them that a new attempt has started from checkpoint ``step``."""
        for detector in self.all():
            detector.resumed(step, attempt)

    def state_dict(self) -> dict[str, Any]:
        """State of all of them as plain data, by name."""
        return {detector.name: detector.state_dict() for detector in self.all()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; a detector that the state does not have starts fresh."""
        for detector in self.all():
            if detector.name in state:
                detector.load_state_dict(state[detector.name])


class DetectorPlan:
    """How the detectors of a run are built: checked once, here, and then called for every run.

    Args:
        options: a user's, by detector; they go before those of the preset. ``enabled = false`` leaves a detector out.
        preset: a name in :data:`exporter.detectors.presets.PRESETS`.
        budget: handed to every detector that calibrates its thresholds.

    Raises ``ValueError`` with a sentence for a preset, a detector, an option or a value that is wrong.
    """

    def __init__(
        self,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        preset: str = DEFAULT_PRESET,
        budget: Budget | None = None,
    ) -> None:
        together = in_effect(preset, options or {})
        for name in together:
            if name not in NAMES:
                raise unknown_name("detector", name, NAMES)
        budget = Budget() if budget is None else budget
        self._step = _makers(STEP_DETECTORS, together, budget)
        self._live = _makers(LIVE_DETECTORS, together, budget)

    def __call__(self) -> DetectorSet:
        """Fresh detectors of one run."""
        return DetectorSet(
            step=tuple([kind(**chosen) for kind, chosen in self._step]),
            live=tuple([kind(**chosen) for kind, chosen in self._live]),
        )


def build_detectors(
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    preset: str = DEFAULT_PRESET,
    budget: Budget | None = None,
) -> DetectorSet:
    """Build the detectors of one run. Whoever builds those of many makes a :class:`DetectorPlan` once.

    >>> detectors = build_detectors({"surge": {"factor": 3.0}, "silent_run": {"enabled": False}})
    >>> "surge" in detectors.state_dict(), "silent_run" in detectors.state_dict()
    (True, False)
    >>> build_detectors({"surge": {"facter": 3.0}})
    Traceback (most recent call last):
    ValueError: unknown option of detector surge 'facter': did you mean 'factor'? Known: enabled, factor, fast_factor, \
k, n, window, warmup, floors
    """
    return DetectorPlan(options, preset=preset, budget=budget)()


def option_names(kind: Callable[..., Any]) -> tuple[str, ...]:
    """Options that a detector takes, with ``enabled``, which all have."""
    return (ENABLED, *(name for name in _parameters(kind) if name != BUDGET))


@lru_cache(maxsize=128)
def _parameters(kind: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


_Kind = Callable[..., Any]


def _makers(
    kinds: Mapping[str, _Kind], options: Mapping[str, Mapping[str, Any]], budget: Budget
) -> tuple[tuple[_Kind, Mapping[str, Any]], ...]:
    """Each detector that is to be built, with its checked arguments."""
    found = []
    for name, kind in kinds.items():
        chosen = options.get(name, {})
        known = option_names(kind)
        for option in chosen:
            if option not in known:
                raise unknown_name(f"option of detector {name}", option, known)
        enabled = chosen.get(ENABLED, True)
        if not isinstance(enabled, bool):
            raise ValueError(f"detector {name}: {ENABLED} is {enabled!r}: it must be true or false")
        given = {option: value for option, value in chosen.items() if option != ENABLED}
        arguments = given | ({BUDGET: budget} if BUDGET in _parameters(kind) else {})
        try:
            detector = kind(**arguments)
        except (TypeError, AttributeError) as error:  # a table where a number is expected, and the like
            raise ValueError(f"detector {name}: its options {given!r} cannot be used: {error}") from None
        if enabled and getattr(detector, "watches_anything", True):
            found.append((kind, arguments))
    return tuple(found)
