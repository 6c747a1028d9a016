"""Names of states, severities, phases and signals as a person reads them; translated where they are shown.

Read by the templates through :data:`LABELS`. What is not here is shown under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.console.languages import N_

STATES: Final[Mapping[str, str]] = {
    "awaiting_approval": N_("Waits for approval"),
    "failed": N_("Failed"),
    "silent": N_("Silent"),
    "recovering": N_("Recovering"),
    "starting": N_("Starting"),
    "training": N_("Training"),
    "stopped": N_("Stopped"),
    "finished": N_("Finished"),
}
"""The most urgent first."""

SEVERITIES: Final[Mapping[str, str]] = {"critical": N_("Critical"), "warning": N_("Warning"), "info": N_("Note")}

INCIDENT_STATES: Final[Mapping[str, str]] = {
    "opened": N_("Open"),
    "acknowledged": N_("Acknowledged"),
    "mitigating": N_("Being recovered"),
    "resolved": N_("Resolved"),
}

PHASES: Final[Mapping[str, str]] = {
    "step": N_("Step"),
    "gen": N_("Generation"),
    "generate_sequences": N_("Generation"),
    "reward": N_("Reward"),
    "old_log_prob": N_("Old log probs"),
    "ref": N_("Reference log probs"),
    "values": N_("Values"),
    "adv": N_("Advantages"),
    "update_critic": N_("Critic update"),
    "update_actor": N_("Actor update"),
    "update_weights": N_("Weight sync"),
    "sync_rollout_weights": N_("Weight sync"),
    "save_checkpoint": N_("Saving a checkpoint"),
    "testing": N_("Validation"),
}

SIGNALS: Final[Mapping[str, str]] = {
    "reward": N_("Reward"),
    "val_reward": N_("Validation reward"),
    "kl": N_("KL to the reference"),
    "ppo_kl": N_("KL of the update"),
    "entropy": N_("Entropy"),
    "grad_norm": N_("Gradient norm"),
    "loss": N_("Loss"),
    "pg_loss": N_("Policy loss"),
    "val_loss": N_("Validation loss"),
    "lr": N_("Learning rate"),
    "critic_loss": N_("Critic loss"),
    "critic_grad_norm": N_("Critic gradient norm"),
    "critic_lr": N_("Critic learning rate"),
    "explained_variance": N_("Explained variance"),
    "kl_coef": N_("KL coefficient"),
    "pg_clipfrac": N_("Clipped tokens"),
    "advantage_spread": N_("Spread of the advantages"),
    "response_length": N_("Response length"),
    "clip_ratio": N_("Responses cut"),
    "aborted_ratio": N_("Empty responses"),
    "rollout_evicted": N_("Groups dropped"),
    "rollout_kl": N_("Rollout mismatch (KL)"),
    "rollout_k3_kl": N_("Rollout mismatch (KL, k3)"),
    "rollout_ppl_ratio": N_("Rollout mismatch (perplexity)"),
    "rollout_log_ppl_diff": N_("Rollout mismatch (log perplexity)"),
    "rollout_probs_diff": N_("Rollout mismatch (probability)"),
    "rollout_probs_correlation": N_("Rollout mismatch (correlation)"),
    "step_time": N_("Step time"),
    "throughput": N_("Throughput"),
    "tokens": N_("Tokens of a step"),
    "mfu": N_("Model FLOPs utilisation"),
    "gpu_memory": N_("GPU memory reserved"),
    "gpu_memory_allocated": N_("GPU memory allocated"),
    "host_memory": N_("Host memory"),
    "run_memory": N_("Memory of the run"),
    "generation_time": N_("Generation"),
    "slowest_rollout_time": N_("Slowest answer"),
    "mean_rollout_time": N_("Mean answer"),
    "reward_time": N_("Reward"),
    "old_log_prob_time": N_("Old log probs"),
    "ref_time": N_("Reference log probs"),
    "values_time": N_("Values"),
    "adv_time": N_("Advantages"),
    "update_actor_time": N_("Actor update"),
    "update_critic_time": N_("Critic update"),
    "weight_sync_time": N_("Weight sync"),
    "validation_time": N_("Validation"),
    "checkpoint_time": N_("Saving a checkpoint"),
}

NOT_LOGGED: Final[Mapping[str, str]] = {
    "gpu_lost": N_("GPU lost"),
    "gpu_memory_used": N_("GPU memory in use"),
    "gpu_utilization": N_("GPU utilisation"),
    "heartbeat": N_("Sign of life"),
    "process": N_("Process of the trainer"),
    "rollout_requests": N_("Rollout requests"),
}
"""What a finding may be about besides the signals that a trainer logs."""

UNITS: Final[Mapping[str, str]] = {
    "": "",
    "bytes": N_("bytes"),
    "nats": N_("nats"),
    "ratio": N_("ratio"),
    "seconds": N_("seconds"),
    "tokens": N_("tokens"),
    "tokens_per_second": N_("tokens per second"),
}

SPENT: Final[Mapping[str, str]] = {
    "productive": N_("Productive steps"),
    "replay": N_("Steps done again"),
    "restart": N_("Restarts"),
    "stall": N_("Stalls"),
    "other": N_("Start, validation, saving"),
}

TIERS: Final[Mapping[str, str]] = {
    "primary": N_("where it was saved"),
    "snapshot": N_("Snapshots"),
    "milestone": N_("Milestones"),
    "archive": N_("Archive"),
}

DEPTHS: Final[Mapping[str, str]] = {
    "sizes": N_("Sizes"),
    "content": N_("Content"),
    "load": N_("Loads"),
    "forward": N_("One forward step"),
    "drill": N_("Restored and trained from"),
}
"""How deep a checkpoint was verified."""

LABELS: Final[Mapping[str, Mapping[str, str]]] = {
    "state": STATES,
    "severity": SEVERITIES,
    "incident_state": INCIDENT_STATES,
    "phase": PHASES,
    "signal": {**SIGNALS, **NOT_LOGGED},
    "spent": SPENT,
    "unit": UNITS,
    "tier": TIERS,
    "depth": DEPTHS,
}
"""By what they name: in a template ``label("state", name)``."""
