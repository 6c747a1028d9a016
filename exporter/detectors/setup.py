"""What is known of a run beside its metrics: what it was configured with, and what its machine has.

Read by the detectors that judge against a promise (a learning rate's schedule, a memory's size, a length limit). The
service makes it from the configuration that the trainer reported (:func:`from_config`) and from GPU readings, replay
from its options. All of it may be unknown, and a detector has to do without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Scalar = str | int | float | bool | None

LARGEST: Final = 10**15
"""No count of steps or tokens that anybody configures is larger."""
SMALLEST_RATE: Final = 1e-20
LARGEST_RATE: Final = 1e6
LARGEST_CYCLES: Final = 1e6


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """The learning rate that was asked for: linear warm-up to ``peak``, then as ``kind`` says.

    verl has the scheduler make one step a call of ``update_actor`` (however many mini-batches that has), and logs the
    rate that it gives *after* that step. So the rate logged with step 1 is the one after one update.
    """

    peak: float
    warmup_steps: int = 0
    """In updates of the scheduler, as ``total_steps`` is."""
    kind: str = "constant"
    """``constant``, ``cosine`` or ``linear``; any other is not understood, and nothing is expected."""
    total_steps: int | None = None
    """None where it is not known, which matters to a decay only."""
    min_ratio: float = 0.0
    cycles: float = 0.5
    start_ratio: float = 0.0
    """Share of the peak at which the warm-up begins."""
    updates_per_step: int = 1
    first_step: int = 1
    """The step of the first update: later than 1 where the critic is trained alone first."""
    shift: int = 0
    """Updates by which the scheduler counts ahead (``zero_indexed_step: false``)."""
    ends_flat: bool = False
    """After ``total_steps`` the rate stays at its end (Megatron). verl's cosine goes on as a wave."""

    def at(self, update: int) -> float | None:
        """The rate after ``update`` updates (0: the first), None where it cannot be known.

        Source: verl 0.9.1 and 0.8.0, ``verl.utils.torch_functional.get_{constant,cosine}_schedule_with_warmup``;
        Megatron-Core, ``OptimizerParamScheduler.get_lr``.

        >>> schedule = LrSchedule(1e-6, warmup_steps=10, kind="cosine", total_steps=110)
        >>> [f"{schedule.at(update):.2g}" for update in (0, 5, 10, 60, 110)]
        ['0', '5e-07', '1e-06', '5e-07', '0']
        """
        update = max(update + self.shift, 0)
        if update < self.warmup_steps:
            return self.peak * (self.start_ratio + (1.0 - self.start_ratio) * update / self.warmup_steps)
        if self.kind == "constant":
            return self.peak
        if self.kind not in ("cosine", "linear") or self.total_steps is None:
            return None
        progress = (update - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        if self.ends_flat or self.kind == "linear":
            progress = min(progress, 1.0)
        wave = 1.0 - progress if self.kind == "linear" else 0.5 + 0.5 * math.cos(math.tau * self.cycles * progress)
        return self.peak * max(self.min_ratio, self.min_ratio + (1.0 - self.min_ratio) * wave)

    def logged_with(self, step: int) -> float | None:
        """The rate that verl logs with a step of the trainer, None where it cannot be known.

        >>> LrSchedule(1e-6, warmup_steps=10).logged_with(1), LrSchedule(1e-6).logged_with(1)
        (1e-07, 1e-06)
        """
        return self.at((step - self.first_step + 1) * self.updates_per_step)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """None, or nothing, is unknown."""

    total_steps: int | None = None
    gpu_memory_bytes: float | None = None
    """Memory of one GPU, the smallest where they differ."""
    host_memory_bytes: float | None = None
    max_response_length: int | None = None
    """Tokens."""
    lr: LrSchedule | None = None
    uses_kl: bool | None = None
    """Whether a KL term against a reference is part of loss or reward."""
    critic_lr: LrSchedule | None = None
    run_memory_bytes: float | None = None
    """What the processes of the run may hold together on the trainer's host."""


UNKNOWN: Final = RunSetup()

_ACTOR: Final = "actor_rollout_ref.actor"
RUN_MEMORY_LIMIT: Final = "verl_sentinel.run_memory_limit_bytes"
"""What the plugin puts beside the configuration: limit of cgroup, machine, or set by a person."""
_SYNC: Final = "parameter_sync_step"


def from_config(config: Mapping[str, Scalar]) -> RunSetup:
    """What a verl configuration, flattened with dots, says. What is missing or not understood is None; never raises.

    Source: verl 0.9.1 and 0.8.0: ``FSDPEngine._build_lr_scheduler``, the PPO trainers (which write the number of
    updates into ``optim.total_training_steps`` before the tracking opens), ``trainer.ppo.utils.need_reference_policy``,
    and ``utils.megatron.optimizer.get_megatron_optimizer_param_scheduler``.

    >>> actor, trainer = "actor_rollout_ref.actor.optim.", "trainer."
    >>> made = from_config({actor + "lr": 1e-6, actor + "lr_warmup_steps": 5, trainer + "total_training_steps": 50})
    >>> made.total_steps, made.lr.warmup_steps, made.lr.logged_with(1), made.lr.logged_with(5)
    (50, 5, 2e-07, 1e-06)
    """
    trained = _count(config, "trainer.total_training_steps")
    updates = _updates_per_step(config)
    if f"{_ACTOR}.optim.lr" in config:
        optimizer, strategy = f"{_ACTOR}.optim", config.get(f"{_ACTOR}.strategy")
        first = max(1, _count(config, "trainer.critic_warmup") or 1)
    else:
        optimizer, strategy, first = "optim", config.get("engine.strategy"), 1
    counted = _count(config, f"{optimizer}.total_training_steps")
    if trained is None and counted is not None:
        trained = counted // updates
    horizon = counted if counted is not None else None if trained is None else trained * updates
    critic_horizon = _count(config, "critic.optim.total_training_steps") or horizon
    return RunSetup(
        total_steps=trained,
        run_memory_bytes=_number(config.get(RUN_MEMORY_LIMIT)),
        max_response_length=_count(config, "data.max_response_length"),
        lr=_schedule(config, optimizer, strategy, horizon, updates, first),
        uses_kl=_either(config.get(f"{_ACTOR}.use_kl_loss"), config.get("algorithm.use_kl_in_reward")),
        critic_lr=_schedule(config, "critic.optim", config.get("critic.strategy"), critic_horizon, updates, 1),
    )


def _updates_per_step(config: Mapping[str, Scalar]) -> int:
    """Only V1 with a trainer mode of its own has more than one."""
    mode = config.get("trainer.v1.trainer_mode")
    if not isinstance(mode, str) or config.get("trainer.use_v1") is False:
        return 1
    return _count(config, f"trainer.v1.{mode}.{_SYNC}") or 1


def _schedule(
    config: Mapping[str, Scalar], optimizer: str, strategy: Scalar, horizon: int | None, updates: int, first: int
) -> LrSchedule | None:
    def of(name: str) -> Scalar:
        return config.get(f"{optimizer}.{name}")

    peak = _number(of("lr"))
    warmup = _warmup(of("lr_warmup_steps"), of("lr_warmup_steps_ratio"), horizon)
    if peak is None or not SMALLEST_RATE <= peak <= LARGEST_RATE or warmup is None:
        return None
    if strategy in ("fsdp", "fsdp2", None):
        kind: Scalar = of("warmup_style") or of("lr_scheduler_type") or "constant"
        least, cycles = (
            _number(of("min_lr_ratio") or 0.0),
            _number(0.5 if of("num_cycles") is None else of("num_cycles")),
        )
        if kind not in ("constant", "cosine") or least is None or cycles is None:
            return None
        if not (0.0 <= least <= 1.0 and 0.0 <= cycles <= LARGEST_CYCLES):
            return None
        # verl's constant schedule always counts from 0.
        shift = 1 if of("zero_indexed_step") is False and kind == "cosine" else 0
        return LrSchedule(
            peak, warmup, str(kind), horizon, least, cycles, updates_per_step=updates, first_step=first, shift=shift
        )
    if strategy == "megatron":
        kind = of("lr_decay_style")
        least, start = _number(of("min_lr") or 0.0), _number(of("lr_warmup_init") or 0.0)
        decay = _count(config, f"{optimizer}.lr_decay_steps") or horizon
        warmup = _warmup(of("lr_warmup_steps"), of("lr_warmup_steps_ratio"), decay)
        if kind not in ("constant", "cosine", "linear") or least is None or start is None or warmup is None:
            return None
        if not (0.0 <= least <= peak and 0.0 <= start <= peak):
            return None
        return LrSchedule(
            peak,
            warmup,
            str(kind),
            decay,
            least / peak,
            start_ratio=start / peak,
            updates_per_step=updates,
            first_step=first,
            ends_flat=True,
        )
    return None


def _warmup(steps: Scalar, ratio: Scalar, horizon: int | None) -> int | None:
    """Updates of warm-up; None where it is not known."""
    given = 0.0 if steps is None else _number(steps)
    share = 0.0 if ratio is None else _number(ratio)
    if given is None or given > LARGEST:
        return None
    if given > 0.0:
        return int(given)
    if share is None or share < 0.0:
        return None
    if share == 0.0:
        return 0
    return None if horizon is None else int(min(share * horizon, LARGEST))


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _count(config: Mapping[str, Scalar], key: str) -> int | None:
    """A number of steps or tokens; None too where verl's -1 or 0 stands for "not set"."""
    number = _number(config.get(key))
    return int(number) if number is not None and 1.0 <= number <= LARGEST else None


def _either(first: Scalar, second: Scalar) -> bool | None:
    if first is True or second is True:
        return True
    return False if first is False or second is False else None
