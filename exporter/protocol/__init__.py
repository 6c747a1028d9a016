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

from exporter.protocol.commands import (
    Abort,
    Asked,
    Changes,
    Command,
    Excluded,
    HistogramRequest,
)
from exporter.protocol.events import (
    AttemptExited,
    AttemptStarted,
    CheckpointChecked,
    CheckpointCopied,
    CheckpointPruned,
    CheckpointSaved,
    CommandProgress,
    Event,
    GradientHistogram,
    HookMissing,
    HooksReported,
    RunFinished,
    RunStarted,
    SettingApplied,
    WeightsSynced,
)
from exporter.protocol.messages import (
    Batch,
    ErrorAnswer,
    PushAnswer,
    decode_batch,
    encode,
    protocol_of,
)
from exporter.protocol.readings import (
    ClosedPhase,
    GpuReading,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    Run,
    Sender,
    Step,
)
from exporter.protocol.values import (
    JSON,
    MSGPACK,
    PROTOCOL_VERSION,
    PUSH_PATH,
    Action,
    Number,
    Role,
    Rung,
    Scalar,
    Tier,
    json_number,
    number,
    numbers,
)

__all__ = [
    "JSON",
    "MSGPACK",
    "PROTOCOL_VERSION",
    "PUSH_PATH",
    "Abort",
    "Action",
    "Asked",
    "AttemptExited",
    "AttemptStarted",
    "Batch",
    "Changes",
    "CheckpointChecked",
    "CheckpointCopied",
    "CheckpointPruned",
    "CheckpointSaved",
    "ClosedPhase",
    "Command",
    "CommandProgress",
    "ErrorAnswer",
    "Event",
    "Excluded",
    "GpuReading",
    "GradientHistogram",
    "HistogramRequest",
    "HookMissing",
    "HooksReported",
    "Number",
    "OpenPhase",
    "PhaseReport",
    "PushAnswer",
    "Role",
    "RolloutCounts",
    "Run",
    "RunFinished",
    "RunStarted",
    "Rung",
    "Scalar",
    "Sender",
    "SettingApplied",
    "Step",
    "Tier",
    "WeightsSynced",
    "decode_batch",
    "encode",
    "json_number",
    "number",
    "numbers",
    "protocol_of",
]
