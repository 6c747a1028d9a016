"""The causes: what each fault changes in verl or in the rollout server, and where.

`arm` is called in every process of the run; each cause waits for the module it changes, which only some processes
import: the engine in the training worker, the server in the rollout actor, the trainer in the task runner.
"""

import asyncio
import functools
import math
import os
import random
import signal
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from demo.faults.plan import Fault, Plan
from trainer_entry.cpu.late import when_imported

RATE_FACTOR = 100.0
FAILED_SHARE = 0.15
SLOWER_SECONDS = 0.05
"""By as much each answer's reward takes longer in each further step."""
LONG_ANSWER = 12.0
"""Characters for which a reward function that pays for short answers pays nothing."""

LEAK_BYTES = 48 * 1024 * 1024
"""Kept of each step."""
MOST_LEAKED = 3 * 1024 * 1024 * 1024
"""The leak ends there, for the sake of the machine, should nobody have ended it."""

_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
_SERVER = "trainer_entry.cpu.rollout"
_REWARD = "verl.experimental.reward_loop.reward_manager.naive"
_TRAINER = "verl.trainer.ppo.v1.trainer_base"


def arm(plan: Plan) -> None:
    """Sets up the cause of `plan` in this process."""
    when_imported(_TRAINER, functools.partial(_tell_the_step, plan))
    causes: dict[Fault, tuple[str, Callable[[Plan, ModuleType], None]]] = {
        Fault.LEARNING_RATE: (_ENGINE, _raise_the_rate),
        Fault.NAN: (_ENGINE, _spoil_a_weight),
        Fault.CRASH: (_ENGINE, _kill_the_worker),
        Fault.HANG: (_SERVER, _stop_answering),
        Fault.ROLLOUT_ERRORS: (_SERVER, _fail_a_share),
        Fault.SLOW_REWARD: (_REWARD, functools.partial(_change_the_reward, slower)),
        Fault.BLIND_REWARD: (_REWARD, functools.partial(_change_the_reward, blind)),
        Fault.SHORT_ANSWERS: (_REWARD, functools.partial(_change_the_reward, paid_for_brevity)),
        Fault.CORRUPT_CHECKPOINT: (_ENGINE, _spoil_a_weight),
        Fault.MEMORY_LEAK: (_TRAINER, _keep_memory),
    }
    module, cause = causes[plan.fault]
    when_imported(module, functools.partial(cause, plan))


def _tell_the_step(plan: Plan, trainer: ModuleType) -> None:
    original = trainer.PPOTrainer.on_step_begin

    @functools.wraps(original)
    def on_step_begin(self: Any) -> Any:
        plan.begin_step(self.global_steps)
        return original(self)

    trainer.PPOTrainer.on_step_begin = on_step_begin


def _raise_the_rate(plan: Plan, engine: ModuleType) -> None:
    """The rate is raised for the optimizer's step alone, behind the scheduler's back: `actor/lr` goes on as planned."""
    original = engine.FSDPEngine.optimizer_step

    @functools.wraps(original)
    def optimizer_step(self: Any) -> Any:
        if not plan.due():
            return original(self)
        plan.record()
        planned = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, planned, strict=True):
            group["lr"] = rate * RATE_FACTOR
        try:
            return original(self)
        finally:
            for group, rate in zip(self.optimizer.param_groups, planned, strict=True):
                group["lr"] = rate

    engine.FSDPEngine.optimizer_step = optimizer_step


