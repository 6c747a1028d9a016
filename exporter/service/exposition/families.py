"""Every metric of ``/metrics``: name, type, labels, help. Read by the rest of the package, and by the test of the docs.

What is not in here cannot be exported. Names are those of OpenMetrics: a counter's samples end in ``_total`` besides,
and an info's in ``_info``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram", "summary", "info"]

_ENDINGS: Final[Mapping[str, str]] = {"counter": "_total", "info": "_info"}


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric. ``labels`` are all that a sample has, ``le`` of a histogram apart."""

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...]
    order: int
    """Place on the page."""
    sample: str
    """The name of its samples, where these have one name; also that by which the documentation knows it."""


_families: list[Family] = []


def _add(kind: Kind, name: str, text: str, *labels: str) -> Family:
    family = Family(kind, name, text, labels, len(_families), name + _ENDINGS.get(kind, ""))
    _families.append(family)
    return family


# The run

RUN = _add(
    "info", "verl_run", "What the run is",
    "run", "project", "experiment", "attempt", "verl_version", "trainer", "cohort",
)  # fmt: skip
ATTEMPT = _add("gauge", "verl_run_attempt", "Number of the newest attempt", "run")
RUNNING = _add("gauge", "verl_run_running", "1 while an attempt has started and not ended", "run")
RUN_STATE = _add("gauge", "verl_run_state", "1 for the state in which the run is", "run", "state")
LAST_PUSH = _add(
    "gauge",
    "verl_last_push_timestamp_seconds",
    "When the trainer was last heard, Unix seconds by the exporter's clock",
    "run",
)
SUPERVISOR_LAST_PUSH = _add(
    "gauge",
    "verl_supervisor_last_push_timestamp_seconds",
    "When the supervisor was last heard, Unix seconds by the exporter's clock",
    "run",
)

# Steps

STEP = _add("gauge", "verl_training_step", "Newest step logged by this attempt", "run")
STEP_AT = _add(
    "gauge",
    "verl_last_step_timestamp_seconds",
    "When the newest step arrived, Unix seconds by the exporter's clock",
    "run",
)
STEPS = _add("counter", "verl_training_steps", "Training steps logged, over all attempts", "run")
STEPS_LATE = _add(
    "counter",
    "verl_training_steps_late",
    "Parts of steps that came after a newer step or attempt: judged by no detector",
    "run",
)
STEPS_PLANNED = _add("gauge", "verl_training_steps_planned", "Steps that the run's configuration asks for", "run")
ETA = _add("gauge", "verl_run_eta_seconds", "Seconds to the last step that is planned, at the recent pace", "run")
STEP_DURATION = _add("histogram", "verl_training_step_duration_seconds", "Duration of a training step", "run")

