"""What was observed of one demo run: collected by :mod:`demo.observer`, judged by :mod:`demo.summary`. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Observation:
    """Everything that the verdict needs. Times are Unix seconds."""

    started: float
    verl_version: str = ""
    fault: Mapping[str, Any] | None = None
    """When what is wrong began to act: ``time``, ``step``; of an injected fault, what it wrote of itself."""
    incidents: Sequence[Mapping[str, Any]] = ()
    """As ``GET /api/v1/incidents`` gives them."""
    recoveries: Sequence[Mapping[str, Any]] = ()
    """As ``GET /api/v1/recoveries`` gives them, the first one first."""
    alert_active: float | None = None
    """When Prometheus first held an alert with ``action="rollback"`` of this run for firing; None in the fast path."""
    first_steps: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Attempt -> (number, time) of the first step that it logged."""
    last_steps: dict[int, int] = field(default_factory=dict)
    """Attempt -> the newest step that it logged."""
    rates: dict[int, float] = field(default_factory=dict)
    """Attempt -> the learning rate that it logged with its newest step."""
    versions: dict[int, str] = field(default_factory=dict)
    """Attempt -> the version of verl that it ran on."""
    most_memory: float = 0.0
    """Most bytes of host memory that the run's processes held."""
    last_step: int = 0
    trainer_exit_code: int | None = None
    """Exit code of the supervisor where the training ended by itself."""
    interrupted: bool = False
    problem: str = ""
    """A sentence where the demo could not go on."""
