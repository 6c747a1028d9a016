"""Hook of a changed run: a learning rate, weight decay or betas that were changed take effect on resume.

verl restores the optimizer and the scheduler with all that they held, so the rate of the configuration is ignored. What
the new configuration had built is looked at before a checkpoint is loaded, and put back after it: each group's
``initial_lr`` and the scheduler's ``base_lrs`` become the configured ones, and the rate of this moment follows from
them at the restored step. Then it is read back. Engines other than FSDP are not known, and are said not to be.

That happens in the workers; the trainer asks each of them for its proof when it has loaded the checkpoint. All other
changed settings act through the configuration, where the trainer looks them up.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec

from exporter.protocol import Scalar, SettingApplied
from trainer_entry.plugin import proofs
from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1, Hook
from trainer_entry.plugin.runtime import Runtime, now
from trainer_entry.plugin.wrapping import Target, wrap

ASK_SECONDS = 60.0
IN_THE_OPTIMIZER = ("lr", "weight_decay", "betas")
_PREFIXES = {"actor": "actor_rollout_ref.actor.optim.", "critic": "critic.optim."}
_SFT_PREFIX = "optim."
_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
LOADS = (
    Target("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._load_checkpoint", trainers=frozenset({V1}), since=(0, 9)),
    Target("verl.trainer.ppo.ray_trainer", "RayPPOTrainer._load_checkpoint", trainers=frozenset({LEGACY})),
    Target("verl.utils.checkpoint.checkpoint_handler", "CheckpointHandler.load_checkpoint", trainers=frozenset({SFT})),
)
"""Where a trainer loads a checkpoint, its place in the data included."""


class ChangedSettings(Hook):
    name = "changed_settings"
    targets = (Target(_ENGINE, "FSDPEngine.load_checkpoint", optional=True), *LOADS)

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._settings = runtime.changes.settings
        self._wanted = {key: value for key, value in self._settings.items() if _in_optimizer(key)}
        runtime.at_open.append(self._opened)

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._engine if target.module == _ENGINE else self._trainer)

    def _engine(self, original: Any) -> Any:
        @functools.wraps(original)
        def load_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> Any:
            built = self.runtime.guarded(self.name, _built, engine) if self._wanted else None
            result = original(engine, *args, **kwargs)
            if built is not None:
                path = kwargs.get("local_path", args[0] if args else None)
                self.runtime.guarded(self.name, self._apply, engine, path, built)
            return result

        return load_checkpoint

    def _apply(self, engine: Any, path: Any, built: Built) -> None:
        prefix = _PREFIXES.get(os.path.basename(os.path.normpath(str(path or "."))), _SFT_PREFIX)
        for name in IN_THE_OPTIMIZER:
            if prefix + name in self._wanted:
                proofs.keep(put_back(engine, name, prefix + name, self._wanted[prefix + name], built))

    def _trainer(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(trainer, *args, **kwargs)
            if self._wanted:
                self.runtime.guarded(self.name, self._ask, trainer, result)
            return result

        return load

    def _ask(self, trainer: Any, result: Any) -> None:
        """Collect the proofs of all workers; of SFT, whose ranks are trainers themselves, this rank's own."""
        told: list[SettingApplied] = []
        problem = ""
        workers = [
            worker
            for name in ("actor_rollout_wg", "critic_wg")
            for worker in getattr(getattr(trainer, name, None), "_workers", None) or ()
        ]
        if workers:
            import ray

            try:
                answers = [worker.__ray_call__.remote(_answer) for worker in dict.fromkeys(workers)]
                for answer in ray.get(answers, timeout=ASK_SECONDS):
                    told += msgspec.json.decode(answer, type=list[SettingApplied])
            except Exception as error:  # noqa: BLE001 - whatever Ray raises: without an answer there is no proof
                told, problem = [], f"a worker did not answer: {type(error).__name__}: {str(error)[:200]}"
        else:
            told = msgspec.json.decode(proofs.told_by_worker(), type=list[SettingApplied])
        resumed = bool(getattr(trainer, "global_steps", 0) or result)
        for key, wanted in self._wanted.items():
            its = [each for each in told if each.name == key]
            self.runtime.proofs.add(summed(key, wanted, its, resumed=resumed, problem=problem))

    def _opened(self) -> None:
        """The resolved configuration is known: does it have what was changed?"""
        self.runtime.at_open.remove(self._opened)
        for key, wanted in self._settings.items():
            if key not in self._wanted:
                self.runtime.proofs.add(_configured(key, wanted, self.runtime.config))
        if version := self.runtime.changes.verl_version:
            there = self.runtime.verl_version
            self.runtime.proofs.add(
                SettingApplied(time=now(), name="verl_version", wanted=version, found=there, ok=there == version)
            )
        self.runtime.proofs.opened()


Built = Mapping[str, Any]
"""What the configuration built, by ``groups`` (one mapping for each group of the optimizer) and ``base_lrs``."""


