"""Step detector ``non_finite``: NaN or infinity in a signal that must have a value.

What is and what is not a finding, and why:

- A value that is not finite is said at once and is critical: there is no healthy loss of NaN, and no precursor to wait
  for. One that heals stays below certainty, so that it pages a person but stops no run on its own account; it is
  certain (confidence 1) once it has stayed for ``stays`` steps.
- An infinite gradient norm alone within the first steps of an attempt is a warning: with ``float16`` the loss scaler
  finds its scale by running into infinities, and skips those updates.
- KL, entropy, reward and the like count only after they have been finite once: a run that does not use a KL term may
  log it as NaN from the start, for ever.

Loss, entropy and reward of a step are computed with the weights that the step before left behind, so their onset is the
step before: a checkpoint saved there may hold the broken weights already. Only where the entropy of the same step is
finite are its first weights known to be sound (verl computes it before the step's first update): then the loss broke
within the step.

Score: steps in a row with a value that is not finite; threshold 0 (any is a finding).

Reference: verl 0.9.1 skips an optimizer step whose gradient norm is not finite (``FSDPEngine.optimizer_step``); IEEE
754 for what NaN does to everything computed from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.options import at_least

_LR = "actor_rollout_ref.actor.optim.lr (SFT: optim.lr): lower it; look at what it was at the onset"
_CLIP = "actor_rollout_ref.actor.optim.clip_grad (SFT: optim.clip_grad): lower it"
_DTYPE = "actor_rollout_ref.actor.fsdp_config.dtype: use bfloat16 rather than float16"


@dataclass(frozen=True, slots=True)
class _Watched:
    signal: str
    always: bool
    """Must be finite from the first step on; otherwise only after it has been finite once."""
    before: int
    """Steps by which the cause comes before the step that shows it."""
    meaning: str
    advice: tuple[str, ...]


_BROKEN = "The weights, or what the loss is computed from, are no numbers any more; training on cannot heal weights."
_WATCHED = (
    _Watched("loss", True, 1, _BROKEN, (_LR, _CLIP, _DTYPE)),
    _Watched("pg_loss", True, 1, _BROKEN, (_LR, _CLIP, _DTYPE)),
    _Watched(
        "grad_norm",
        True,
        0,
        "verl skips the update of a step whose gradient norm is not finite, so one such step loses one update; if it "
        "stays, nothing is learned any more, or the weights are broken already.",
        (_CLIP, _LR, _DTYPE),
    ),
    _Watched(
        "critic_loss", True, 1, "The value model is broken: its advantages will break the policy.", ("critic.optim.lr",)
    ),
    _Watched(
        "critic_grad_norm",
        True,
        0,
        "verl skips such an update of the value model; if it stays, it learns nothing.",
        ("critic.optim.clip_grad", "critic.optim.lr"),
    ),
    _Watched(
        "kl",
        False,
        0,
        "Policy or reference gives probabilities that are no numbers.",
        ("actor_rollout_ref.actor.kl_loss_type: low_var_kl is bounded", _LR),
    ),
    _Watched(
        "ppo_kl", False, 0, "The policy's ratio to its old self overflows: an update was far too large.", (_LR, _CLIP)
    ),
    _Watched("entropy", False, 1, _BROKEN, (_LR, _DTYPE, "actor_rollout_ref.rollout.temperature: not close to 0")),
    _Watched(
        "reward",
        False,
        1,
        "The reward function returned no number, or the policy writes garbage.",
        ("reward.custom_reward_function: check what it returns", _LR),
    ),
    _Watched(
        "advantage_spread",
        False,
        1,
        "Advantages that are no numbers make every gradient of the batch one that is none.",
        ("reward.custom_reward_function: check what it returns", "critic.optim.lr: lower it, where there is a critic"),
    ),
    _Watched("val_loss", False, 0, _BROKEN, (_LR, _DTYPE)),
)


class _Streak(NamedTuple):
    """Steps in a row with a value that is not finite."""

    first: int
    last: int
    steps: int
    onset: int


class NonFinite:
    """NaN or infinity in loss, gradient norm, KL, entropy, advantages, reward or validation loss.

    ``stays``: steps in a row after which a value that is not finite is certain.
    ``warmup``: first steps of an attempt in which an infinite gradient norm alone is only a warning.

    >>> detector = NonFinite()
    >>> losses = [0.5, 0.4, float("nan"), float("nan")]
    >>> for step, loss in enumerate(losses, start=1):
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"loss": loss, "kl": float("nan")})):
    ...         print(step, v.signal, v.severity.label, "since", v.onset, "confidence", v.confidence)
    3 loss critical since 2 confidence 0.9
    4 loss critical since 2 confidence 1.0
    """

    name = "non_finite"

    def __init__(self, *, stays: int = 2, warmup: int = 15) -> None:
        at_least(self.name, "stays", stays, 1, whole=True)
        at_least(self.name, "warmup", warmup, 0, whole=True)
        self._stays = stays
        self._warmup = warmup
        self._finite_once: set[str] = set()
        self._streaks: dict[str, _Streak] = {}
        self._steps = 0
        self._last_step: int | None = None

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step. Verdicts come in the order loss, gradient, value model, KL, entropy, reward."""
        step = sample.step
        if self._last_step is not None and step < self._last_step:
            self._restart()
        if step != self._last_step:
            self._steps += 1
            self._last_step = step
        bad = [w for w in _WATCHED if self._is_bad(w, sample.signals)]
        if any(watched.signal == "loss" for watched in bad):
            bad = [watched for watched in bad if watched.signal != "pg_loss"]  # one of its terms, or the same
        verdicts = []
        for watched in bad:
            streak = self._streaks.get(watched.signal)
            if streak is None:
                streak = _Streak(step, step, 1, _onset(watched, sample))
            elif streak.last != step:
                streak = streak._replace(last=step, steps=streak.steps + 1)
            self._streaks[watched.signal] = streak
            verdicts.append(self._verdict(watched, sample.signals[watched.signal], step, streak, alone=len(bad) == 1))
        for signal in [s for s in self._streaks if math.isfinite(sample.signals.get(s, math.nan))]:
            del self._streaks[signal]
        return verdicts

    def _is_bad(self, watched: _Watched, signals: Mapping[str, float]) -> bool:
        value = signals.get(watched.signal)
        if value is None:
            return False
        if math.isfinite(value):
            self._finite_once.add(watched.signal)
            return False
        return watched.always or watched.signal in self._finite_once

    def _verdict(self, watched: _Watched, value: float, step: int, streak: _Streak, *, alone: bool) -> Verdict:
        scaling = watched.signal == "grad_norm" and math.isinf(value) and alone and self._steps <= self._warmup
        since = f" for {streak.steps} steps, since step {streak.first}" if streak.steps > 1 else f" at step {step}"
        return Verdict(
            detector=self.name,
            signal=watched.signal,
            severity=Severity.WARNING if scaling else Severity.CRITICAL,
            step=step,
            onset=streak.onset,
            score=float(streak.steps),
            threshold=0.0,
            confidence=0.5 if scaling else 1.0 if streak.steps >= self._stays else 0.9,
            summary=f"{watched.signal} is {_spell(value)}{since}",
            meaning=watched.meaning,
            advice=watched.advice,
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget what is broken now, keep which signals are in use: a KL that was finite once must stay so."""
        self._restart()

    def _restart(self) -> None:
        self._streaks.clear()
        self._steps = 0
        self._last_step = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "finite_once": sorted(self._finite_once),
            "streaks": {signal: list(streak) for signal, streak in self._streaks.items()},
            "steps": self._steps,
            "last_step": self._last_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._finite_once = set(state["finite_once"])
        self._streaks = {signal: _Streak(*map(int, streak)) for signal, streak in state["streaks"].items()}
        self._steps = state["steps"]
        self._last_step = state["last_step"]


def _onset(watched: _Watched, sample: StepSample) -> int:
    """First step that belongs to the failure, for a signal that is not finite since this step."""
    if watched.signal == "loss" and math.isfinite(sample.signals.get("entropy", math.nan)):
        return sample.step
    return max(sample.step - watched.before, 0)


def _spell(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"
