"""The table of canonical signals, and how each verl version and each trainer spells them.

The spellings were read from the source of verl 0.9.1 and from logs of its V1, legacy and SFT trainers and of 0.8.0. A
few older ones (``critic/kl``, ``train/lr(1e-3)``, ``mismatch/…``) are kept because replay meets them in old logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GIB: Final = float(1024**3)

PPO: Final = "ppo"
SFT: Final = "sft"


@dataclass(frozen=True, slots=True)
class Spelling:
    """One key under which verl logs a signal; the logged value times ``scale`` is in the signal's unit."""

    key: str
    scale: float = 1.0
    trainer: str = PPO
    """Family of trainers that logs it: ``ppo`` (V1 and legacy) or ``sft``."""
    minus: str = ""
    """A second key to subtract; the spelling counts only where both are there."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A canonical per-step series. ``unit`` is a base unit of Prometheus, or empty for a pure number."""

    name: str
    unit: str
    description: str
    spellings: tuple[Spelling, ...] = ()


def _ppo(*keys: str, scale: float = 1.0) -> tuple[Spelling, ...]:
    return tuple(Spelling(key, scale) for key in keys)


def _sft(*keys: str, scale: float = 1.0) -> tuple[Spelling, ...]:
    return tuple(Spelling(key, scale, SFT) for key in keys)


