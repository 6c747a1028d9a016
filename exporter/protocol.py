"""Wire types of the push and command API, and nothing else.

Spoken by every sender (trainer, workers, GPU samplers, supervisor) and by the exporter. The only third-party import is
msgspec, because this module is all that the trainer side shares with the exporter.

One POST per flush to ``/api/v1/push`` carries one :class:`Batch`, as ``application/msgpack`` (default) or
``application/json``. JSON has no NaN, and NaN is the signal that matters most, so in JSON the three non-finite values
are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; ``null`` is NaN too, for that is how verl's own ``file``
logger and several JSON encoders write it. :data:`Number` accepts every spelling everywhere. What odd input means is
told in ``docs/input.md``.

Times are Unix seconds by the sender's clock and serve only to show a person; whatever is judged is judged by durations,
which the sender measures with its monotonic clock, or by the exporter's own clock at arrival.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

PROTOCOL_VERSION = 1
"""Raised when a reader of the old version would misread the new one; new optional fields do not raise it."""

PUSH_PATH = "/api/v1/push"
MSGPACK = "application/msgpack"
JSON = "application/json"

Number = float | Literal["NaN", "Infinity", "-Infinity"] | None
"""A metric value: any float in msgpack; a JSON number, one of the three strings, or null for NaN, in JSON."""

Role = Literal["trainer", "worker", "gpu", "supervisor"]
Scalar = bool | int | float | str | None
Action = Literal["rollback", "restart", "stop"]
Rung = Literal["checkpoint", "config", "version", "infra"]
Tier = Literal["snapshot", "milestone", "archive"]


class _Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all wire types. Unknown fields are ignored, so that a newer sender may talk to an older exporter."""


class Run(_Wire, frozen=True):
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


class Sender(_Wire, frozen=True):
    """One process that pushes. ``id`` is unique per process life, so its sequence may start at 1 after a restart."""

    id: str
    role: Role = "trainer"


class Step(_Wire, frozen=True):
    """Metrics of one training step under verl's own keys. One step may come in several parts; they are merged."""

    step: int
    metrics: dict[str, Number]
    time: float = 0.0


class OpenPhase(_Wire, frozen=True):
    """A phase (verl's timer name: ``step``, ``gen``, ``update_actor`` …) that has not ended; age in seconds."""

    name: str
    seconds: float


class ClosedPhase(_Wire, frozen=True):
    """A phase that ended since the last flush, with its duration in seconds."""

    name: str
    seconds: float


class PhaseReport(_Wire, frozen=True):
    """What the trainer is doing now: the heartbeat. Sent from the plugin's own thread, also while a step hangs."""

    step: int
    open: list[OpenPhase] = []
    closed: list[ClosedPhase] = []