# "rollout" in a name: the rollout engine against the trainer.
_SIGNALS: Final = (
    ("loss", "verl_loss", "Loss that is optimised"),
    ("pg_loss", "verl_policy_gradient_loss", "Policy-gradient term of the actor's loss"),
    ("grad_norm", "verl_grad_norm", "Norm of the gradient before clipping"),
    ("lr", "verl_learning_rate", "Learning rate in effect"),
    ("critic_loss", "verl_critic_loss", "Loss of the value model"),
    ("critic_grad_norm", "verl_critic_grad_norm", "Norm of the value model's gradient before clipping"),
    ("critic_lr", "verl_critic_learning_rate", "Learning rate of the value model"),
    (
        "explained_variance",
        "verl_critic_explained_variance_ratio",
        "Share of the returns' variance that the value model explains",
    ),
    ("kl", "verl_kl_divergence", "KL divergence of the policy from the reference, in nats"),
    ("kl_coef", "verl_kl_coefficient", "Coefficient of the KL term"),
    (
        "ppo_kl",
        "verl_ppo_kl_divergence",
        "KL divergence of the policy from the one that sampled, in nats (estimate)",
    ),
    ("entropy", "verl_entropy", "Entropy of the policy per token, in nats"),
    ("pg_clipfrac", "verl_policy_clip_ratio", "Share of tokens whose policy ratio was clipped"),
    ("reward", "verl_reward", "Mean score of the batch, before any KL penalty"),
    ("advantage_spread", "verl_advantage_spread", "Largest less smallest advantage of the batch"),
    ("response_length", "verl_response_length", "Mean length of the responses, in tokens"),
    ("clip_ratio", "verl_response_clip_ratio", "Share of responses cut at the length limit"),
    ("aborted_ratio", "verl_response_aborted_ratio", "Share of responses of length 0"),
    ("rollout_evicted", "verl_rollout_evicted_groups", "Prompt groups dropped in the step: their rollout failed"),
    ("val_reward", "verl_validation_reward", "Mean of the core validation metrics"),
    ("val_loss", "verl_validation_loss", "Validation loss"),
    ("rollout_kl", "verl_rollout_kl_divergence", "KL of the rollout engine from the trainer, in nats (k1)"),
    ("rollout_k3_kl", "verl_rollout_k3_kl_divergence", "KL of the rollout engine from the trainer, in nats (k3)"),
    ("rollout_ppl_ratio", "verl_rollout_perplexity_ratio", "Perplexity, trainer over rollout engine"),
    ("rollout_log_ppl_diff", "verl_rollout_log_perplexity_difference", "Log perplexity, mean absolute difference"),
    ("rollout_probs_diff", "verl_rollout_probability_difference", "Token probability, mean difference"),
    ("rollout_probs_correlation", "verl_rollout_probability_correlation", "Token probability, correlation"),
    ("step_time", "verl_step_seconds", "Duration of the newest step that said it"),
    ("weight_sync_time", "verl_weight_sync_seconds", "New weights to the rollout engine, newest duration"),
    ("throughput", "verl_throughput_tokens_per_second", "Tokens a second and GPU"),
    ("tokens", "verl_step_tokens", "Tokens of the step, prompts included"),
    ("mfu", "verl_model_flops_utilization_ratio", "Model FLOPs utilisation of the update"),
    ("gpu_memory", "verl_actor_gpu_memory_bytes", "Peak of the memory that torch reserved on a GPU"),
    ("gpu_memory_allocated", "verl_actor_gpu_memory_allocated_bytes", "Peak of the memory that tensors took on a GPU"),
    ("host_memory", "verl_host_memory_used_bytes", "Memory in use on the trainer's host"),
    ("run_memory", "verl_run_memory_bytes", "Memory that the run's processes hold on the trainer's host"),
)  # fmt: skip

SIGNALS: Final[Mapping[str, Family]] = {signal: _add("gauge", name, text, "run") for signal, name, text in _SIGNALS}
"""Canonical signal to its metric: the newest value of this attempt."""

EXPECTED = _add("gauge", "verl_signal_expected", "What a detector expects of the signal's next value", "run", "signal")
LOWER = _add("gauge", "verl_signal_lower", "Below it a detector calls the signal's next value unusual", "run", "signal")
UPPER = _add("gauge", "verl_signal_upper", "Above it a detector calls the signal's next value unusual", "run", "signal")
FORECAST = _add(
    "gauge",
    "verl_forecast_seconds_to_limit",
    "Seconds until the signal reaches its limit if nothing changes, as a detector foresees it",
    "run",
    "signal",
)

# Time

PHASE_OPEN = _add("gauge", "verl_phase_open_seconds", "Age of a phase that has not ended", "run", "phase")
PHASE_DURATION = _add(
    "summary", "verl_phase_duration_seconds", "Duration of the phases that have ended", "run", "phase"
)

TIME = _add(
    "counter",
    "verl_run_time_seconds",
    "Where the time of the run went: productive steps; lost to restart, stall, replay; other",
    "run",
    "spent",
)

# Rollout, GPUs, checkpoints, plugin

ROLLOUT_REQUESTS = _add("counter", "verl_rollout_requests", "Rollout requests by outcome", "run", "outcome")
ROLLOUT_IN_FLIGHT = _add("gauge", "verl_rollout_requests_in_flight", "Rollout requests in flight", "run")
ROLLOUT_SUCCESS = _add(
    "gauge", "verl_rollout_success_rate", "Share of rollout requests that succeeded, over the whole run", "run"
)

