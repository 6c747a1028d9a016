"""What the shadow asks of a cluster: submit, state, stop, log. Implemented for Ray Jobs and for Slurm.

``local`` has no class here: its hand is the attempt process (:mod:`trainer_entry.supervisor.attempt`), which starts the
trainer itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

NAMES = ("local", "ray", "slurm")
"""Values of ``--executor``."""

Phase = Literal["pending", "running", "succeeded", "failed", "stopped", "unknown"]

LOG_PIECE = 256 * 1024
"""Bytes of a job's log that are taken at once."""


class ExecutorError(Exception):
    """The job cannot be dealt with as asked; the message is a sentence that says why and what to do."""


class CannotAsk(ExecutorError):
    """The cluster gives no answer, or no usable one, so that nothing is known of the job."""


class Refused(ExecutorError):
    """The cluster answered, and has not taken the job."""


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job is. ``unknown``: the cluster answers, and knows no such job (any more)."""

    state: Phase
    exit_code: int | None = None
    """As a shell shows it: 128 + signal for a job that a signal ended. None while it runs, or where nobody says."""
    detail: str = ""
    """The cluster's own words, short."""
    put_back: bool = False
    """It waits again after it had begun, which would be a start that nobody decided on."""

    @property
    def alive(self) -> bool:
        """True while processes of it may run, now or later."""
        return self.state in ("pending", "running")


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run. ``name`` is this attempt's alone, and is what the job is found by after a kill."""

    name: str
    argv: tuple[str, ...]
    cwd: str
    directory: Path
    """The attempt's folder."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables that have to travel; nothing secret."""
    exclude: tuple[str, ...] = ()
    """Machines that it must not run on."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For a person who looks at the cluster."""


class Executor(Protocol):
    """One cluster. Every method may raise :class:`CannotAsk`, after a limited time."""

    name: str
    poll_seconds: float

    def submit(self, job: Job) -> str:
        """Hand the job over; returns the cluster's id for it. Again with the same name: the id of the first.

        Raises :class:`Refused` where it certainly was not taken.
        """
        ...

    def find(self, name: str) -> list[str]:
        """Ids of all jobs with this name that the cluster knows, oldest first; one, if all is well."""
        ...

    def state(self, job_id: str) -> JobState:
        """How it is now."""
        ...

    def stop(self, job_id: str, *, force: bool = False) -> None:
        """Ask for its end; ``force``: SIGKILL at once. Not waited for. A job that is over or unknown is no error."""
        ...

    def log(self, job_id: str, offset: int) -> bytes:
        """At most ``LOG_PIECE`` bytes of what it printed, from ``offset`` on; empty where there is no more now."""
        ...

    def log_ended(self, job_id: str) -> bool:
        """Of a job that is over: whether all that it printed was taken."""
        ...

    def call_off(self, name: str, directory: Path, *, submitted: bool) -> None:
        """See to it that a submission of this name that is still under way starts nothing when it arrives.

        ``submitted``: the cluster has confirmed the submission, so that none can be under way.
        """
        ...

    def close(self) -> None:
        """Give back threads and connections."""
        ...