def put_back(engine: Any, name: str, key: str, wanted: Scalar, built: Built) -> SettingApplied:
    """Put one setting of the optimizer back to what the configuration had built, and read it again."""
    groups: list[dict[str, Any]] = engine.optimizer.param_groups
    scheduler = engine.lr_scheduler
    if name == "lr":
        restored = _number(scheduler.base_lrs[0] if scheduler is not None else groups[0]["lr"])
        _set_rate(groups, scheduler, [_number(rate) for rate in built["base_lrs"]])
        found = _number(scheduler.base_lrs[0] if scheduler is not None else groups[0]["lr"])
        now_due = [
            _number(rate) * factor for rate, factor in zip(built["base_lrs"], _factors(groups, scheduler), strict=True)
        ]
        acts = all(
            math.isclose(_number(group["lr"]), rate, rel_tol=1e-6) for group, rate in zip(groups, now_due, strict=True)
        )
        same = isinstance(wanted, int | float) and math.isclose(found, float(wanted), rel_tol=1e-9)
        reason = "" if same else "the trainer's configuration has another value"
        if same and not acts:
            reason = "the optimizer's rate of this step does not follow from it"
        return _proof(key, wanted, restored, found, same and acts, reason)
    before = groups[0].get(name)
    for group, fresh in zip(groups, built["groups"], strict=True):
        if name in fresh:
            group[name] = fresh[name]
    ok = name in built["groups"][0]
    reason = "" if ok else f"this optimizer has no {name}"
    return _proof(key, wanted, _scalar(before), _scalar(groups[0].get(name)), ok, reason)


def summed(
    key: str, wanted: Scalar, told: Sequence[SettingApplied], *, resumed: bool, problem: str = ""
) -> SettingApplied:
    """One proof from those of all workers: the first that failed, else the first."""
    if not told:
        if not resumed and not problem:  # nothing was restored, so the configuration is what was built
            return SettingApplied(time=time.time(), name=key, wanted=wanted, found=wanted)
        reason = problem or "no worker applied it; its engine is not FSDP, which is the only one known"
        return SettingApplied(time=time.time(), name=key, wanted=wanted, ok=False, reason=reason)
    return next((each for each in told if not each.ok), told[0])


def _answer(worker: Any) -> bytes:
    """Runs in a worker, which imports it from the installed package."""
    return proofs.told_by_worker()


def _in_optimizer(key: str) -> bool:
    prefix, _, name = key.rpartition(".")
    return name in IN_THE_OPTIMIZER and prefix + "." in (*_PREFIXES.values(), _SFT_PREFIX)


def _built(engine: Any) -> Built | None:
    optimizer = getattr(engine, "optimizer", None)
    if optimizer is None:  # a reference model has none
        return None
    scheduler = getattr(engine, "lr_scheduler", None)
    groups = [{name: group[name] for name in IN_THE_OPTIMIZER if name in group} for group in optimizer.param_groups]
    rates = list(scheduler.base_lrs) if scheduler is not None else [group["lr"] for group in groups]
    return {"groups": groups, "base_lrs": rates}


def _set_rate(groups: list[dict[str, Any]], scheduler: Any, rates: list[float]) -> None:
    old = [_number(rate) for rate in scheduler.base_lrs] if scheduler is not None else []
    for place, (group, rate) in enumerate(zip(groups, rates, strict=True)):
        lambdas = getattr(scheduler, "lr_lambdas", None)
        if scheduler is None:
            current = rate
        elif lambdas:
            current = rate * float(lambdas[place](scheduler.last_epoch))
        else:  # a schedule that is not a function of the step: the rate keeps its ratio to the base
            current = rate * (_number(group["lr"]) / old[place] if old[place] else 1.0)
        if hasattr(group["lr"], "fill_"):
            group["lr"].fill_(current)
        else:
            group["lr"] = current
        if "initial_lr" in group:
            group["initial_lr"] = rate
    if scheduler is not None:
        scheduler.base_lrs = rates
        scheduler._last_lr = [_number(group["lr"]) for group in groups]


def _factors(groups: list[dict[str, Any]], scheduler: Any) -> list[float]:
    if scheduler is None:
        return [1.0 for _ in groups]
    lambdas = getattr(scheduler, "lr_lambdas", None)
    if lambdas:
        return [float(each(scheduler.last_epoch)) for each in lambdas]
    return [last / base if base else 1.0 for last, base in zip(scheduler._last_lr, scheduler.base_lrs, strict=True)]


def _configured(key: str, wanted: Scalar, config: Mapping[str, Scalar]) -> SettingApplied:
    found = config.get(key)
    ok = key in config and (found == wanted or str(found) == str(wanted))
    reason = "" if ok else "the trainer's configuration has another value, or none"
    return _proof(key, wanted, None, found, ok, reason)


def _proof(key: str, wanted: Scalar, restored: Scalar, found: Scalar, ok: bool, reason: str) -> SettingApplied:
    return SettingApplied(
        time=time.time(), name=key, wanted=wanted, restored=restored, found=found, ok=ok, reason=reason
    )


def _number(value: Any) -> float:
    return float(value)


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)[:200]