class RolloutCounts(_Wire, frozen=True):
    """Rollout requests of this sender since its start, by outcome. Cumulative, so a lost batch loses no request."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0


class GpuReading(_Wire, frozen=True):
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


class RunStarted(_Wire, frozen=True, tag="run_started"):
    """The trainer opened its tracking; ``config`` holds the resolved configuration, flattened with dots."""

    time: float
    config: dict[str, Scalar] = {}


class HookMissing(_Wire, frozen=True):
    name: str
    reason: str


class HooksReported(_Wire, frozen=True, tag="hooks_reported"):
    """Which of the plugin's hooks are in place in the sender's process."""

    time: float
    installed: list[str]
    missing: list[HookMissing] = []


class CheckpointSaved(_Wire, frozen=True, tag="checkpoint_saved"):
    """verl returned from a save and the manifest was written (``verified``), or could not be (``reason`` says why)."""

    time: float
    step: int
    path: str
    verified: bool
    bytes: int = 0
    save_seconds: float = 0.0
    manifest_seconds: float = 0.0
    reason: str = ""
    config_hash: str = ""
    """SHA-256 of the resolved configuration that the manifest holds."""
    fingerprint: str = ""
    """SHA-256 over names, sizes and hashes of all files: the same content has the same."""


class CheckpointCopied(_Wire, frozen=True, tag="checkpoint_copied"):
    """A copy of a checkpoint into a tier was made and compared with its manifest at the far end, or was not."""

    time: float
    step: int
    tier: Tier
    name: str
    """``<model>-step<N>-<hash8>``."""
    place: str = ""
    """Where it lies, without anything secret."""
    ok: bool = True
    bytes: int = 0
    """Size of the checkpoint; ``stored_bytes`` is what had to be written or sent for it."""
    stored_bytes: int = 0
    seconds: float = 0.0
    reason: str = ""


class CheckpointChecked(_Wire, frozen=True, tag="checkpoint_checked"):
    """A checkpoint, in its own place (``tier`` is empty) or a copy, was verified; ``drill``: it was trained from."""

    time: float
    step: int
    depth: Literal["sizes", "content", "load", "forward", "drill"]
    ok: bool
    tier: Tier | Literal[""] = ""
    name: str = ""
    seconds: float = 0.0
    reason: str = ""


class CheckpointPruned(_Wire, frozen=True, tag="checkpoint_pruned"):
    """Retention removed a checkpoint (``tier`` is empty for one in its own place)."""

    time: float
    step: int
    tier: Tier | Literal[""] = ""
    name: str = ""
    bytes: int = 0
    reason: str = ""


class GradientHistogram(_Wire, frozen=True, tag="gradient_histogram"):
    """Gradients of one optimizer step by layer, before clipping, are in ``file`` on the trainer's node."""

    time: float
    step: int
    file: str
    layers: int
    norm: float = 0.0
    """Of all layers together."""
    largest_layer: str = ""
    largest_norm: float = 0.0
    non_finite: int = 0
    """Gradient values that are NaN or infinite."""


class SettingApplied(_Wire, frozen=True, tag="setting_applied"):
    """A changed setting that verl would have ignored on resume took effect, or did not: read back where it acts."""

    time: float
    name: str
    """Key of the configuration."""
    wanted: Scalar
    restored: Scalar = None
    """What the checkpoint brought."""
    found: Scalar = None
    """What is in effect after the change."""
    ok: bool = True
    reason: str = ""


class WeightsSynced(_Wire, frozen=True, tag="weights_synced"):
    """The rollout engine received the weights of ``step``; duration in seconds."""

    time: float
    step: int
    seconds: float


class RunFinished(_Wire, frozen=True, tag="run_finished"):
    """verl closed its tracking. ``exit_code`` is what verl says of itself, which may differ from the process's own."""

    time: float
    exit_code: int | None = None


class Excluded(_Wire, frozen=True):
    """A machine, or one GPU of it, that the next attempt is not to use."""

    node: str
    gpu: str = ""
    """UUID, or index where the driver gives none; empty for the whole machine."""
    reason: str = ""


class Changes(_Wire, frozen=True):
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


class AttemptStarted(_Wire, frozen=True, tag="attempt_started"):
    """The supervisor started the trainer. ``resume_step`` is 0 for a start from scratch, absent where verl chooses."""

    time: float
    pid: int
    resume_step: int | None = None
    resume_path: str = ""
    command_id: str = ""
    changes: Changes | None = None
    """What is in force beyond the command line that the run was given, by this command or by earlier ones."""
    executor: str = ""
    """Who holds the processes: ``local``, ``ray``, ``slurm``."""


class AttemptExited(_Wire, frozen=True, tag="attempt_exited"):
    """The trainer ended. ``expected`` is true when it ended by itself with success or because it was told to."""

    time: float
    exit_code: int | None
    signal: int | None = None
    expected: bool = False
    seconds: float = 0.0
    last_output: list[str] = []


class CommandProgress(_Wire, frozen=True, tag="command_progress"):
    """How far the supervisor is with a command. ``failed`` and ``succeeded`` are final."""

    time: float
    command_id: str
    state: Literal["accepted", "stopping", "stopped", "starting", "started", "succeeded", "failed"]
    detail: str = ""
    target_step: int | None = None
    target_path: str = ""
    running: bool | None = None
    """Whether the run's trainer runs at this moment; absent from a supervisor that does not say it."""
    code: int | None = None
    """Of ``failed``: why, as the supervisor's exit codes have it (``verl-sentinel-train run --help``)."""
    output: list[str] = []
    """Of a final state: the last lines that the rollback script printed, at most 40 of 500 characters."""


