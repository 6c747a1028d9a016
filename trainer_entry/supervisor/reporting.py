"""How the supervisor tells the exporter what happens: a protocol of two methods, so that it runs without one too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from exporter.protocol import Asked, Event, Run
from trainer_entry import settings
from trainer_entry.push import PushClient


class Reporter(Protocol):
    """Where events go."""

    def report(self, attempt: int, event: Event) -> None:
        """Hand an event of that attempt over; returns at once, never raises."""

    def close(self, seconds: float) -> None:
        """Send what waits, for at most so many seconds."""


class NoReporter:
    """For a run without an exporter: the state directory and the output tell all."""

    def report(self, attempt: int, event: Event) -> None:
        """Nothing to tell it to."""

    def close(self, seconds: float) -> None:
        """Nothing to send."""


class PushReporter:
    """Reports through the push client, whose heartbeat fetches commands, also while nothing happens."""

    def __init__(
        self,
        configured: settings.Settings,
        run: Run,
        *,
        on_command: Callable[[Asked], None],
        say: Callable[[str], None],
    ) -> None:
        self._run = run
        self._client = PushClient(configured, run, "supervisor", on_command=on_command, report=say)
        self._client.start()

    def report(self, attempt: int, event: Event) -> None:
        """Hand an event over, under the attempt that it belongs to; later heartbeats belong to that attempt too."""
        if attempt != self._run.attempt:
            self._run = Run(
                run_id=self._run.run_id,
                attempt=attempt,
                project=self._run.project,
                experiment=self._run.experiment,
                cohort=self._run.cohort,
            )
            self._client.set_run(self._run)
        self._client.event(event)

    def close(self, seconds: float) -> None:
        """Flush; what cannot be sent stays in the spool for the next supervisor, or the trainer's own client."""
        self._client.close(seconds)


def configure(url: str, run_id: str, state_dir: Path) -> settings.Settings | None:
    """Settings of the push client; the token comes from the environment. None without an exporter.

    Raises settings.SettingsError with a sentence for a URL that is none.
    """
    environ = {**os.environ, settings.URL: url, settings.RUN_ID: run_id, settings.STATE_DIR: str(state_dir)}
    environ.pop(settings.ATTEMPT, None)
    return settings.read_settings(environ)
