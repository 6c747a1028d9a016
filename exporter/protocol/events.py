"""What happens once: a start, a save, a copy, an exit. Each carries the time at which it did, by the sender's clock."""

from __future__ import annotations

from typing import Literal

from exporter.protocol.commands import Changes
from exporter.protocol.values import Scalar, Tier, Wire


class RunStarted(Wire, frozen=True, tag="run_started"):
    """The trainer opened its tracking; ``config`` holds the resolved configuration, flattened with dots."""

    time: float
    config: dict[str, Scalar] = {}


class HookMissing(Wire, frozen=True):
    name: str
    reason: str


class HooksReported(Wire, frozen=True, tag="hooks_reported"):
    """Which of the plugin's hooks are in place in the sender's process."""

    time: float
    installed: list[str]
    missing: list[HookMissing] = []


class CheckpointSaved(Wire, frozen=True, tag="checkpoint_saved"):
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


class CheckpointCopied(Wire, frozen=True, tag="checkpoint_copied"):
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


class CheckpointChecked(Wire, frozen=True, tag="checkpoint_checked"):
    """A checkpoint, in its own place (``tier`` is empty) or a copy, was verified; ``drill``: it was trained from."""

    time: float
    step: int
    depth: Literal["sizes", "content", "load", "forward", "drill"]
    ok: bool
    tier: Tier | Literal[""] = ""
    name: str = ""
    seconds: float = 0.0
    reason: str = ""


class CheckpointPruned(Wire, frozen=True, tag="checkpoint_pruned"):
    """Retention removed a checkpoint (``tier`` is empty for one in its own place)."""

    time: float
    step: int
    tier: Tier | Literal[""] = ""
    name: str = ""
    bytes: int = 0
    reason: str = ""


class GradientHistogram(Wire, frozen=True, tag="gradient_histogram"):
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


class SettingApplied(Wire, frozen=True, tag="setting_applied"):
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


class WeightsSynced(Wire, frozen=True, tag="weights_synced"):
    """The rollout engine received the weights of ``step``; duration in seconds."""

    time: float
    step: int
    seconds: float


class RunFinished(Wire, frozen=True, tag="run_finished"):
    """verl closed its tracking. ``exit_code`` is what verl says of itself, which may differ from the process's own."""

    time: float
    exit_code: int | None = None


class AttemptStarted(Wire, frozen=True, tag="attempt_started"):
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


class AttemptExited(Wire, frozen=True, tag="attempt_exited"):
    """The trainer ended. ``expected`` is true when it ended by itself with success or because it was told to."""

    time: float
    exit_code: int | None
    signal: int | None = None
    expected: bool = False
    seconds: float = 0.0
    last_output: list[str] = []


class CommandProgress(Wire, frozen=True, tag="command_progress"):
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