Event = (
    RunStarted
    | HooksReported
    | CheckpointSaved
    | CheckpointCopied
    | CheckpointChecked
    | CheckpointPruned
    | GradientHistogram
    | SettingApplied
    | WeightsSynced
    | RunFinished
    | AttemptStarted
    | AttemptExited
    | CommandProgress
)


class Batch(_Wire, frozen=True):
    """One flush of one sender. ``(run.run_id, sender.id, seq)`` makes it idempotent; ``seq`` counts from 1."""

    protocol: int
    run: Run
    sender: Sender
    seq: int
    sent_at: float = 0.0
    steps: list[Step] = []
    phase: PhaseReport | None = None
    rollout: RolloutCounts | None = None
    gpus: list[GpuReading] = []
    events: list[Event] = []


class Command(_Wire, frozen=True):
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


class Abort(_Wire, frozen=True):
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


class HistogramRequest(_Wire, frozen=True):
    """The trainer is to write gradient histograms of its next ``steps`` optimizer steps; the same ``id`` is once."""

    id: str
    steps: int
    reason: str = ""


class PushAnswer(_Wire, frozen=True):
    """Answer to an accepted push. A duplicate is accepted and changes nothing."""

    accepted_seq: int
    duplicate: bool = False
    command: Command | None = None
    abort: Abort | None = None
    histogram: HistogramRequest | None = None
    """For the sender of role ``trainer``."""


class ErrorAnswer(_Wire, frozen=True):
    """Answer to a refused request: what was wrong, where, and what to do."""

    error: str
    reason: str
    where: str = ""


def number(value: Number) -> float:
    """Turn a wire value into a float.

    >>> number("NaN"), number("-Infinity"), number(None), number(0.5)
    (nan, -inf, nan, 0.5)
    """
    return math.nan if value is None else float(value)


def numbers(metrics: dict[str, Number]) -> dict[str, float]:
    """A step's metrics as floats: the same dict where they are floats already, as in msgpack they are but for nil.

    >>> numbers({"actor/loss": 0.5, "actor/grad_norm": "Infinity", "actor/kl_loss": None})
    {'actor/loss': 0.5, 'actor/grad_norm': inf, 'actor/kl_loss': nan}
    """
    try:
        # The fastest way to see that none is a text or None.
        sum(metrics.values(), 0.0)  # type: ignore[type-var]
    except TypeError:
        return {key: number(value) for key, value in metrics.items()}
    return metrics  # type: ignore[return-value]


def json_number(value: float) -> Number:
    """Spell a float so that JSON can carry it.

    >>> json_number(float("nan")), json_number(2.0)
    ('NaN', 2.0)
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


class _Version(msgspec.Struct, frozen=True):
    """The one field that every version of the protocol has."""

    protocol: int


_msgpack_decoder = msgspec.msgpack.Decoder(Batch)
_json_decoder = msgspec.json.Decoder(Batch)
_msgpack_encoder = msgspec.msgpack.Encoder()


def decode_batch(body: bytes, content_type: str = MSGPACK) -> Batch:
    """Decode and check one batch.

    Raises ``msgspec.ValidationError`` with the path of the offending field, or ``msgspec.DecodeError`` where the body
    is not msgpack or JSON at all. The protocol version is not checked here: the caller answers that case by itself.
    """
    return _json_decoder.decode(body) if content_type == JSON else _msgpack_decoder.decode(body)


def protocol_of(body: bytes, content_type: str = MSGPACK) -> int | None:
    """The version that a batch names, also where the rest is of another version's shape; None where it names none."""
    decode: Any = msgspec.json.decode if content_type == JSON else msgspec.msgpack.decode
    try:
        return int(decode(body, type=_Version).protocol)
    except (msgspec.DecodeError, RecursionError):
        return None


def encode(message: Any) -> bytes:
    """Encode any wire type as msgpack."""
    return _msgpack_encoder.encode(message)
