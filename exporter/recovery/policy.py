"""What the operator allows: which findings may trigger which action, in which mode, how often.

Read from the configuration file by ``exporter.config``; the engine gets it through its constructor. Every check raises
``ValueError`` with a sentence, which msgspec turns into a ``ValidationError`` that carries the path in the file.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from exporter.detectors.base import Severity
from exporter.recovery.facts import LIVE_DETECTORS, OpenIncident

Mode = Literal["observe", "approve", "auto"]
Action = Literal["rollback", "stop"]

DAY_SECONDS = 86_400.0
"""Length of the window in which the budget is counted."""

_OF_TRAINING = (
    *("non_finite", "surge", "gradient_instability", "kl", "entropy", "response_length", "clipping"),
    *("rollout_mismatch", "learning_rate", "dead_run", "level", "reward", "aborted_rollouts"),
)
_SEVERITIES = {"warning": Severity.WARNING, "critical": Severity.CRITICAL}


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Findings of these detectors, from this severity up, may trigger this action."""

    detectors: tuple[str, ...]
    action: Action = "rollback"
    severity: Literal["warning", "critical"] = "critical"

    def __post_init__(self) -> None:
        if not self.detectors:
            raise ValueError("detectors is empty: name at least one detector, or remove this trigger")

    def matches(self, incident: OpenIncident) -> bool:
        return incident.detector in self.detectors and incident.severity >= _SEVERITIES[self.severity]


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a stage may last, in seconds. A stage that lasts longer fails the recovery, and a person is told."""

    command_seconds: float = 120.0
    """From the command being ready to a supervisor taking it."""
    stop_seconds: float = 600.0
    """From the supervisor taking the command to the trainer being gone."""
    start_seconds: float = 900.0
    """From the trainer being gone to the new attempt having been started."""
    step_seconds: float = 3600.0
    """From the start of the new attempt to its first healthy step, and from one healthy step to the next."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}: it must be more than 0 seconds")


class RecoveryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``[recovery]`` section of the configuration."""

    mode: Mode = "observe"
    """``observe`` records what it would do, ``approve`` waits for a person, ``auto`` acts."""
    trigger: Literal["alertmanager", "direct"] = "alertmanager"
    """``direct``: the exporter's own incidents trigger, for an installation without Alertmanager."""
    triggers: tuple[Trigger, ...] = (Trigger(detectors=(*_OF_TRAINING, *sorted(LIVE_DETECTORS))),)
    """The first that matches counts. Unless a policy says so, a run that is only slow, or full, is left to a person: a
    checkpoint is no answer to that. So are the limits of the operations manual, which do not know the run."""
    agreement: int = 2
    """Distinct signals that must be critical together where none is certain; two that say nearly the same are one."""
    certainty: float = 0.99
    """A finding with at least this confidence needs no second one."""
    margin_steps: int = 1
    """Checkpoints of this many steps before the onset are not trusted either."""
    budget_per_day: int = 3
    """Recoveries of one run in any 24 hours."""
    cooldown_seconds: float = 600.0
    """From the end of one recovery of a run to the plan of its next."""
    success_steps: int = 3
    """Healthy steps in a row that the new attempt must push past the target."""
    deadlines: Deadlines = Deadlines()

    def __post_init__(self) -> None:
        if not self.triggers:
            raise ValueError('triggers is empty: no finding could ever trigger anything; use mode = "observe" instead')
        if self.agreement < 1:
            raise ValueError(f"agreement is {self.agreement}: at least 1 signal has to be critical")
        if not 0 < self.certainty <= 1:
            raise ValueError(f"certainty is {self.certainty}: it is a confidence, more than 0 and at most 1")
        if self.margin_steps < 0:
            raise ValueError(f"margin_steps is {self.margin_steps}: a checkpoint after the onset is never a target")
        if self.budget_per_day < 1:
            raise ValueError(f'budget_per_day is {self.budget_per_day}: to allow no recovery use mode = "observe"')
        if not 0 <= self.cooldown_seconds < float("inf"):
            raise ValueError(f"cooldown_seconds is {self.cooldown_seconds}: it must be 0 or more")
        if self.success_steps < 1:
            raise ValueError(f"success_steps is {self.success_steps}: success needs at least 1 healthy step")

    def action_for(self, incident: OpenIncident) -> Action | None:
        """The action that this incident may trigger, None if it may trigger nothing."""
        for trigger in self.triggers:
            if trigger.matches(incident):
                return trigger.action
        return None

    def is_certain(self, incident: OpenIncident) -> bool:
        """Whether the incident needs no second signal: confidence, or a live detector that is critical."""
        live = incident.detector in LIVE_DETECTORS and incident.severity is Severity.CRITICAL
        return live or incident.confidence >= self.certainty
