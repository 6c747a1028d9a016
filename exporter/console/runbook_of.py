"""Which runbook belongs to what is shown: a finding's by its detector, a recovery's by its stage. Used by the pages.

The alerts in ``rules/prometheus`` are named so; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALERTS: Final[Mapping[str, str]] = {
    "aborted_rollouts": "VerlRolloutsAborted",
    "clipping": "VerlClipping",
    "communication": "VerlWeightSyncSlow",
    "dead_run": "VerlDeadRun",
    "entropy": "VerlEntropyShift",
    "fixed_limits": "VerlFixedLimitExceeded",
    "gpu_idle": "VerlGPUIdle",
    "gpu_memory_pressure": "VerlGPUMemoryPressure",
    "gradient_instability": "VerlGradientInstability",
    "kl": "VerlKLDivergence",
    "learning_rate": "VerlLearningRateOffSchedule",
    "level": "VerlLevelShift",
    "memory": "VerlMemoryExhaustion",
    "non_finite": "VerlNonFinite",
    "response_length": "VerlResponseLengthShift",
    "reward": "VerlRewardDegraded",
    "rollout_failures": "VerlRolloutFailures",
    "rollout_mismatch": "VerlRolloutMismatch",
    "silent_run": "VerlRunSilent",
    "slow_worker": "VerlRolloutWorkerSlow",
    "stalled_phase": "VerlPhaseStalled",
    "step_time": "VerlStepTimeRegression",
    "stragglers": "VerlGPUStraggler",
    "surge": "VerlSurge",
    "trainer_exited": "VerlTrainerExited",
}
"""By detector."""
OTHERWISE: Final = "VerlSituation"
WAITS: Final = "VerlRecoveryAwaitingApproval"
FAILED: Final = "VerlRecoveryFailed"


def of_detector(detector: str) -> str:
    """The path of the runbook of a finding.

    >>> of_detector("surge"), of_detector("one_of_tomorrow")
    ('/runbooks/VerlSurge.md', '/runbooks/VerlSituation.md')
    """
    return path(ALERTS.get(detector, OTHERWISE))


def of_recovery(stage: str) -> str:
    """The path of the runbook of a recovery; that of failures also says what to do with one that is under way."""
    return path(WAITS if stage == "awaiting_approval" else FAILED)


def path(alert: str) -> str:
    return f"/runbooks/{alert}.md"