_SIGNALS: Final = (
    # What is optimised
    Signal(
        "loss",
        "",
        "Loss that is optimised: the actor's, with all its terms where verl logs it, or the SFT loss",
        _ppo("actor/loss", "actor/pg_loss") + _sft("train/loss", "loss"),
    ),
    Signal(
        "pg_loss", "", "Policy-gradient term of the actor's loss; changes sign in a healthy run", _ppo("actor/pg_loss")
    ),
    Signal(
        "grad_norm",
        "",
        "Norm of the gradient before clipping (actor, or the model in SFT)",
        _ppo("actor/grad_norm") + _sft("train/grad_norm", "grad_norm"),
    ),
    Signal(
        "lr",
        "",
        "Learning rate in effect (actor, or the model in SFT)",
        _ppo("actor/lr") + _sft("train/lr") + _sft("train/lr(1e-3)", scale=1e-3),
    ),
    Signal("critic_loss", "", "Loss of the value model", _ppo("critic/vf_loss", "critic/loss")),
    Signal("critic_grad_norm", "", "Norm of the value model's gradient before clipping", _ppo("critic/grad_norm")),
    Signal("critic_lr", "", "Learning rate of the value model", _ppo("critic/lr")),
    Signal(
        "explained_variance",
        "",
        "Share of the returns' variance that the value model explains",
        _ppo("critic/vf_explained_var"),
    ),
    # The policy
    Signal(
        "kl",
        "nats",
        "KL divergence of the policy from the reference: the KL loss before its coefficient, or the KL in the reward",
        _ppo("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl"),
    ),
    Signal(
        "kl_coef",
        "",
        "Coefficient of the KL term",
        _ppo("actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/kl_coeff"),
    ),
    Signal(
        "ppo_kl",
        "nats",
        "KL divergence of the policy from the one that sampled the batch (k1 estimate, may be < 0)",
        _ppo("actor/ppo_kl"),
    ),
    Signal("entropy", "nats", "Entropy of the policy per token", _ppo("actor/entropy", "actor/entropy_loss")),
    Signal("pg_clipfrac", "ratio", "Share of tokens whose policy ratio was clipped", _ppo("actor/pg_clipfrac")),
    # What it earns
    Signal(
        "reward", "", "Mean score of the batch, before any KL penalty", _ppo("critic/score/mean", "critic/rewards/mean")
    ),
    Signal(
        "advantage_spread",
        "",
        "Largest less smallest advantage of the batch; 0 means that the batch teaches nothing",
        (Spelling("critic/advantages/max", minus="critic/advantages/min"),),
    ),
    Signal("response_length", "tokens", "Mean length of the responses", _ppo("response_length/mean")),
    Signal("clip_ratio", "ratio", "Share of responses cut at the length limit", _ppo("response_length/clip_ratio")),
    Signal("aborted_ratio", "ratio", "Share of responses of length 0", _ppo("response/aborted_ratio")),
    Signal(
        "rollout_evicted",
        "",
        "Prompt groups that V1 dropped because their rollout failed",
        _ppo("training/rollout_failure/evicted_samples"),
    ),
    Signal("val_loss", "", "Validation loss", _sft("val/loss") + _ppo("val/loss")),
    Signal("val_reward", "", "Mean of verl's core validation metrics over the data sources"),
    # Rollout engine against trainer
    Signal(
        "rollout_kl",
        "nats",
        "KL of the rollout engine's policy from the trainer's (k1 estimate, may be < 0)",
        _ppo("rollout_corr/kl", "mismatch/mismatch_kl"),
    ),
    Signal(
        "rollout_k3_kl",
        "nats",
        "The same by the k3 estimate, never < 0",
        _ppo("rollout_corr/k3_kl", "mismatch/mismatch_k3_kl"),
    ),
    Signal(
        "rollout_ppl_ratio",
        "ratio",
        "Perplexity by the trainer over perplexity by the rollout engine",
        _ppo("rollout_corr/ppl_ratio", "mismatch/mismatch_ppl_ratio"),
    ),
    Signal(
        "rollout_log_ppl_diff",
        "nats",
        "Mean absolute difference of log perplexity, trainer to rollout engine",
        _ppo("rollout_corr/log_ppl_abs_diff", "mismatch/mismatch_log_ppl_abs_diff"),
    ),
    Signal(
        "rollout_probs_diff",
        "",
        "Mean difference of token probability, trainer to rollout engine",
        _ppo("training/rollout_probs_diff_mean"),
    ),
    Signal(
        "rollout_probs_correlation",
        "",
        "Correlation of token probabilities, trainer with rollout engine",
        _ppo("training/rollout_actor_probs_pearson_corr"),
    ),
    # Time
    Signal("step_time", "seconds", "Duration of the step", _ppo("timing_s/step", "perf/time_per_step")),
    Signal(
        "generation_time",
        "seconds",
        "Rollout, as the trainer waits for it",
        _ppo("timing_s/gen", "timing_s/generate_sequences"),
    ),
    Signal(
        "slowest_rollout_time",
        "seconds",
        "Generation of the slowest answer of the batch, as its worker saw it",
        _ppo("timing_s/agent_loop/generate_sequences/max", "timing_s/agent_loop/generate_sequences_max"),
    ),
    Signal(
        "mean_rollout_time",
        "seconds",
        "Generation of an answer, mean over the batch",
        _ppo("timing_s/agent_loop/generate_sequences/mean", "timing_s/agent_loop/generate_sequences_mean"),
    ),
    Signal("reward_time", "seconds", "Scoring, where it is a phase of its own", _ppo("timing_s/reward")),
    Signal(
        "old_log_prob_time",
        "seconds",
        "Log probabilities of the sampled policy",
        _ppo("timing_s/old_log_prob", "timing_s/old_log_prob_entropy"),
    ),
    Signal("ref_time", "seconds", "Log probabilities of the reference", _ppo("timing_s/ref")),
    Signal("values_time", "seconds", "Forward pass of the value model", _ppo("timing_s/values")),
    Signal("adv_time", "seconds", "Advantages", _ppo("timing_s/adv")),
    Signal("update_actor_time", "seconds", "Update of the actor", _ppo("timing_s/update_actor")),
    Signal("update_critic_time", "seconds", "Update of the value model", _ppo("timing_s/update_critic")),
    Signal(
        "weight_sync_time",
        "seconds",
        "New weights to the rollout engine",
        _ppo("timing_s/update_weights", "timing_s/sync_rollout_weights"),
    ),
    Signal("validation_time", "seconds", "Validation, on steps that have one", _ppo("timing_s/testing")),
    Signal(
        "checkpoint_time", "seconds", "Saving a checkpoint, on steps that have one", _ppo("timing_s/save_checkpoint")
    ),
    # Speed and memory
    Signal("throughput", "tokens_per_second", "Tokens a second and GPU", _ppo("perf/throughput")),
    Signal(
        "tokens",
        "tokens",
        "Tokens of the step, prompts included",
        _ppo("perf/total_num_tokens") + _sft("train/global_tokens"),
    ),
    Signal(
        "mfu",
        "ratio",
        "Model FLOPs utilisation of the update",
        _ppo("perf/mfu/actor", "actor/mfu") + _sft("train/mfu", "mfu"),
    ),
    Signal(
        "gpu_memory",
        "bytes",
        "Peak of the memory that torch reserved on a GPU; 0 without one",
        _ppo("actor/perf/max_memory_reserved_gb", "perf/max_memory_reserved_gb", scale=GIB)
        + _sft("perf/max_memory_reserved_gb", scale=GIB),
    ),
    Signal(
        "gpu_memory_allocated",
        "bytes",
        "Peak of the memory that tensors took on a GPU; 0 without one",
        _ppo("actor/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb", scale=GIB)
        + _sft("perf/max_memory_allocated_gb", scale=GIB),
    ),
    Signal(
        "host_memory",
        "bytes",
        "Memory in use on the trainer's host",
        _ppo("actor/perf/cpu_memory_used_gb", "perf/cpu_memory_used_gb", scale=GIB)
        + _sft("perf/cpu_memory_used_gb", scale=GIB),
    ),
    Signal(
        "run_memory",
        "bytes",
        "Memory that the run's own processes hold on the trainer's host",
        # The plugin adds it to the step's metrics (trainer_entry.plugin.memory).
        _ppo("verl_sentinel/run_memory_bytes") + _sft("verl_sentinel/run_memory_bytes"),
    ),
)

SIGNALS: Final[Mapping[str, Signal]] = {signal.name: signal for signal in _SIGNALS}
"""Every canonical signal by name, in the order in which a person wants to read them."""


Table = tuple[tuple[str, tuple[Spelling, ...]], ...]


def _of_family(trainer: str) -> Table:
    """Signals and spellings of one family of trainers; all of them where the family is not known."""
    rows = ((s.name, tuple(p for p in s.spellings if trainer in ("", p.trainer))) for s in _SIGNALS)
    return tuple((name, spellings) for name, spellings in rows if spellings)


TABLES: Final = {family: _of_family(family) for family in ("", PPO, SFT)}
"""The table of each family, and of none in particular."""
FAMILIES: Final = {"ppo_v1": PPO, "ppo_legacy": PPO, "sft": SFT}
"""Family by the name that a trainer gives itself."""
