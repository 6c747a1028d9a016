"""What the recovery engine has to hear of a run. Made by :mod:`exporter.service.watch`, told by the link."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.incidents import Change
from exporter.protocol import AttemptExited, AttemptStarted, CommandProgress, SettingApplied


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step was logged and judged."""

    attempt: int
    step: int
    healthy: bool
    """No verdict on it is critical, and nothing is far outside of what was usual before the attempt."""
    why: str = ""
    """What is outside; the end of a sentence."""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """The supervisor says that an attempt started or exited."""

    attempt: int
    event: AttemptStarted | AttemptExited


Report = StepDone | AttemptReport | CommandProgress | SettingApplied | Change
"""Something that the recovery engine has to hear, in the order in which it happened."""
