"""Healthy runs of our own making, under verl's keys: what the real logs lack, and what there is where they are not.

Called by the benchmark. Noise, tails, courses and pauses follow real logs: batch noise that is hardly correlated, a log
of the gradient with heavy tails once the policy is nearly saturated, entropy that falls slowly, step time that follows
the number of tokens, memory that jumps to its plateau, slow validation and checkpoint steps. Everything comes from the
seed.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.detection.runs import HealthyRun, Step
from exporter.detectors.setup import LrSchedule, RunSetup
from exporter.signals import GIB

Series = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """What kind of run. Pairs are first and last level."""

    name: str
    steps: int = 900
    trainer: str = "grpo"
    """``grpo``, ``ppo`` (with a critic) or ``sft``."""
    legacy: bool = False
    """Memory under the keys of older trainers."""
    entropy: tuple[float, float] = (0.6, 0.3)
    reward: tuple[float, float] = (0.25, 0.7)
    reward_noise: float = 0.05
    grad: tuple[float, float] = (0.6, 0.6)
    grad_spread: float = 0.25
    tails: float = 0.0
    """Share of heavy-tailed noise in the log of the gradient and of the loss."""
    loss: float = 0.012
    length: tuple[float, float] = (600.0, 1100.0)
    length_noise: float = 0.15
    cap: int = 4096
    kl: tuple[float, float] | None = None
    mismatch: float | None = None
    clipfrac: float = 0.002
    step_seconds: float = 60.0
    sync_share: float | None = 0.05
    validate_every: int = 0
    save_every: int = 100
    gpu_used: float = 62.0
    gpu_total: float | None = 80.0
    host_used: float = 210.0
    host_growth: float = 0.0
    """GiB over the whole run, as caches fill."""
    lr: LrSchedule = field(default_factory=lambda: LrSchedule(1e-6))
    zero_steps: float = 0.0
    """Share of steps in which every group has one reward, so that the gradient is 0."""
    known: bool = True
    """Whether the configuration is known to the watcher."""


PROFILES: Final = (
    Profile("grpo-kl", kl=(0.001, 0.06), mismatch=4e-4, validate_every=10),
    Profile(
        "grpo-kl-tiny",
        kl=(1e-4, 1.2e-4),
        entropy=(0.35, 0.2),
        reward=(0.4, 0.55),
        lr=LrSchedule(1e-6, warmup_steps=20),
        length=(900.0, 950.0),
        validate_every=20,
        known=False,
    ),
    Profile(
        "grpo-kl-high",
        kl=(0.8, 1.1),
        legacy=True,
        entropy=(1.4, 1.0),
        sync_share=None,
        grad=(2.5, 1.8),
        step_seconds=140.0,
        host_growth=60.0,
        gpu_used=70.0,
    ),
    Profile(
        "dapo",
        steps=1200,
        entropy=(0.14, 0.45),
        reward=(0.26, 0.9),
        length=(2600.0, 1100.0),
        length_noise=0.2,
        mismatch=2e-4,
        save_every=50,
        validate_every=25,
        gpu_used=118.0,
        gpu_total=141.0,
    ),
    Profile(
        "grpo-saturated",
        entropy=(0.05, 0.004),
        reward=(0.85, 0.94),
        grad=(1.5, 0.4),
        grad_spread=0.6,
        tails=0.8,
        loss=0.004,
        length=(600.0, 450.0),
        length_noise=0.22,
        clipfrac=5e-4,
        mismatch=3e-4,
        zero_steps=0.01,
        gpu_used=66.0,
        step_seconds=12.0,
        validate_every=20,
    ),
    Profile(
        "ppo-critic",
        trainer="ppo",
        kl=(0.02, 0.09),
        entropy=(2.1, 1.5),
        reward=(-0.4, 0.6),
        reward_noise=0.12,
        lr=LrSchedule(1e-6, warmup_steps=30, kind="cosine", total_steps=900, min_ratio=0.1),
        validate_every=15,
        sync_share=0.08,
    ),
    Profile(
        "grpo-long-reasoning",
        steps=800,
        length=(3000.0, 6500.0),
        cap=16384,
        step_seconds=420.0,
        entropy=(0.5, 0.38),
        reward=(0.3, 0.5),
        reward_noise=0.035,
        kl=(5e-4, 0.02),
        mismatch=8e-4,
        validate_every=10,
        save_every=20,
        gpu_used=74.0,
    ),
    Profile(
        "sft", trainer="sft", grad=(4.0, 1.2), lr=LrSchedule(1e-5, warmup_steps=50, kind="cosine", total_steps=900)
    ),
    Profile(
        "grpo-small-batch", reward_noise=0.14, grad_spread=0.45, length_noise=0.3, zero_steps=0.03, kl=(0.003, 0.03)
    ),
)


def made_runs(seed: int = 0, most_steps: int | None = None) -> list[HealthyRun]:
    """One run of each profile. The same seed gives the same runs."""
    return [
        make(profile if most_steps is None else replace(profile, steps=min(profile.steps, most_steps)), seed)
        for profile in PROFILES
    ]


def make(profile: Profile, seed: int = 0) -> HealthyRun:
    """One run of a profile."""
    rng = np.random.default_rng([seed, zlib.crc32(profile.name.encode())])
    columns = _sft(profile, rng) if profile.trainer == "sft" else _rl(profile, rng)
    steps: list[Step] = []
    for index in range(profile.steps):
        # Where a metric is not logged on every step, its column is NaN in between.
        row = {key: value for key, column in columns.items() if not math.isnan(value := float(column[index]))}
        steps.append((index + 1, row))
    return HealthyRun(f"made-{profile.name}-{seed}", "generated", steps, _setup(profile))


def _setup(profile: Profile) -> RunSetup:
    gpu = None if profile.gpu_total is None else profile.gpu_total * GIB
    if not profile.known:
        return RunSetup(gpu_memory_bytes=gpu, host_memory_bytes=512 * GIB)
    return RunSetup(
        total_steps=profile.steps,
        gpu_memory_bytes=gpu,
        host_memory_bytes=512 * GIB,
        max_response_length=None if profile.trainer == "sft" else profile.cap,
        lr=profile.lr,
        uses_kl=None if profile.trainer == "sft" else profile.kl is not None,
    )


class _Chance:
    """Noise of the shapes that training logs show, one column at a time."""

    def __init__(self, steps: int, rng: np.random.Generator) -> None:
        self.steps = steps
        self.rng = rng
        self.progress = np.arange(1, steps + 1) / steps

    def white(self, sigma: float) -> Series:
        return np.asarray(self.rng.normal(0.0, sigma, self.steps))

    def slow(self, sigma: float, memory: float = 0.97) -> Series:
        """A wander that forgets."""
        shocks = self.white(sigma * math.sqrt(1.0 - memory**2))
        values = np.empty(self.steps)
        state = 0.0
        for index, shock in enumerate(shocks):
            state = memory * state + shock
            values[index] = state
        return values

    def tailed(self, sigma: float, share: float) -> Series:
        """Normal noise, of which a share is Student's t with 3 degrees of freedom."""
        heavy = self.rng.random(self.steps) < share
        return np.where(heavy, self.rng.standard_t(3, self.steps) * sigma, self.white(sigma))

    def course(self, ends: tuple[float, float], bend: float = 3.0) -> Series:
        """From the first level to the last, fast at first."""
        first, last = ends
        return first + (last - first) * (1.0 - np.exp(-bend * self.progress)) / (1.0 - math.exp(-bend))

    def every(self, period: int, values: Series) -> Series:
        """The values on each ``period``-th step and the last, NaN on others."""
        due = np.arange(1, self.steps + 1) % period == 0 if period else np.zeros(self.steps, dtype=bool)
        if period:
            due[-1] = True
        return np.where(due, values, np.nan)


