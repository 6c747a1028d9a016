"""All detectors by name, and how a configuration becomes a set of them.

Called by the service for every run, and by the configuration to check the ``detectors`` section at start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.detectors.base import Detector, LiveDetector, StepDetector
from exporter.detectors.gradient_instability import GradientInstability
from exporter.detectors.non_finite import NonFinite
from exporter.detectors.options import unknown_name
from exporter.detectors.rollout_failures import RolloutFailures
from exporter.detectors.silent_run import SilentRun
from exporter.detectors.stalled_phase import StalledPhase
from exporter.detectors.surge import Surge
from exporter.detectors.trainer_exited import TrainerExited

STEP_DETECTORS: Final[Mapping[str, Callable[..., StepDetector]]] = {
    NonFinite.name: NonFinite,
    Surge.name: Surge,
    GradientInstability.name: GradientInstability,
}
LIVE_DETECTORS: Final[Mapping[str, Callable[..., LiveDetector]]] = {
    StalledPhase.name: StalledPhase,
    RolloutFailures.name: RolloutFailures,
    SilentRun.name: SilentRun,
    TrainerExited.name: TrainerExited,
}
NAMES: Final = (*STEP_DETECTORS, *LIVE_DETECTORS)
ENABLED: Final = "enabled"


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


def build_detectors(options: Mapping[str, Mapping[str, Any]] | None = None) -> DetectorSet:
    """Build one run's detectors from options by detector name; ``enabled = false`` leaves one out.

    Raises ``ValueError`` with a sentence for a detector, an option or a value that is wrong.

    >>> detectors = build_detectors({"surge": {"factor": 3.0}, "silent_run": {"enabled": False}})
    >>> [d.name for d in detectors.live]
    ['stalled_phase', 'rollout_failures', 'trainer_exited']
    >>> build_detectors({"surge": {"facter": 3.0}})
    Traceback (most recent call last):
    ValueError: unknown option of detector surge 'facter': did you mean 'factor'? Known: enabled, factor, fast_factor, \
k, n, window, warmup, floors
    """
    chosen = {} if options is None else options
    for name in chosen:
        if name not in NAMES:
            raise unknown_name("detector", name, NAMES)
    return DetectorSet(
        step=tuple(d for name, kind in STEP_DETECTORS.items() if (d := _build(name, kind, chosen.get(name, {})))),
        live=tuple(d for name, kind in LIVE_DETECTORS.items() if (d := _build(name, kind, chosen.get(name, {})))),
    )


def option_names(kind: Callable[..., Any]) -> tuple[str, ...]:
    """Options that a detector takes, with ``enabled``, which all have."""
    return (ENABLED, *inspect.signature(kind).parameters)


def _build(name: str, kind: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    if not isinstance(options, Mapping):
        raise ValueError(f"detector {name}: its options are {options!r}: they must be a table of names and values")
    known = option_names(kind)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of detector {name}", option, known)
    enabled = options.get(ENABLED, True)
    if not isinstance(enabled, bool):
        raise ValueError(f"detector {name}: enabled is {enabled!r}: it must be true or false")
    detector = kind(**{option: value for option, value in options.items() if option != ENABLED})
    return detector if enabled else None