_GPU = ("run", "node", "index", "uuid")
GPU_READINGS: Final[Mapping[str, Family]] = {
    "memory_used_bytes": _add("gauge", "verl_gpu_memory_used_bytes", "Memory in use on the GPU", *_GPU),
    "memory_total_bytes": _add("gauge", "verl_gpu_memory_total_bytes", "Memory of the GPU", *_GPU),
    "utilization_ratio": _add("gauge", "verl_gpu_utilization_ratio", "Share of time in which the GPU was busy", *_GPU),
    "power_watts": _add("gauge", "verl_gpu_power_watts", "Power draw of the GPU", *_GPU),
    "temperature_celsius": _add("gauge", "verl_gpu_temperature_celsius", "Temperature of the GPU", *_GPU),
}
"""Field of a reading to its metric."""
GPU_LOST = _add("gauge", "verl_gpu_lost", "1 when the driver says that the GPU is off the bus or needs a reset", *_GPU)
GPU_XIDS: Final[Mapping[str, Family]] = {
    "xid_errors": _add(
        "counter", "verl_gpu_xid_errors", "Critical Xid events of the GPU since its sampler began", *_GPU
    ),
    "last_xid": _add("gauge", "verl_gpu_last_xid", "Code of the GPU's newest critical Xid event, 0 for none", *_GPU),
}
"""Field of a reading to its metric; neither where the driver or the GPU does not report such events."""

CHECKPOINT_SAVED = _add("gauge", "verl_checkpoint_last_saved_step", "Step of the newest checkpoint", "run")
CHECKPOINT_VERIFIED = _add(
    "gauge", "verl_checkpoint_last_verified_step", "Step of the newest checkpoint with a manifest", "run"
)
CHECKPOINT_SAVED_AT = _add(
    "gauge",
    "verl_checkpoint_last_saved_timestamp_seconds",
    "When the newest checkpoint was reported, Unix seconds by the exporter's clock",
    "run",
)
CHECKPOINT_VERIFIED_AT = _add(
    "gauge",
    "verl_checkpoint_last_verified_timestamp_seconds",
    "When the newest checkpoint with a manifest was reported, Unix seconds by the exporter's clock",
    "run",
)
CHECKPOINT_SIZE = _add("gauge", "verl_checkpoint_size_bytes", "Size of the newest checkpoint on disk", "run")
CHECKPOINT_SAVE = _add("gauge", "verl_checkpoint_save_seconds", "How long saving the newest checkpoint took", "run")
_TIER = ("run", "tier")
TIER_STEP = _add("gauge", "verl_checkpoint_tier_last_step", "Step of the newest good copy in the tier", *_TIER)
TIER_AT = _add(
    "gauge",
    "verl_checkpoint_tier_last_timestamp_seconds",
    "When the tier's newest good copy was reported, Unix seconds by the exporter's clock",
    *_TIER,
)
TIER_SIZE = _add("gauge", "verl_checkpoint_tier_size_bytes", "Size of the tier's newest good copy", *_TIER)
TIER_COPIES = _add("counter", "verl_checkpoint_tier_copies", "Copies into the tier, by outcome", *_TIER, "outcome")
TIER_FAILING = _add("gauge", "verl_checkpoint_tier_failing", "1 while the newest copy into the tier failed", *_TIER)
TIER_PRUNED = _add("counter", "verl_checkpoint_pruned", "Checkpoints that retention removed", *_TIER)
CHECKS = _add(
    "counter", "verl_checkpoint_checks", "Verifications by tier, depth and outcome", *_TIER, "depth", "outcome"
)
CHECKED_STEP = _add(
    "gauge", "verl_checkpoint_last_checked_step", "Step of the checkpoint or copy that passed last", *_TIER, "depth"
)
CHECK_FAILING = _add(
    "gauge", "verl_checkpoint_check_failing", "1 while one that failed is not cleared by a later pass", *_TIER, "depth"
)
SETTING_IN_EFFECT = _add(
    "gauge",
    "verl_setting_in_effect",
    "1 where a changed setting is in effect in this attempt, else 0",
    "run",
    "setting",
)
GRADIENT_HISTOGRAMS = _add("counter", "verl_gradient_histograms", "Gradient histograms that were written", "run")
HOOKS_IN_PLACE = _add("gauge", "verl_hooks_in_place", "Hooks of the plugin that are in place", "run")
HOOKS_EXPECTED = _add("gauge", "verl_hooks_expected", "Hooks that the plugin would like to have in place", "run")