def _plateau(chance: _Chance, level: float, jumps: int = 4) -> Series:
    """Memory as torch reserves it: the peak so far, which jumps a few times early and rarely later."""
    peak = np.full(chance.steps, level * 0.965)
    for _ in range(jumps):
        at = int(chance.steps * chance.rng.beta(1.0, 12.0))
        peak[at:] += level * 0.035 / jumps
    return peak


def _rates(profile: Profile) -> Series:
    # verl logs the rate after the scheduler's step, so the first update of a warm-up shows the second rate.
    rates = (profile.lr.at(step) for step in range(1, profile.steps + 1))
    return np.array([math.nan if rate is None else rate for rate in rates])


def _rl(p: Profile, rng: np.random.Generator) -> dict[str, Any]:
    c = _Chance(p.steps, rng)
    quiet = np.where(rng.random(p.steps) < p.zero_steps, 0.0, 1.0)
    length = np.clip(c.course(p.length, 2.0) * np.exp(c.white(p.length_noise) + c.slow(0.05)), 20.0, 0.97 * p.cap)
    cut = 1.0 / (1.0 + np.exp(-(np.log(length / p.cap) + 0.9) / 0.25))
    cut = np.clip(rng.binomial(256, np.clip(cut, 0.0, 1.0)) / 256, 0.0, 1.0)
    entropy = np.exp(np.log(c.course(p.entropy)) + c.white(0.05 + 0.4 * p.tails) + c.slow(0.08))
    reward = c.course(p.reward, 2.5) + c.white(p.reward_noise) + c.slow(p.reward_noise / 3)
    if min(p.reward) >= 0.0:
        reward = np.clip(reward, 0.0, 1.0)
    log_grad = c.tailed(p.grad_spread, p.tails) + c.slow(0.1)
    grad = c.course(p.grad) * np.exp(np.clip(log_grad, -7.0, 3.5)) * quiet
    loss = p.loss * c.tailed(1.0, p.tails) * quiet
    ppo_kl = 2e-4 * c.tailed(1.0, p.tails) * (1.0 + 4.0 * p.tails)
    spread = np.clip(1.8 + c.white(0.4), 0.1, 2.5)
    tokens = 128 * (length + 260.0)
    generation = 0.62 * p.step_seconds * (length / p.length[0]) ** 0.7 * np.exp(c.white(0.08))
    update = 0.25 * p.step_seconds * (length / p.length[0]) * np.exp(c.white(0.02))
    log_prob = 0.05 * p.step_seconds * (length / p.length[0]) * np.exp(c.white(0.03))
    generation[0] *= 1.8
    out: dict[str, Any] = {
        "actor/entropy": entropy,
        "actor/pg_loss": loss,
        "actor/grad_norm": grad,
        "actor/lr": _rates(p),
        "actor/ppo_kl": ppo_kl,
        "actor/pg_clipfrac": p.clipfrac * np.exp(c.tailed(0.3, p.tails)) * quiet,
        "actor/pg_clipfrac_lower": np.zeros(p.steps),
        "critic/score/mean": reward,
        "critic/rewards/mean": reward,
        "critic/advantages/mean": c.white(0.02) * quiet,
        "critic/advantages/max": spread * quiet,
        "critic/advantages/min": -spread * quiet,
        "response_length/mean": length,
        "response_length/max": np.minimum(length * np.exp(np.abs(c.white(0.5)) + 0.4), p.cap),
        "response_length/clip_ratio": cut,
        "response/aborted_ratio": rng.binomial(256, 2e-4, p.steps) / 256,
        "perf/total_num_tokens": tokens,
        "perf/mfu/actor": 0.32 * np.exp(c.white(0.03)),
        "timing_s/gen": generation,
        "timing_s/update_actor": update,
        "timing_s/old_log_prob": log_prob,
        "timing_s/reward": np.full(p.steps, 0.002) * np.exp(c.white(0.2)),
        "timing_s/adv": np.full(p.steps, 0.003) * np.exp(c.white(0.1)),
        "training/global_step": np.arange(1.0, p.steps + 1),
    }
    total = generation + update + log_prob + 0.5
    if p.kl is not None:
        course = np.exp(np.linspace(math.log(p.kl[0]), math.log(p.kl[1]), p.steps))
        out["actor/kl_loss"] = course * np.exp(c.white(0.12) + c.slow(0.1))
        out["actor/kl_coef"] = np.full(p.steps, 0.001)
        out["actor/loss"] = loss + 0.001 * out["actor/kl_loss"]
        out["timing_s/ref"] = log_prob * np.exp(c.white(0.02))
        total = total + out["timing_s/ref"]
    if p.mismatch is not None:
        size = p.mismatch * np.exp(c.tailed(0.3, p.tails))
        out["rollout_corr/kl"] = size * (1.0 + c.white(0.5))
        out["rollout_corr/k3_kl"] = size
        out["rollout_corr/log_ppl_abs_diff"] = 3.0 * size * np.exp(c.white(0.2))
        out["rollout_corr/ppl_ratio"] = 1.0 + size * c.white(1.0)
        out["training/rollout_probs_diff_mean"] = 8.0 * size * np.exp(c.white(0.1))
        out["training/rollout_actor_probs_pearson_corr"] = 1.0 - 2.0 * size
    if p.trainer == "ppo":
        out["critic/vf_loss"] = c.course((0.4, 0.08)) * np.exp(c.white(0.3))
        out["critic/grad_norm"] = 3.0 * np.exp(c.white(0.4))
        out["critic/lr"] = np.full(p.steps, 1e-5)
        out["critic/vf_explained_var"] = np.minimum(c.course((-0.5, 0.6)) + c.white(0.08), 1.0)
        out["timing_s/values"] = log_prob * np.exp(c.white(0.02))
        out["timing_s/update_critic"] = 0.8 * update
        total = total + out["timing_s/values"] + out["timing_s/update_critic"]
    if p.sync_share is not None:
        out["timing_s/update_weights"] = p.sync_share * p.step_seconds * np.exp(c.white(0.06))
        total = total + out["timing_s/update_weights"]
    out["perf/throughput"] = tokens / total / 8
    validation = c.every(p.validate_every, 0.8 * p.step_seconds * np.exp(c.white(0.15)))
    saving = c.every(p.save_every, 0.6 * p.step_seconds * np.exp(c.white(0.2)))
    out["timing_s/testing"], out["timing_s/save_checkpoint"] = validation, saving
    total = total + np.nan_to_num(validation) + np.nan_to_num(saving)
    out["timing_s/step"] = out["perf/time_per_step"] = total
    if p.validate_every:
        score = np.clip(c.course(p.reward, 2.5) - 0.04 + c.slow(0.015) + c.white(0.02), -1.0, 1.0)
        out["val-core/math/acc/mean@1"] = c.every(p.validate_every, score)
    return out | _memory(p, c, "actor/perf/" if p.legacy else "perf/")


def _sft(p: Profile, rng: np.random.Generator) -> dict[str, Any]:
    c = _Chance(p.steps, rng)
    loss = c.course((2.4, 1.1), 4.0) * np.exp(c.white(0.05))
    return {
        "train/loss": loss,
        "train/grad_norm": c.course(p.grad) * np.exp(c.white(0.2)),
        "train/lr": _rates(p),
        "train/mfu": 0.4 * np.exp(c.white(0.02)),
        "train/global_tokens": 120_000 * np.exp(c.white(0.1)),
        "val/loss": c.every(50, c.course((2.4, 1.2), 4.0) * np.exp(c.white(0.01))),
    } | _memory(p, c, "perf/")


def _memory(p: Profile, c: _Chance, prefix: str) -> dict[str, Any]:
    reserved = _plateau(c, p.gpu_used)
    host = p.host_used + p.host_growth * c.progress + c.slow(0.6) + c.white(0.3) + 6.0 * np.exp(-40 * c.progress)
    return {
        f"{prefix}max_memory_reserved_gb": reserved,
        f"{prefix}max_memory_allocated_gb": reserved * 0.93,
        f"{prefix}cpu_memory_used_gb": host,
    }