def _spoil_a_weight(plan: Plan, engine: ModuleType) -> None:
    original = engine.FSDPEngine.forward_backward_batch
    done = False

    @functools.wraps(original)
    def forward_backward_batch(self: Any, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        nonlocal done
        if not done and not forward_only and plan.due():
            done = True
            damaged = _damage_the_newest(plan) if plan.fault is Fault.CORRUPT_CHECKPOINT else {}
            plan.record(**damaged)
            _set_nan(self.module)
        return original(self, data, loss_function, forward_only)

    engine.FSDPEngine.forward_backward_batch = forward_backward_batch


def _set_nan(module: Any) -> None:
    """One weight of the last normalisation becomes NaN, on this process's shard: every logit is computed from it."""
    import torch

    weight = [parameter for parameter in module.parameters() if parameter.dim() == 1][-1]
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    with torch.no_grad():
        local.view(-1)[0] = math.nan


def _damage_the_newest(plan: Plan, seconds: float = 30.0) -> dict[str, str]:
    """Flips bytes in the middle of a shard of the newest checkpoint, once its manifest is written: as a bad disk does.

    Returns what `fault.json` says of it. Sizes and names stay, so that only its content tells.
    """
    from trainer_entry.checkpoints import MANIFEST_NAME

    if plan.checkpoints is None:
        return {}
    steps = (int(path.name.removeprefix("global_step_")) for path in plan.checkpoints.glob("global_step_*"))
    newest = plan.checkpoints / f"global_step_{max(steps)}"
    deadline = time.monotonic() + seconds
    while not (newest / MANIFEST_NAME).is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    shard = max(newest.glob("actor/model_*.pt"), key=lambda path: path.stat().st_size)
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        some = file.read(64)
        file.seek(-len(some), os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in some))
        file.flush()
        os.fsync(file.fileno())
    return {"damaged": str(shard.relative_to(plan.checkpoints))}


def _keep_memory(plan: Plan, trainer: ModuleType) -> None:
    """As a cache does that is never emptied."""
    original = trainer.PPOTrainer.on_step_begin
    kept: list[bytearray] = []

    @functools.wraps(original)
    def on_step_begin(self: Any) -> Any:
        found = original(self)
        if plan.due() and sum(map(len, kept)) + LEAK_BYTES <= MOST_LEAKED:
            plan.record()
            kept.append(bytearray(b"x") * LEAK_BYTES)  # written to, so that the pages are really taken
        return found

    trainer.PPOTrainer.on_step_begin = on_step_begin


def _kill_the_worker(plan: Plan, engine: ModuleType) -> None:
    original = engine.FSDPEngine.optimizer_step

    @functools.wraps(original)
    def optimizer_step(self: Any) -> Any:
        if plan.due():
            plan.record()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self)

    engine.FSDPEngine.optimizer_step = optimizer_step


def _stop_answering(plan: Plan, server: ModuleType) -> None:
    original = server.RolloutServer.generate

    @functools.wraps(original)
    async def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if plan.due():
            plan.record()
            await asyncio.Event().wait()  # accepted, and never answered
        return await original(self, *args, **kwargs)

    server.RolloutServer.generate = generate


def _fail_a_share(plan: Plan, server: ModuleType) -> None:
    original = server.RolloutServer.generate
    chance = random.Random(0)

    @functools.wraps(original)
    async def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if plan.due() and chance.random() < FAILED_SHARE:
            plan.record()
            raise RuntimeError("the rollout server failed this request (a fault of the demo)")
        return await original(self, *args, **kwargs)

    server.RolloutServer.generate = generate


Reward = Callable[..., Any]


def _change_the_reward(change: Callable[[Plan, Reward], Reward], plan: Plan, manager: ModuleType) -> None:
    """Every manager that verl makes calls the changed function in place of the configured one."""
    original = manager.NaiveRewardManager.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.compute_score = change(plan, self.compute_score)

    manager.NaiveRewardManager.__init__ = __init__


def slower(plan: Plan, reward: Reward) -> Reward:
    """As a judge does whose queue or cache only grows."""

    @functools.wraps(reward)
    def compute_score(*args: Any, **kwargs: Any) -> Any:
        if plan.due():
            plan.record()
            time.sleep(SLOWER_SECONDS * plan.steps_since())
        return reward(*args, **kwargs)

    return compute_score


def blind(plan: Plan, reward: Reward) -> Reward:
    """As a checker does that catches its own error and calls every answer wrong."""

    @functools.wraps(reward)
    def compute_score(*args: Any, **kwargs: Any) -> Any:
        found = reward(*args, **kwargs)
        if not plan.due():
            return found
        plan.record()
        return dict.fromkeys(found, 0.0)

    return compute_score


def paid_for_brevity(plan: Plan, reward: Reward) -> Reward:
    """As a length penalty does that outweighs the answer; what the answer itself is worth is still reported."""

    @functools.wraps(reward)
    def compute_score(*args: Any, solution_str: str, **kwargs: Any) -> Any:
        found = reward(*args, solution_str=solution_str, **kwargs)
        if not plan.due():
            return found
        plan.record()
        return {**found, "score": max(0.0, 1.0 - len(solution_str) / LONG_ANSWER)}

    return compute_score
