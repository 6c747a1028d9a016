"""Labels of the exporter that have a fixed set of values, with these. Called by :mod:`exporter.bundle.metrics`.

A value that the exporter never gives selects nothing, and an alert on it never fires. They are taken from where the
exporter takes them where that has a list; a test looks whether a page has others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, get_args, get_type_hints

from exporter.detectors.base import Severity
from exporter.detectors.registry import NAMES
from exporter.protocol import CheckpointChecked, Rung, Tier
from exporter.recovery.record import ACTIVE, Stage
from exporter.service.durations import DURATION_BUCKETS
from exporter.service.exposition import families as f
from exporter.service.exposition.text import bound
from exporter.service.goodput import Goodput
from exporter.service.recorder import COMMIT_BUCKETS
from exporter.service.run_state import STATES
from exporter.service.tiers import PRIMARY

_SEVERITIES: Final = frozenset(one.name.lower() for one in Severity)
_DETECTORS: Final = frozenset(NAMES)
_TIERS: Final = frozenset(get_args(Tier))
_DEPTHS: Final = frozenset(get_args(get_type_hints(CheckpointChecked)["depth"]))
_CHECKED: Final = (f.CHECKS, f.CHECKED_STEP, f.CHECK_FAILING)
_ENDED: Final = frozenset(get_args(Stage)) - frozenset(ACTIVE)


def _bounds(buckets: Iterable[float]) -> frozenset[str]:
    return frozenset(bound(value) for value in (*buckets, math.inf))


VALUES: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    (f.RUN_STATE.sample, "state"): frozenset(STATES),
    (f.ROLLOUT_REQUESTS.sample, "outcome"): frozenset({"succeeded", "failed", "cancelled"}),
    (f.TIME.sample, "spent"): frozenset(Goodput().spent()),
    (f.RECOVERIES.sample, "outcome"): _ENDED,
    (f.RECOVERY_STAGE.sample, "stage"): frozenset({"approval", "command", "stop", "start", "verify", "total"}),
    (f.RECOVERY_RUNG.sample, "rung"): frozenset(get_args(Rung)),
    (f.TIER_COPIES.sample, "outcome"): frozenset({"copied", "failed"}),
    (f.CHECKS.sample, "outcome"): frozenset({"passed", "failed"}),
    **{(one.sample, "tier"): _TIERS for one in (f.TIER_COPIES, f.TIER_FAILING)},
    **{(one.sample, "tier"): _TIERS | {PRIMARY} for one in (f.TIER_STEP, f.TIER_AT, f.TIER_SIZE, f.TIER_PRUNED)},
    **{(one.sample, "tier"): _TIERS | {PRIMARY} for one in _CHECKED},
    **{(one.sample, "depth"): _DEPTHS for one in _CHECKED},
    (f.BATCHES.sample, "outcome"): frozenset({"accepted", "duplicate"}),
    (f.NOTIFICATIONS.sample, "outcome"): frozenset({"delivered", "failed"}),
    (f.RELOAD_FAILURES.sample, "what"): frozenset({"tokens", "certificate"}),
    (f"{f.STEP_DURATION.name}_bucket", "le"): _bounds(DURATION_BUCKETS),
    (f"{f.JOURNAL_COMMIT.name}_bucket", "le"): _bounds(COMMIT_BUCKETS),
    **{(family.sample, "severity"): _SEVERITIES for family in (f.INCIDENT_OPEN, f.SITUATION_OPEN, f.INCIDENTS)},
    **{
        (family.sample, "detector"): _DETECTORS
        for family in (f.INCIDENT_OPEN, f.INCIDENT_ONSET, f.SITUATION_OPEN, f.INCIDENTS)
    },
}
"""Sample and label to the values."""
