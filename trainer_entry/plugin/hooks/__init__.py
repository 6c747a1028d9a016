"""The hooks, in the order in which they are reported."""

from trainer_entry.plugin.hooks.base import Hook
from trainer_entry.plugin.hooks.checkpoints import Checkpoints
from trainer_entry.plugin.hooks.clean_stop import CleanStop
from trainer_entry.plugin.hooks.gradients import Gradients
from trainer_entry.plugin.hooks.phases import Phases
from trainer_entry.plugin.hooks.rollouts import Rollouts
from trainer_entry.plugin.hooks.run_end import RunEnd
from trainer_entry.plugin.hooks.step_metrics import StepMetrics
from trainer_entry.plugin.hooks.weight_sync import WeightSync

HOOKS: tuple[type[Hook], ...] = (StepMetrics, Phases, Checkpoints, Rollouts, WeightSync, RunEnd, CleanStop, Gradients)

__all__ = ["HOOKS", "Hook"]
