"""The changes that faults make to the metrics of a run.

Called by :mod:`bench.detection.faults`, which says of each what it stands for and when it is too late. Each moves its
signals on top of the run's own values. Severity: 0 mild, 1 moderate, 2 severe.
"""

from __future__ import annotations

import math
from typing import Final

from bench.detection.patch import (
    ADVANTAGES,
    CLIP_RATIO,
    ENTROPY,
    GPU_ALLOCATED,
    GPU_MEMORY,
    GRAD,
    HOST_MEMORY,
    LENGTH,
    LOSS,
    LR,
    REWARD,
    ROLLOUT_KL,
    Patch,
    flat,
    growth,
    ramp,
)
from exporter.signals import GIB


def nan_loss(patch: Patch, severity: int) -> None:
    when = (lambda time: time == 1, lambda time: time % 2 == 1, lambda time: True)[severity]
    patch.put(LOSS, math.nan, when)
    if severity == 2:
        patch.put((*GRAD, "actor/ppo_kl", "actor/kl_loss", *ENTROPY), math.nan, lambda time: time > 1)


def infinite_gradient(patch: Patch, severity: int) -> None:
    patch.put(GRAD, (math.inf, math.inf, math.nan)[severity], lambda time: time <= (1, 3, 1000)[severity])


def nan_elsewhere(patch: Patch, severity: int) -> None:
    keys = [k for k in ("actor/kl_loss", "actor/ppo_kl", *ENTROPY, *REWARD) if patch.has(k)]
    chosen = patch.rng.choice(keys)
    patch.put(REWARD if chosen in REWARD else (chosen,), math.nan, lambda time: severity > 0 or time <= 2)
    if severity == 2:
        patch.times(GRAD, growth(20.0, 5))


def gradient_explosion(patch: Patch, severity: int) -> None:
    to, over = ((10.0, 10), (50.0, 6), (600.0, 3))[severity]
    patch.times(GRAD, growth(to, over))
    patch.add(LOSS, ramp(patch.size(*LOSS) * (1.0, 4.0, 20.0)[severity], over, 0.0))
    if patch.has("actor/ppo_kl"):
        patch.lift(
            ["actor/ppo_kl"], max(patch.top("actor/ppo_kl") * (2, 10, 100)[severity], (1e-3, 1e-2, 0.1)[severity]), over
        )
        patch.lift(["actor/pg_clipfrac"], (0.01, 0.05, 0.2)[severity], over)


