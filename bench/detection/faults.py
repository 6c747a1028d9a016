"""What goes wrong: kinds of fault, each in three severities, put into a healthy run at a known step.

Called by the benchmark. Every kind moves the signals together that such a failure moves, keeps the noise of the run, and
has a deadline in steps, with the reason why the run is beyond repair after it. Severity 0 is mild, 1 moderate, 2 severe.
Moderate and severe faults have to page, mild ones at least to warn, but for the kinds that say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
from exporter.detectors.base import Severity
from exporter.signals import GIB

SEVERITIES: Final = ("mild", "moderate", "severe")
WARN: Final = Severity.WARNING
PAGE: Final = Severity.CRITICAL

Inject = Callable[[Patch, int], None]


def _always(patch: Patch) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    name: str
    deadline: tuple[int, int, int]
    """Steps from the first changed one, that one included, within which it has to be said; by severity."""
    why: str
    """Why it is too late then."""
    needs: tuple[tuple[str, ...], ...]
    """Of each group the run must log one."""
    inject: Inject
    expects: tuple[Severity, Severity, Severity] = (WARN, PAGE, PAGE)
    """The least that has to be said."""
    fits: Callable[[Patch], bool] = _always
    """Whether the fault means anything where the run stands: no entropy can collapse that is 0 already."""
    reaches: tuple[int, int, int] | None = None
    """Of a leak, the step at which the limit is reached."""


def _nan_loss(patch: Patch, severity: int) -> None:
    when = (lambda time: time == 1, lambda time: time % 2 == 1, lambda time: True)[severity]
    patch.put(LOSS, math.nan, when)
    if severity == 2:
        patch.put((*GRAD, "actor/ppo_kl", "actor/kl_loss", *ENTROPY), math.nan, lambda time: time > 1)


def _infinite_gradient(patch: Patch, severity: int) -> None:
    patch.put(GRAD, (math.inf, math.inf, math.nan)[severity], lambda time: time <= (1, 3, 1000)[severity])


def _nan_elsewhere(patch: Patch, severity: int) -> None:
    keys = [k for k in ("actor/kl_loss", "actor/ppo_kl", *ENTROPY, *REWARD) if patch.has(k)]
    chosen = patch.rng.choice(keys)
    patch.put(REWARD if chosen in REWARD else (chosen,), math.nan, lambda time: severity > 0 or time <= 2)
    if severity == 2:
        patch.times(GRAD, growth(20.0, 5))


def _gradient_explosion(patch: Patch, severity: int) -> None:
    to, over = ((10.0, 10), (50.0, 6), (600.0, 3))[severity]
    patch.times(GRAD, growth(to, over))
    patch.add(LOSS, ramp(patch.size(*LOSS) * (1.0, 4.0, 20.0)[severity], over, 0.0))
    if patch.has("actor/ppo_kl"):
        patch.lift(
            ["actor/ppo_kl"], max(patch.top("actor/ppo_kl") * (2, 10, 100)[severity], (1e-3, 1e-2, 0.1)[severity]), over
        )
        patch.lift(["actor/pg_clipfrac"], (0.01, 0.05, 0.2)[severity], over)


def _gradient_instability(patch: Patch, severity: int) -> None:
    level = patch.level(*GRAD)
    logs = [abs(math.log(max(v, 1e-12) / level)) for v in patch.recent(*GRAD)] if level > 0 else [0.3]
    own = 1.5 * sorted(logs)[len(logs) // 2]
    extra = max((0.6, 0.9, 1.4)[severity], own * (1.7, 2.8, 5.0)[severity])
    noise = [math.exp(min(extra * patch.rng.gauss(0.0, 1.0), 8.0)) for _ in patch.steps]
    patch.times(GRAD, lambda time: noise[time - 1])
    shake = patch.size(*LOSS) * (0.5, 1.0, 2.0)[severity]
    patch.add(LOSS, lambda time: shake * patch.rng.gauss(0.0, 1.0))


def _loss_surge(patch: Patch, severity: int) -> None:
    factor, over = ((5.0, 4), (12.0, 3), (60.0, 2))[severity]
    patch.add(LOSS, ramp(patch.size(*LOSS) * factor, over, 0.0))
    patch.times(GRAD, ramp((1.5, 2.5, 6.0)[severity], over))


def _kl_runaway(patch: Patch, severity: int) -> None:
    over = (60, 40, 15)[severity]
    to = max(patch.top("actor/kl_loss", "actor/reward_kl_penalty") * (10, 30, 100)[severity], (0.3, 1.0, 5.0)[severity])
    patch.lift(["actor/kl_loss", "actor/reward_kl_penalty"], to, over)
    patch.lift(["actor/ppo_kl"], to / 50.0, over)
    patch.times(GRAD, ramp((1.3, 2.0, 4.0)[severity], over))
    patch.times(REWARD, ramp((0.95, 0.85, 0.6)[severity], over))


def _ppo_kl_runaway(patch: Patch, severity: int) -> None:
    over = (30, 20, 10)[severity]
    patch.lift(["actor/ppo_kl"], max(patch.top("actor/ppo_kl") * 20.0, (0.05, 0.2, 1.0)[severity]), over)
    patch.lift(["actor/pg_clipfrac"], (0.03, 0.12, 0.4)[severity], over)
    patch.times(GRAD, ramp((1.2, 1.8, 3.0)[severity], over))


def _entropy_collapse(patch: Patch, severity: int) -> None:
    to, over = ((0.3, 60), (0.1, 40), (0.02, 20))[severity]
    patch.times(ENTROPY, growth(to, over))
    patch.times(GRAD, ramp((0.8, 0.6, 0.4)[severity], over))
    patch.times(["actor/pg_clipfrac"], ramp((0.7, 0.4, 0.2)[severity], over))
    patch.times(REWARD, ramp((1.0, 0.9, 0.75)[severity], over))


def _entropy_explosion(patch: Patch, severity: int) -> None:
    to, over = ((2.5, 50), (5.0, 30), (12.0, 15))[severity]
    amount = max(patch.level(*ENTROPY) * (to - 1.0), (0.25, 0.8, 2.5)[severity])
    patch.lift(ENTROPY, amount, over, straight=True)
    patch.times(REWARD, ramp((0.85, 0.6, 0.3)[severity], over))
    patch.lengths(ramp((1.1, 1.3, 1.6)[severity], over))


def _length_collapse(patch: Patch, severity: int) -> None:
    to, over = ((0.5, 30), (0.25, 15), (0.08, 8))[severity]
    patch.lengths(growth(to, over))
    patch.times(CLIP_RATIO, growth(0.05, over))
    patch.times(REWARD, ramp((0.7, 0.4, 0.1)[severity], over))
    patch.times(ENTROPY, ramp((0.9, 0.7, 0.5)[severity], over))


def _length_explosion(patch: Patch, severity: int) -> None:
    to, over = ((1.8, 40), (3.0, 25), (6.0, 12))[severity]
    patch.lengths(growth(to, over))
    patch.lift(CLIP_RATIO, (0.2, 0.5, 0.9)[severity], over, straight=True)
    patch.times(REWARD, ramp((0.95, 0.8, 0.5)[severity], over))


def _reward_collapse(patch: Patch, severity: int) -> None:
    to, over = ((0.6, 20), (0.3, 10), (0.0, 4))[severity]
    patch.times((*REWARD, "critic/score/max", "critic/rewards/max"), ramp(to, over))
    patch.times(ADVANTAGES, ramp((0.9, 0.6, 0.2)[severity], over))
    for time, row in enumerate(patch.rows, start=1):
        for key in row:
            if key.startswith("val-core/"):
                row[key] *= ramp(to, over)(time)


def _reward_hacking(patch: Patch, severity: int) -> None:
    over = 100
    level = abs(patch.level(*REWARD))
    patch.add(REWARD, ramp(max((0.2, 0.35, 0.5)[severity] * level, 0.05), over, 0.0))
    for time, row in enumerate(patch.rows, start=1):
        for key in row:
            if key.startswith("val-core/"):
                row[key] *= ramp((0.75, 0.5, 0.25)[severity], over)(time)
    patch.lengths(ramp((1.0, 1.15, 1.3)[severity], over))


def _plateau_at_the_floor(patch: Patch, severity: int) -> None:
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


def _dead_run(patch: Patch, severity: int) -> None:
    lively = [patch.rng.random() < 0.12 for _ in patch.steps]
    keys = (*GRAD, *ADVANTAGES, *LOSS, "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower")
    patch.put(keys, 0.0, lambda time: severity > 0 or time <= 3 or not lively[time - 1])
    if severity == 2:
        value = patch.rng.choice([0.0, patch.level(*REWARD)])
        patch.put(REWARD, value)


def _stuck_metrics(patch: Patch, severity: int) -> None:
    last = patch.before[-1][1]
    timed = ("timing_", "perf/", "training/")
    learned = (*LOSS, *GRAD, *REWARD, *ENTROPY, "actor/ppo_kl", "actor/pg_clipfrac", "actor/kl_loss")
    for row in patch.rows:
        for key in row:
            frozen = key in learned if severity == 0 else severity == 2 or not key.startswith(timed)
            if frozen and key in last and key != "training/global_step":
                row[key] = last[key]


def _step_time_drift(patch: Patch, severity: int) -> None:
    to, over = ((1.5, 100), (2.2, 80), (4.0, 40))[severity]
    patch.slower(ramp(to, over))


def _step_time_jump(patch: Patch, severity: int) -> None:
    patch.slower(flat((1.6, 2.5, 6.0)[severity]))


def _slow_generation(patch: Patch, severity: int) -> None:
    patch.longer("gen", flat((2.0, 3.5, 8.0)[severity]))


LEAKS: Final = (300, 150, 60)


def _gpu_leak(patch: Patch, severity: int) -> None:
    limit = (patch.setup.gpu_memory_bytes or math.nan) / GIB
    _leak(patch, GPU_MEMORY, limit, LEAKS[severity], block=0.25)
    _leak(patch, GPU_ALLOCATED, limit, LEAKS[severity], block=0.0)


def _host_leak(patch: Patch, severity: int) -> None:
    _leak(patch, HOST_MEMORY, (patch.setup.host_memory_bytes or math.nan) / GIB, LEAKS[severity], block=0.0)


def _leak(patch: Patch, keys: tuple[str, ...], limit: float, over: int, block: float) -> None:
    gap = limit - patch.level(*keys)

    def taken(time: int) -> float:
        amount = gap * time / over
        return math.floor(amount / block) * block if block else amount * (1.0 + 0.01 * patch.rng.gauss(0.0, 1.0))

    patch.add(keys, taken)


def _wrong_rate(patch: Patch, severity: int) -> None:
    patch.times(LR, flat((1.5, 3.0, 10.0)[severity]))
    patch.times(GRAD, ramp((1.0, 1.2, 2.5)[severity], 10))
    patch.times(["actor/pg_clipfrac"], ramp((1.2, 2.0, 6.0)[severity], 10))


def _rate_dropped(patch: Patch, severity: int) -> None:
    patch.times(LR, flat((0.5, 0.1, 0.0)[severity]))
    patch.times(["actor/pg_clipfrac"], flat((0.7, 0.3, 0.0)[severity]))


def _rate_not_restored(patch: Patch, severity: int) -> None:
    """The trainer starts again from a checkpoint 20 steps back, with another learning rate than it had there."""
    steps = [(step - 20, metrics) for step, metrics in patch.steps]
    patch.steps[:] = steps
    patch.times(LR, flat((0.6, 3.0, 10.0)[severity]))


def _weight_sync(patch: Patch, severity: int) -> None:
    to, over = ((3.0, 40), (6.0, 25), (15.0, 12))[severity]
    patch.longer("update_weights", ramp(to, over))


def _rollout_mismatch(patch: Patch, severity: int) -> None:
    to, over = ((5.0, 60), (20.0, 40), (100.0, 20))[severity]
    floors = {"rollout_corr/k3_kl": 1.0, "rollout_corr/kl": 1.0, "rollout_corr/log_ppl_abs_diff": 3.0}
    for key in ROLLOUT_KL:
        if patch.has(key):
            patch.lift([key], max(patch.top(key) * to, floors.get(key, 0.5) * (0.01, 0.05, 0.3)[severity]), over)
    ratio = (0.03, 0.1, 0.4)[severity]
    patch.add(["rollout_corr/ppl_ratio"], ramp(ratio, over, 0.0))
    patch.add(["training/rollout_actor_probs_pearson_corr"], ramp(-ratio, over, 0.0))
    patch.times(REWARD, ramp((1.0, 0.9, 0.7)[severity], over))


def _clipfrac_saturated(patch: Patch, severity: int) -> None:
    to, over = ((0.1, 30), (0.3, 15), (0.7, 6))[severity]
    patch.lift(["actor/pg_clipfrac"], to, over, straight=True)
    patch.lift(["actor/ppo_kl"], to / 5.0, over)


def _answers_cut(patch: Patch, severity: int) -> None:
    to, over = ((0.35, 40), (0.6, 20), (0.95, 10))[severity]
    patch.lengths(ramp((1.2, 1.5, 2.0)[severity], over))
    patch.lift(CLIP_RATIO, to, over, straight=True)
    patch.times(REWARD, ramp((0.9, 0.7, 0.3)[severity], over))


def _rollouts_fail(patch: Patch, severity: int) -> None:
    share, requests = (0.02, 0.1, 0.5)[severity], 128
    for row in patch.rows:
        if "response/aborted_ratio" in row:
            failed = sum(patch.rng.random() < share for _ in range(requests))
            row["response/aborted_ratio"] = min(1.0, row["response/aborted_ratio"] + failed / requests)
            for key in (*REWARD, LENGTH[0]):
                if key in row:
                    row[key] *= 1.0 - failed / requests


def _entropy_above(least: float) -> Callable[[Patch], bool]:
    return lambda patch: patch.level(*ENTROPY) >= least


def _reward_counts(patch: Patch) -> bool:
    return patch.level(*REWARD) >= 0.15


def _length_left(patch: Patch) -> bool:
    cap = patch.setup.max_response_length or max(patch.recent("response_length/max", *LENGTH), default=0.0)
    return patch.level(*LENGTH) * 1.7 <= cap and patch.level(*CLIP_RATIO) < 0.4


def _gpu_limit(patch: Patch) -> bool:
    limit, level = patch.setup.gpu_memory_bytes, patch.level(*GPU_MEMORY)
    return limit is not None and 0.0 < level < 0.93 * limit / GIB


def _host_limit(patch: Patch) -> bool:
    limit, level = patch.setup.host_memory_bytes, patch.level(*HOST_MEMORY)
    return limit is not None and 0.0 < level < 0.9 * limit / GIB


KINDS: Final = (
    Kind("nan_loss", (2, 2, 2), "the first update writes the NaN into the weights", (LOSS,), _nan_loss),
    Kind("infinite_gradient", (2, 2, 2), "so does a gradient that is not finite", (GRAD,), _infinite_gradient),
    Kind("nan_elsewhere", (5, 5, 5), "what cannot be computed will be in the loss next", (ENTROPY,), _nan_elsewhere),
    Kind(
        "gradient_explosion",
        (16, 9, 5),
        "a few updates of many times the usual size leave the region where the policy works",
        (GRAD,),
        _gradient_explosion,
    ),
    Kind(
        "gradient_instability",
        (40, 40, 40),
        "the spread grows into a divergence within tens of steps",
        (GRAD,),
        _gradient_instability,
    ),
    Kind("loss_surge", (12, 10, 8), "ten steps on a wrong objective undo hundreds", (LOSS,), _loss_surge),
    Kind(
        "kl_runaway",
        (60, 40, 15),
        "by then the policy is so far from the reference that the KL term rules the loss",
        (("actor/kl_loss", "actor/reward_kl_penalty"),),
        _kl_runaway,
    ),
    Kind(
        "ppo_kl_runaway",
        (30, 20, 10),
        "the samples no longer come from the policy",
        (("actor/ppo_kl",),),
        _ppo_kl_runaway,
    ),
    Kind(
        "entropy_collapse",
        (75, 50, 25),
        "a policy that no longer explores does not come back",
        (ENTROPY,),
        _entropy_collapse,
        fits=_entropy_above(0.03),
    ),
    Kind("entropy_explosion", (60, 40, 22), "the policy is noise", (ENTROPY,), _entropy_explosion),
    Kind("length_collapse", (40, 25, 15), "the policy has unlearned to reason", (LENGTH,), _length_collapse),
    Kind(
        "length_explosion",
        (50, 35, 20),
        "nearly every answer is cut off and earns nothing",
        (LENGTH, CLIP_RATIO),
        _length_explosion,
        fits=_length_left,
    ),
    Kind(
        "reward_collapse",
        (35, 22, 14),
        "what was learned is overwritten",
        (REWARD,),
        _reward_collapse,
        fits=_reward_counts,
    ),
    Kind(
        "reward_hacking",
        (120, 120, 120),
        "a dozen validations in a row have fallen while the training score rose",
        (("val-core/",), REWARD),
        _reward_hacking,
        expects=(WARN, WARN, WARN),
    ),
    Kind(
        "plateau_at_the_floor",
        (160, 130, 90),
        "without exploration the reward stays where it is",
        (ENTROPY, REWARD),
        _plateau_at_the_floor,
        fits=_entropy_above(0.05),
    ),
    Kind("dead_run", (20, 15, 15), "each further step is paid for and teaches nothing", (GRAD, ADVANTAGES), _dead_run),
    Kind("stuck_metrics", (25, 20, 15), "nobody sees what the run does", (GRAD, LOSS), _stuck_metrics),
    Kind(
        "step_time_drift",
        (110, 90, 50),
        "the time of the reservation runs out before the last step",
        (("timing_s/step",),),
        _step_time_drift,
    ),
    Kind("step_time_jump", (20, 15, 10), "so it does", (("timing_s/step",),), _step_time_jump),
    Kind("slow_generation", (20, 15, 10), "so it does", (("timing_s/gen",), ("timing_s/step",)), _slow_generation),
    Kind(
        "gpu_memory_leak",
        tuple(int(0.9 * over) for over in LEAKS),  # type: ignore[arg-type]
        "out of memory; a checkpoint has to be saved before",
        (GPU_MEMORY,),
        _gpu_leak,
        fits=_gpu_limit,
        reaches=LEAKS,
    ),
    Kind(
        "host_memory_leak",
        tuple(int(0.9 * over) for over in LEAKS),  # type: ignore[arg-type]
        "the kernel ends the trainer; a checkpoint has to be saved before",
        (HOST_MEMORY,),
        _host_leak,
        fits=_host_limit,
        reaches=LEAKS,
    ),
    Kind("wrong_learning_rate", (10, 10, 6), "ten updates of ten times the size ruin the policy", (LR,), _wrong_rate),
    Kind(
        "learning_rate_dropped", (15, 15, 15), "each further step is paid for and teaches little", (LR,), _rate_dropped
    ),
    Kind(
        "learning_rate_not_restored",
        (20, 20, 12),
        "the resumed run has left the course of the one it continues",
        (LR,),
        _rate_not_restored,
    ),
    Kind(
        "weight_sync_growth",
        (60, 40, 25),
        "the network is failing, and the next sync may not end",
        (("timing_s/update_weights",), ("timing_s/step",)),
        _weight_sync,
    ),
    Kind("rollout_mismatch", (70, 50, 28), "the gradient is that of another policy", (ROLLOUT_KL,), _rollout_mismatch),
    Kind(
        "clipfrac_saturated",
        (40, 25, 14),
        "most tokens no longer count",
        (("actor/pg_clipfrac",),),
        _clipfrac_saturated,
    ),
    Kind("answers_cut", (55, 35, 20), "cut answers earn nothing", (CLIP_RATIO,), _answers_cut, fits=_length_left),
    Kind(
        "rollout_failures",
        (40, 20, 10),
        "the batches are no longer what they should be",
        (("response/aborted_ratio",),),
        _rollouts_fail,
    ),
)


def applies(kind: Kind, patch: Patch) -> bool:
    """Whether the run logs what the fault moves, and stands where it means something."""
    logged = {key for _, metrics in patch.before for key in metrics}
    for group in kind.needs:
        if not any(key in logged or (key.endswith("/") and any(k.startswith(key) for k in logged)) for key in group):
            return False
    return kind.fits(patch)