# Incidents and recoveries

INCIDENT_OPEN = _add(
    "gauge",
    "verl_incident_open",
    "1 while an incident is not resolved",
    "run",
    "detector",
    "signal",
    "severity",
)
INCIDENT_ONSET = _add(
    "gauge",
    "verl_incident_onset_step",
    "First step that belongs to an incident that is not resolved",
    "run",
    "detector",
    "signal",
    "situation",
)
SITUATION_OPEN = _add(
    "gauge",
    "verl_situation_open",
    "1 while an incident of the situation is not resolved",
    "run",
    "detector",
    "signal",
    "severity",
)
INCIDENTS = _add("counter", "verl_incidents", "Incidents opened, by severity at opening", "run", "detector", "severity")
RECOVERY_FAILED = _add(
    "gauge",
    "verl_recovery_failed",
    "1 after a recovery failed, until the next success or until a person has acknowledged it",
    "run",
)
RECOVERY_AWAITING = _add("gauge", "verl_recovery_awaiting_approval", "1 while a plan waits for approval", "run")
RECOVERY_IN_PROGRESS = _add("gauge", "verl_recovery_in_progress", "1 while a recovery is carried out", "run")
RECOVERIES = _add("counter", "verl_recoveries", "Recoveries that ended, by outcome", "run", "outcome")
RECOVERY_STAGE = _add(
    "gauge",
    "verl_recovery_stage_seconds",
    "Duration of the stages of the run's newest recovery; of the one that lasts, so far",
    "run",
    "stage",
)
RECOVERY_BUDGET = _add(
    "gauge", "verl_recovery_budget_remaining", "Recoveries that the policy still allows the run in 24 hours", "run"
)
RECOVERY_TARGET = _add("gauge", "verl_recovery_target_step", "Step to which the run's newest recovery goes back", "run")
RECOVERY_RUNG = _add("gauge", "verl_recovery_rung", "1 for the rung of the run's newest recovery", "run", "rung")
RECOVERY_CLIMBED = _add(
    "gauge", "verl_recovery_climbed", "1 while the run's newest recovery follows one that failed on a lower rung", "run"
)

# The exporter itself