def gradient_instability(patch: Patch, severity: int) -> None:
    level = patch.level(*GRAD)
    logs = [abs(math.log(max(v, 1e-12) / level)) for v in patch.recent(*GRAD)] if level > 0 else [0.3]
    own = 1.5 * sorted(logs)[len(logs) // 2]
    extra = max((0.6, 0.9, 1.4)[severity], own * (1.7, 2.8, 5.0)[severity])
    noise = [math.exp(min(extra * patch.rng.gauss(0.0, 1.0), 8.0)) for _ in patch.steps]
    patch.times(GRAD, lambda time: noise[time - 1])
    shake = patch.size(*LOSS) * (0.5, 1.0, 2.0)[severity]
    patch.add(LOSS, lambda time: shake * patch.rng.gauss(0.0, 1.0))


def loss_surge(patch: Patch, severity: int) -> None:
    factor, over = ((5.0, 4), (12.0, 3), (60.0, 2))[severity]
    patch.add(LOSS, ramp(patch.size(*LOSS) * factor, over, 0.0))
    patch.times(GRAD, ramp((1.5, 2.5, 6.0)[severity], over))


def kl_runaway(patch: Patch, severity: int) -> None:
    over = (60, 40, 15)[severity]
    to = max(patch.top("actor/kl_loss", "actor/reward_kl_penalty") * (10, 30, 100)[severity], (0.3, 1.0, 5.0)[severity])
    patch.lift(["actor/kl_loss", "actor/reward_kl_penalty"], to, over)
    patch.lift(["actor/ppo_kl"], to / 50.0, over)
    patch.times(GRAD, ramp((1.3, 2.0, 4.0)[severity], over))
    patch.times(REWARD, ramp((0.95, 0.85, 0.6)[severity], over))


def ppo_kl_runaway(patch: Patch, severity: int) -> None:
    over = (30, 20, 10)[severity]
    patch.lift(["actor/ppo_kl"], max(patch.top("actor/ppo_kl") * 20.0, (0.05, 0.2, 1.0)[severity]), over)
    patch.lift(["actor/pg_clipfrac"], (0.03, 0.12, 0.4)[severity], over)
    patch.times(GRAD, ramp((1.2, 1.8, 3.0)[severity], over))


def entropy_collapse(patch: Patch, severity: int) -> None:
    to, over = ((0.3, 60), (0.1, 40), (0.02, 20))[severity]
    patch.times(ENTROPY, growth(to, over))
    patch.times(GRAD, ramp((0.8, 0.6, 0.4)[severity], over))
    patch.times(["actor/pg_clipfrac"], ramp((0.7, 0.4, 0.2)[severity], over))
    patch.times(REWARD, ramp((1.0, 0.9, 0.75)[severity], over))


def entropy_explosion(patch: Patch, severity: int) -> None:
    to, over = ((2.5, 50), (5.0, 30), (12.0, 15))[severity]
    amount = max(patch.level(*ENTROPY) * (to - 1.0), (0.25, 0.8, 2.5)[severity])
    patch.lift(ENTROPY, amount, over, straight=True)
    patch.times(REWARD, ramp((0.85, 0.6, 0.3)[severity], over))
    patch.lengths(ramp((1.1, 1.3, 1.6)[severity], over))


def length_collapse(patch: Patch, severity: int) -> None:
    to, over = ((0.5, 30), (0.25, 15), (0.08, 8))[severity]
    patch.lengths(growth(to, over))
    patch.times(CLIP_RATIO, growth(0.05, over))
    patch.times(REWARD, ramp((0.7, 0.4, 0.1)[severity], over))
    patch.times(ENTROPY, ramp((0.9, 0.7, 0.5)[severity], over))


def length_explosion(patch: Patch, severity: int) -> None:
    to, over = ((1.8, 40), (3.0, 25), (6.0, 12))[severity]
    patch.lengths(growth(to, over))
    patch.lift(CLIP_RATIO, (0.2, 0.5, 0.9)[severity], over, straight=True)
    patch.times(REWARD, ramp((0.95, 0.8, 0.5)[severity], over))


def reward_collapse(patch: Patch, severity: int) -> None:
    to, over = ((0.6, 20), (0.3, 10), (0.0, 4))[severity]
    patch.times((*REWARD, "critic/score/max", "critic/rewards/max"), ramp(to, over))
    patch.times(ADVANTAGES, ramp((0.9, 0.6, 0.2)[severity], over))
    for time, row in enumerate(patch.rows, start=1):
        for key in row:
            if key.startswith("val-core/"):
                row[key] *= ramp(to, over)(time)


def reward_hacking(patch: Patch, severity: int) -> None:
    over = 100
    level = abs(patch.level(*REWARD))
    patch.add(REWARD, ramp(max((0.2, 0.35, 0.5)[severity] * level, 0.05), over, 0.0))
    for time, row in enumerate(patch.rows, start=1):
        for key in row:
            if key.startswith("val-core/"):
                row[key] *= ramp((0.75, 0.5, 0.25)[severity], over)(time)
    patch.lengths(ramp((1.0, 1.15, 1.3)[severity], over))


def plateau_at_the_floor(patch: Patch, severity: int) -> None:
    over = (140, 110, 70)[severity]
    patch.times(ENTROPY, growth((0.06, 0.03, 0.01)[severity], over))
    level = patch.level(*REWARD)
    patch.add(REWARD, lambda time: 0.0)
    for key in REWARD:
        for row in patch.rows:
            if key in row:
                row[key] = level + 0.5 * (row[key] - level)
    patch.times(GRAD, ramp((0.6, 0.4, 0.2)[severity], over))
    patch.times(ADVANTAGES, ramp((0.8, 0.6, 0.4)[severity], over))


def dead_run(patch: Patch, severity: int) -> None:
    lively = [patch.rng.random() < 0.12 for _ in patch.steps]
    keys = (*GRAD, *ADVANTAGES, *LOSS, "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower")
    patch.put(keys, 0.0, lambda time: severity > 0 or time <= 3 or not lively[time - 1])
    if severity == 2:
        value = patch.rng.choice([0.0, patch.level(*REWARD)])
        patch.put(REWARD, value)


def stuck_metrics(patch: Patch, severity: int) -> None:
    last = patch.before[-1][1]
    timed = ("timing_", "perf/", "training/")
    learned = (*LOSS, *GRAD, *REWARD, *ENTROPY, "actor/ppo_kl", "actor/pg_clipfrac", "actor/kl_loss")
    for row in patch.rows:
        for key in row:
            frozen = key in learned if severity == 0 else severity == 2 or not key.startswith(timed)
            if frozen and key in last and key != "training/global_step":
                row[key] = last[key]


def step_time_drift(patch: Patch, severity: int) -> None:
    to, over = ((1.5, 100), (2.2, 80), (4.0, 40))[severity]
    patch.slower(ramp(to, over))


def step_time_jump(patch: Patch, severity: int) -> None:
    patch.slower(flat((1.6, 2.5, 6.0)[severity]))


def slow_generation(patch: Patch, severity: int) -> None:
    patch.longer("gen", flat((2.0, 3.5, 8.0)[severity]))


LEAKS: Final = (300, 150, 60)
"""Steps until the limit is reached, by severity."""


def gpu_leak(patch: Patch, severity: int) -> None:
    limit = (patch.setup.gpu_memory_bytes or math.nan) / GIB
    _leak(patch, GPU_MEMORY, limit, LEAKS[severity], block=0.25)
    _leak(patch, GPU_ALLOCATED, limit, LEAKS[severity], block=0.0)


def host_leak(patch: Patch, severity: int) -> None:
    _leak(patch, HOST_MEMORY, (patch.setup.host_memory_bytes or math.nan) / GIB, LEAKS[severity], block=0.0)


def _leak(patch: Patch, keys: tuple[str, ...], limit: float, over: int, block: float) -> None:
    # What the run itself takes more meanwhile would change when the limit is reached, so only its noise is kept.
    level = patch.level(*keys)
    gap = limit - level
    for time, row in enumerate(patch.rows, start=1):
        amount = gap * time / over
        taken = math.floor(amount / block) * block if block else amount * (1.0 + 0.01 * patch.rng.gauss(0.0, 1.0))
        for key in keys:
            if key in row:
                row[key] = level + min(max(row[key] - level, -0.01 * gap), 0.01 * gap) + taken


def wrong_rate(patch: Patch, severity: int) -> None:
    patch.times(LR, flat((1.5, 3.0, 10.0)[severity]))
    patch.times(GRAD, ramp((1.0, 1.2, 2.5)[severity], 10))
    patch.times(["actor/pg_clipfrac"], ramp((1.2, 2.0, 6.0)[severity], 10))


def rate_dropped(patch: Patch, severity: int) -> None:
    patch.times(LR, flat((0.5, 0.1, 0.0)[severity]))
    patch.times(["actor/pg_clipfrac"], flat((0.7, 0.3, 0.0)[severity]))


def rate_not_restored(patch: Patch, severity: int) -> None:
    """The trainer starts again from a checkpoint 20 steps back, with another learning rate than it had there."""
    steps = [(step - 20, metrics) for step, metrics in patch.steps]
    patch.steps[:] = steps
    patch.times(LR, flat((0.6, 3.0, 10.0)[severity]))


def weight_sync(patch: Patch, severity: int) -> None:
    to, over = ((3.0, 40), (6.0, 25), (15.0, 12))[severity]
    patch.longer("update_weights", ramp(to, over))


def rollout_mismatch(patch: Patch, severity: int) -> None:
    to, over = ((5.0, 60), (20.0, 40), (100.0, 20))[severity]
    floors = {"rollout_corr/k3_kl": 1.0, "rollout_corr/kl": 1.0, "rollout_corr/log_ppl_abs_diff": 3.0}
    for key in ROLLOUT_KL:
        if patch.has(key):
            patch.lift([key], max(patch.top(key) * to, floors.get(key, 0.5) * (0.01, 0.05, 0.3)[severity]), over)
    ratio = (0.03, 0.1, 0.4)[severity]
    patch.add(["rollout_corr/ppl_ratio"], ramp(ratio, over, 0.0))
    patch.add(["training/rollout_actor_probs_pearson_corr"], ramp(-ratio, over, 0.0))
    patch.times(REWARD, ramp((1.0, 0.9, 0.7)[severity], over))


def clipfrac_saturated(patch: Patch, severity: int) -> None:
    to, over = ((0.1, 30), (0.3, 15), (0.7, 6))[severity]
    patch.lift(["actor/pg_clipfrac"], to, over, straight=True)
    patch.lift(["actor/ppo_kl"], to / 5.0, over)


def answers_cut(patch: Patch, severity: int) -> None:
    to, over = ((0.35, 40), (0.6, 20), (0.95, 10))[severity]
    patch.lengths(ramp((1.2, 1.5, 2.0)[severity], over))
    patch.lift(CLIP_RATIO, to, over, straight=True)
    patch.times(REWARD, ramp((0.9, 0.7, 0.3)[severity], over))


def rollouts_fail(patch: Patch, severity: int) -> None:
    share, requests = (0.02, 0.1, 0.5)[severity], 128
    for row in patch.rows:
        if "response/aborted_ratio" in row:
            failed = sum(patch.rng.random() < share for _ in range(requests))
            row["response/aborted_ratio"] = min(1.0, row["response/aborted_ratio"] + failed / requests)
            for key in (*REWARD, LENGTH[0]):
                if key in row:
                    row[key] *= 1.0 - failed / requests
