"""Who sends, and what is measured: the parts of a batch that come again with every flush."""

from __future__ import annotations

from exporter.protocol.values import Number, Role, Wire


class Run(Wire, frozen=True):
    """Identity of a run; ``run_id`` is stable over restarts, ``attempt`` counts its starts from 1."""

    run_id: str
    attempt: int = 1
    project: str = ""
    experiment: str = ""
    trainer: str = ""
    """``ppo_v1``, ``ppo_legacy``, ``sft``, or empty where not known (a supervisor that has no trainer yet)."""
    verl_version: str = ""
    cohort: str = ""
    """What the run is compared within: a name that its owner gives, such as a sweep or a team."""


class Sender(Wire, frozen=True):
    """One process that pushes. ``id`` is unique per process life, so its sequence may start at 1 after a restart."""

    id: str
    role: Role = "trainer"


class Step(Wire, frozen=True):
    """Metrics of one training step under verl's own keys. One step may come in several parts; they are merged."""

    step: int
    metrics: dict[str, Number]
    time: float = 0.0


class OpenPhase(Wire, frozen=True):
    """A phase (verl's timer name: ``step``, ``gen``, ``update_actor`` …) that has not ended; age in seconds."""

    name: str
    seconds: float


class ClosedPhase(Wire, frozen=True):
    """A phase that ended since the last flush, with its duration in seconds."""

    name: str
    seconds: float


class PhaseReport(Wire, frozen=True):
    """What the trainer is doing now: the heartbeat. Sent from the plugin's own thread, also while a step hangs."""

    step: int
    open: list[OpenPhase] = []
    closed: list[ClosedPhase] = []


class RolloutCounts(Wire, frozen=True):
    """Rollout requests of this sender since its start, by outcome. Cumulative, so a lost batch loses no request."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0


class GpuReading(Wire, frozen=True):
    """One reading of one GPU. A value that the GPU or driver does not support is absent, not zero."""

    node: str
    index: int
    uuid: str = ""
    name: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_ratio: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    lost: bool = False
    """True when the driver says that the GPU has fallen off the bus or needs a reset."""
    error: str = ""
    """The driver's own words, for a reading that failed as a whole."""
    xid_errors: int | None = None
    """Critical Xid events of this GPU since the sampler began; absent where the driver or the GPU does not tell."""
    last_xid: int | None = None
    """The code of the newest of them, 0 while there was none."""
