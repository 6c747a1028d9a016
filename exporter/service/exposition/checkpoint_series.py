"""The series of one run's checkpoints by tier and depth, of its changed settings and its gradient histograms. Called by
the series of the run at every scrape."""

from __future__ import annotations

from exporter.recovery.facts import Checkpoint
from exporter.service.exposition import families as f
from exporter.service.exposition.recovery_series import Put
from exporter.service.state import RunState
from exporter.service.tiers import PRIMARY


def put_care(put: Put, state: RunState, newest: Checkpoint | None) -> None:
    """``newest`` is the newest verified checkpoint.

    Most runs have no tiers: of those there is their own place alone, once a checkpoint was verified.
    """
    if newest is not None:
        put(f.TIER_STEP, newest.step, PRIMARY)
        put(f.TIER_AT, newest.saved_at, PRIMARY)
        if newest.bytes:
            put(f.TIER_SIZE, newest.bytes, PRIMARY)
    for name, tier in state.care.tiers.items():
        put(f.TIER_PRUNED, tier.pruned, name)
        if name == PRIMARY:
            continue
        put(f.TIER_COPIES, tier.copied, name, "copied")
        put(f.TIER_COPIES, tier.failed, name, "failed")
        last = tier.last
        put(f.TIER_FAILING, int(tier.failed > 0 and (last is None or tier.failed_at > last.copied_at)), name)
        if last is not None:
            put(f.TIER_STEP, last.step, name)
            put(f.TIER_AT, last.copied_at, name)
            put(f.TIER_SIZE, last.bytes, name)
    for tier_name, depth, check in state.care.verifications():
        put(f.CHECKS, check.passed, tier_name, depth, "passed")
        put(f.CHECKS, check.failed, tier_name, depth, "failed")
        put(f.CHECK_FAILING, int(bool(check.bad)), tier_name, depth)
        if check.last_step is not None:
            put(f.CHECKED_STEP, check.last_step, tier_name, depth)
    for setting in state.in_force.settings:
        put(f.SETTING_IN_EFFECT, int(setting.ok), setting.name)
    if state.gradients.count:
        put(f.GRADIENT_HISTOGRAMS, state.gradients.count)
