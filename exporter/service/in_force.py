"""What the newest attempt of a run has beyond its command line, and whether it took effect. Part of the run's state."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.protocol import AttemptStarted, Changes, SettingApplied
from exporter.service.known import bounded_changes, bounded_setting

REMEMBERED = 20
EXECUTOR_CHARACTERS = 50


@dataclass(slots=True)
class InForce:
    """Of one attempt.

    >>> it = InForce()
    >>> it.applied(SettingApplied(time=0.0, name="lr", wanted=1e-6, found=1e-5, ok=False)).ok, len(it.settings)
    (False, 1)
    """

    changes: Changes | None = None
    """By this command or by earlier ones; None where no supervisor said."""
    executor: str = ""
    """Who holds the processes."""
    by_command: bool = False
    """A recovery asked for the attempt."""
    settings: list[SettingApplied] = field(default_factory=list)
    """Changed settings that were read back where they act; the oldest first."""

    def started(self, event: AttemptStarted) -> None:
        """The supervisor says what the attempt was started with."""
        self.changes = bounded_changes(event.changes)
        self.executor = event.executor[:EXECUTOR_CHARACTERS]
        self.by_command = bool(event.command_id)

    def applied(self, event: SettingApplied) -> SettingApplied:
        """A changed setting was read back; the event as far as it is kept."""
        kept = bounded_setting(event)
        self.settings = [*(one for one in self.settings if one.name != kept.name), kept][-REMEMBERED:]
        return kept
