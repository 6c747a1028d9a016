"""What verl logs in one step: keys and usual values, for benchmarks that need a load like a real run's.

Used by the benchmarks of the exporter. The keys are those that verl 0.9.1's V1 trainer writes (GRPO with a KL loss, and
those of a value model besides); the values are a healthy run's of some size. Keys that become signals come first, so
that a step with fewer metrics still has those.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_SIGNALS = {
    "actor/loss": 0.0045,
    "actor/pg_loss": 0.0047,
    "actor/grad_norm": 0.7,
    "actor/lr": 1e-6,
    "critic/vf_loss": 0.21,
    "critic/grad_norm": 1.9,
    "critic/lr": 1e-5,
    "critic/vf_explained_var": 0.61,
    "actor/kl_loss": 0.0244,
    "actor/kl_coef": 0.001,
    "actor/ppo_kl": 0.00027,
    "actor/entropy": 1.03,
    "actor/pg_clipfrac": 0.002,
    "critic/score/mean": 0.52,
    "critic/advantages/max": 1.5,
    "critic/advantages/min": -1.5,
    "response_length/mean": 812.0,
    "response_length/clip_ratio": 0.016,
    "response/aborted_ratio": 0.0,
    "training/rollout_failure/evicted_samples": 0.0,
    "rollout_corr/kl": 0.0021,
    "rollout_corr/k3_kl": 0.0023,
    "rollout_corr/ppl_ratio": 1.003,
    "rollout_corr/log_ppl_abs_diff": 0.011,
    "training/rollout_probs_diff_mean": 0.004,
    "training/rollout_actor_probs_pearson_corr": 0.998,
    "timing_s/step": 31.2,
    "timing_s/gen": 17.5,
    "timing_s/reward": 0.7,
    "timing_s/old_log_prob": 2.6,
    "timing_s/ref": 2.4,
    "timing_s/values": 1.8,
    "timing_s/adv": 0.04,
    "timing_s/update_actor": 7.9,
    "timing_s/update_critic": 5.2,
    "timing_s/update_weights": 1.1,
    "perf/throughput": 2496.0,
    "perf/total_num_tokens": 622_848.0,
    "perf/mfu/actor": 0.31,
    "actor/perf/max_memory_reserved_gb": 61.4,
    "actor/perf/max_memory_allocated_gb": 55.2,
    "actor/perf/cpu_memory_used_gb": 142.9,
}
_OTHERS = {
    "actor/pg_clipfrac_lower": 0.0001,
    "critic/vf_clipfrac": 0.003,
    "critic/values/max": 1.1,
    "critic/values/mean": 0.5,
    "critic/values/min": -0.2,
    "critic/advantages/mean": 0.0048,
    "critic/returns/max": 1.5,
    "critic/returns/mean": 0.0048,
    "critic/returns/min": -1.5,
    "critic/rewards/max": 1.0,
    "critic/rewards/mean": 0.51,
    "critic/rewards/min": 0.1,
    "critic/score/max": 1.0,
    "critic/score/min": 0.1,
    "global_seqlen/balanced_max": 78_012.0,
    "global_seqlen/balanced_min": 77_640.0,
    "global_seqlen/max": 81_911.0,
    "global_seqlen/mean": 77_856.0,
    "global_seqlen/min": 73_104.0,
    "global_seqlen/minmax_diff": 8807.0,
    "num_turns/max": 2.0,
    "num_turns/mean": 2.0,
    "num_turns/min": 2.0,
    "perf/mfu/critic": 0.29,
    "perf/time_per_step": 31.2,
    "prompt_length/clip_ratio": 0.01,
    "prompt_length/max": 412.0,
    "prompt_length/mean": 161.0,
    "prompt_length/min": 40.0,
    "response_length/max": 1024.0,
    "response_length/min": 58.0,
    "response_length_non_aborted/clip_ratio": 0.016,
    "response_length_non_aborted/max": 1024.0,
    "response_length_non_aborted/mean": 812.0,
    "response_length_non_aborted/min": 58.0,
    "rollout_corr/chi2_seq": 0.004,
    "rollout_corr/chi2_token": 0.0002,
    "rollout_corr/log_ppl_diff": -0.0023,
    "rollout_corr/log_ppl_diff_max": 0.029,
    "rollout_corr/log_ppl_diff_min": -0.035,
    "rollout_corr/rollout_log_ppl": 0.958,
    "rollout_corr/rollout_ppl": 2.61,
    "rollout_corr/training_log_ppl": 0.958,
    "rollout_corr/training_ppl": 2.61,
    "timing_per_token_ms/adv": 0.00006,
    "timing_per_token_ms/gen": 0.042,
    "timing_per_token_ms/ref": 0.0038,
    "timing_per_token_ms/update_actor": 0.0127,
    "training/epoch": 0.0,
    "training/global_step": 37.0,
    "training/off_policy/trajectory_spans/max": 1.0,
    "training/off_policy/trajectory_spans/mean": 1.0,
    "training/off_policy/trajectory_spans/min": 1.0,
    "training/off_policy/trajectory_staleness/max": 0.0,
    "training/off_policy/trajectory_staleness/mean": 0.0,
    "training/off_policy/trajectory_staleness/min": 0.0,
    "training/rollout_probs_diff_max": 0.31,
    "training/rollout_probs_diff_std": 0.009,
}


_ON_SOME_STEPS = {
    "val-core/gsm8k/reward/mean@1": 0.48,
    "val/loss": 0.7,
    "timing_s/testing": 41.0,
    "timing_s/save_checkpoint": 12.0,
}
"""Only on steps that have a validation or save a checkpoint."""


def keys(count: int, *, every_signal: bool = False) -> list[str]:
    """``count`` keys: verl's own, and beyond those that it has, keys such as a reward function of one's own adds.

    ``every_signal``: with those of validation and checkpoints, which a usual step does not have.
    """
    known = [*_SIGNALS, *(_ON_SOME_STEPS if every_signal else ()), *_OTHERS]
    return (known + [f"reward_extra/{number}/mean" for number in range(count - len(known))])[:count]


def steps(count: int, rng: random.Random, *, every_signal: bool = False) -> Iterator[dict[str, float]]:
    """Metrics of one step after the other, ``count`` of each: the usual values, each with a spread of a tenth."""
    known = {**_SIGNALS, **_ON_SOME_STEPS, **_OTHERS}
    usual = {key: known.get(key, 0.5) for key in keys(count, every_signal=every_signal)}
    while True:
        yield {key: value * (1.0 + 0.1 * rng.uniform(-1.0, 1.0)) for key, value in usual.items()}
