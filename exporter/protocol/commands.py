"""What the exporter asks of a run's processes: commands of a recovery, their abort, histograms of gradients."""

from __future__ import annotations

from exporter.protocol.values import Action, Rung, Scalar, Wire


class Excluded(Wire, frozen=True):
    """A machine, or one GPU of it, that the next attempt is not to use."""

    node: str
    gpu: str = ""
    """UUID, or index where the driver gives none; empty for the whole machine."""
    reason: str = ""


class Changes(Wire, frozen=True):
    """What the next attempts have that the command line of the run does not say. They stay until they are replaced."""

    settings: dict[str, Scalar] = {}
    """Keys of the trainer's configuration, joined with dots, and their values."""
    removed: list[str] = []
    """Keys that are taken out of it."""
    verl_version: str = ""
    """The version that the trainer runs on, in an environment of its own; empty for the one it was started with."""
    exclude: list[Excluded] = []
    skip_steps: int = 0
    """Training batches after the restored position in the data that are left out, once."""


class Command(Wire, frozen=True):
    """What the exporter asks of the supervisor of a run. Carrying it out twice has the effect of once (``id``)."""

    id: str
    run_id: str
    attempt: int
    """The attempt it is meant for: a supervisor already past it answers ``succeeded`` or ``failed`` from its record."""
    action: Action
    """``restart`` saves first and goes on from there: what fails is the process, not what it has learned."""
    reason: str = ""
    rung: Rung = "checkpoint"
    changes: Changes = Changes()
    not_after_step: int | None = None
    """Newest checkpoint step that may be restored (onset less the margin)."""
    target_step: int | None = None
    """The checkpoint that the exporter would take; the supervisor verifies it and may have to take an older one."""
    issued_at: float = 0.0


class Abort(Wire, frozen=True):
    """A person has called a command off: nothing further is to be done for it, and what was done stays done.

    Sent again until the supervisor has reported the end of that command, also to one that never had it: then it must
    not carry it out should it still come. A supervisor that does not know aborts ignores it and goes on.
    """

    id: str
    """Of the command."""
    run_id: str
    attempt: int
    action: Action
    reason: str = ""
    """A sentence that says who."""


Asked = Command | Abort
"""What an answer may ask of a supervisor."""


class HistogramRequest(Wire, frozen=True):
    """The trainer is to write gradient histograms of its next ``steps`` optimizer steps; the same ``id`` is once."""

    id: str
    steps: int
    reason: str = ""
