"""The hooks, in the order in which they are reported; those of a changed run are there only after a rollback."""

from exporter.protocol import Changes
from trainer_entry.plugin.hooks.base import Hook
from trainer_entry.plugin.hooks.changed_settings import ChangedSettings
from trainer_entry.plugin.hooks.checkpoints import Checkpoints
from trainer_entry.plugin.hooks.clean_stop import CleanStop
from trainer_entry.plugin.hooks.excluded_nodes import ExcludedNodes
from trainer_entry.plugin.hooks.gradients import Gradients
from trainer_entry.plugin.hooks.phases import Phases
from trainer_entry.plugin.hooks.rollouts import Rollouts
from trainer_entry.plugin.hooks.run_end import RunEnd
from trainer_entry.plugin.hooks.skipped_batches import SkippedBatches
from trainer_entry.plugin.hooks.step_metrics import StepMetrics
from trainer_entry.plugin.hooks.weight_sync import WeightSync

HOOKS: tuple[type[Hook], ...] = (StepMetrics, Phases, Checkpoints, Rollouts, WeightSync, RunEnd, CleanStop, Gradients)


def hooks_for(changes: Changes) -> tuple[type[Hook], ...]:
    """All hooks of a run with these changes. Without any, nothing of verl is touched for them."""
    if changes == Changes():
        return HOOKS
    # What is left out and skipped is added to the proofs before the last hook sends them.
    also = [ExcludedNodes] if changes.exclude else []
    return (*HOOKS, *also, *([SkippedBatches] if changes.skip_steps else []), ChangedSettings)


__all__ = ["HOOKS", "Hook", "hooks_for"]