BUILD = _add("info", "verl_sentinel_build", "The exporter's version", "version")
READY = _add("gauge", "verl_sentinel_ready", "1 when pushes are taken and kept")
RUNS = _add("gauge", "verl_sentinel_runs", "Runs that are watched")
RUNS_LIMIT = _add("gauge", "verl_sentinel_runs_limit", "Runs that are watched at most")
BATCHES = _add(
    "counter", "verl_sentinel_batches", "Pushes accepted, and pushes that had been accepted before", "outcome"
)
INGESTED_STEPS = _add("counter", "verl_sentinel_ingested_steps", "Steps, or parts of steps, in accepted pushes")
INGESTED_SAMPLES = _add("counter", "verl_sentinel_ingested_samples", "Metric values in the steps of accepted pushes")
REJECTED = _add("counter", "verl_sentinel_rejected", "Requests refused, by reason", "reason")
RELOAD_FAILURES = _add(
    "counter",
    "verl_sentinel_reload_failures",
    "Times that a changed token file or certificate could not be taken over: what was read before stays in force",
    "what",
)
PUSH_DURATION = _add("summary", "verl_sentinel_push_duration_seconds", "From the arrival of a push to its answer")
JOURNAL_QUEUE = _add("gauge", "verl_sentinel_journal_queue_entries", "Entries that wait to be written to the journal")
JOURNAL_ENTRIES = _add("counter", "verl_sentinel_journal_entries", "Entries written to the journal since the start")
JOURNAL_COMMIT = _add(
    "histogram", "verl_sentinel_journal_commit_duration_seconds", "Duration of the journal's transactions, on disk"
)
JOURNAL_FAILURES = _add("counter", "verl_sentinel_journal_failures", "Transactions of the journal that failed")
JOURNAL_ERROR = _add("gauge", "verl_sentinel_journal_error", "1 while the journal cannot be read or written")
JOURNAL_MENDED = _add(
    "counter", "verl_sentinel_journal_mended", "Times that a damaged journal was put together anew from memory"
)
JOURNAL_LOST = _add(
    "counter", "verl_sentinel_journal_lost_entries", "Entries that were lost in a damaged journal and miss from exports"
)
JOURNAL_LOST_RUNS = _add(
    "counter", "verl_sentinel_journal_lost_runs", "Runs that were on disk only and were lost in a damaged journal"
)
JOURNAL_UNREADABLE = _add(
    "gauge", "verl_sentinel_journal_unreadable_entries", "Entries of the journal that could not be read at start"
)
FAULTS = _add(
    "counter", "verl_sentinel_faults", "Entries that could not be taken over in full because of a fault of the exporter"
)
DETECTOR_FAULTS = _add(
    "counter", "verl_sentinel_detector_faults", "Times that a detector failed by a fault of its own", "run", "detector"
)
JOURNAL_BYTES = _add("gauge", "verl_sentinel_journal_bytes", "Pushes in the journal that are not in the history yet")
HISTORY_BYTES = _add("gauge", "verl_sentinel_history_bytes", "Size of the history, in which older pushes are kept")
HISTORY_MOVED = _add("counter", "verl_sentinel_history_moved_entries", "Entries moved from the journal to the history")
HISTORY_FAILURES = _add(
    "counter", "verl_sentinel_history_failures", "Rounds of moving and trimming that failed and are tried again"
)
DETECTOR_DURATION = _add(
    "summary", "verl_sentinel_detector_duration_seconds", "Time that the detectors took, over all runs", "detector"
)
SINK_UP = _add("gauge", "verl_sentinel_sink_up", "1 while the newest write to the sink worked", "sink")
SINK_LAG_ENTRIES = _add("gauge", "verl_sentinel_sink_lag_entries", "Journal entries that are not sent yet", "sink")
SINK_LAG_SECONDS = _add("gauge", "verl_sentinel_sink_lag_seconds", "Age of the oldest entry not sent yet", "sink")
SINK_WRITTEN = _add("counter", "verl_sentinel_sink_written_points", "Points that the sink took", "sink")
SINK_REJECTED = _add(
    "counter",
    "verl_sentinel_sink_rejected_points",
    "Points that the sink will never take, and that were left out",
    "sink",
)
SINK_FAILED = _add(
    "counter", "verl_sentinel_sink_failed_writes", "Requests to the sink that failed and are tried again", "sink"
)
SINK_DROPPED = _add(
    "counter", "verl_sentinel_sink_dropped_entries", "Pushes never sent: beyond the sink's bound, or unreadable", "sink"
)
NOTIFICATIONS = _add(
    "counter", "verl_sentinel_notifications", "Messages handed to a target, by what became of it", "target", "outcome"
)
AUDIT_ENTRIES = _add("counter", "verl_sentinel_audit_entries", "Entries of the audit log, by kind", "kind")
SCRAPE_FAULTS = _add(
    "counter", "verl_sentinel_scrape_faults", "Times that a run could not be shown in full by a fault of the exporter"
)
SCRAPE_DURATION = _add(
    "summary",
    "verl_sentinel_scrape_duration_seconds",
    "Time that the scrapes before this one took, by stage: render, compress",
    "stage",
)

PROCESS: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        _add("gauge", "process_virtual_memory_bytes", "Virtual memory of the process"),
        _add("gauge", "process_resident_memory_bytes", "Resident memory of the process"),
        _add("gauge", "process_start_time_seconds", "Start of the process, Unix seconds"),
        _add("counter", "process_cpu_seconds", "CPU time of the process, user and system"),
        _add("gauge", "process_open_fds", "Open file descriptors"),
        _add("gauge", "process_max_fds", "Most file descriptors that the process may open"),
    )
}
"""What ``prometheus_client.ProcessCollector`` says of this process, by name."""

FAMILIES: Final[tuple[Family, ...]] = tuple(_families)
"""All of them, in the order of the page."""
