"""GPU readings of every node of a run, through NVML: one Ray actor a node, started by the plugin when training starts.

``python -m trainer_entry.gpu --once`` shows what it reads on this machine.
"""

from trainer_entry.gpu.actor import start_samplers

__all__ = ["start_samplers"]
