"""Step detector ``kl``: the policy runs away from the reference, or from the policy that sampled its batch.

A KL against the reference grows in every run that learns, and what is much is a matter of the configuration: with
many it is 1e-4 all the time. So its level is not judged unless a range is given (``low``, ``high``, by a preset or by
hand); what is judged is a growth by a factor within some to some dozens of steps, beyond what this run has shown, and
beyond what a policy's way from its reference explains: that begins at 0, and grows with the steps at first in every
run, to the power of ``USUAL_POWER`` at most. A growth while the reward rises is a warning, unless it is twice as
large as one has to be. The logarithm is taken of the KL plus ``matters`` nats: growth that stays below that is no
growth.

The page has a forecast: when the KL reaches ``limit`` if it goes on.

Score: as in :mod:`exporter.detectors.shifting`; of the range: KL over ``high``, or ``low`` over KL; threshold 1.

Reference: L. Gao, J. Schulman, J. Hilton, Scaling Laws for Reward Model Overoptimization, ICML 2023 (reward falls
beyond some KL); J. Schulman et al., Proximal Policy Optimization Algorithms, 2017, for the KL of one update; the
test: see :mod:`exporter.detectors.shift`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import Forecast, Severity, StepSample, Verdict
from exporter.detectors.calibration import Budget
from exporter.detectors.options import at_least, more_than
from exporter.detectors.scales import LINEAR, logarithm
from exporter.detectors.shift import BEFORE, Change
from exporter.detectors.shifting import Series, ShiftDetector, Watch, rise_to

USUAL_POWER = 1.5
EARLY = 60
"""First steps of an attempt, in which a page has to be twice as large."""
RISING = 2.0
"""Units of noise from which on the reward counts as rising: it is what the distance is gone for."""
RANGE_STEPS = 5
"""Steps in a row outside of the range that make a page; 2 make a warning."""
_LR = "actor_rollout_ref.actor.optim.lr: lower it"
_EPOCHS = "actor_rollout_ref.actor.ppo_epochs: lower it; ppo_mini_batch_size: raise it"
_COEF = "actor_rollout_ref.actor.kl_loss_coef (or algorithm.kl_ctrl.kl_coef): raise it"


class Kl(ShiftDetector):
    """KL divergence grows by a factor, or leaves its range.

    ``factor``: growth that makes a page. ``warn``: share of it (in logarithms) that makes a warning. ``matters``: nats
    that count as little, of the KL against the reference; a tenth of it for the KL of one update. ``limit``: nats, of
    the forecast. ``low``, ``high``: range in nats of the KL against the reference, none unless given. ``window``,
    ``warmup``: as in ``entropy``.

    >>> detector = Kl()
    >>> for step in range(1, 101):
    ...     kl = 0.01 + step % 5 / 1000 + (0.004 * (step - 80) ** 2 if step > 80 else 0.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"kl": kl})):
    ...         print(step, v.severity.label, "since", v.onset)
    ...     if step > 86:
    ...         break
    86 warning since 82
    87 critical since 82
    """

    name = "kl"

    def __init__(
        self,
        *,
        factor: float = 2.5,
        warn: float = 0.6,
        matters: float = 0.02,
        limit: float = 1.0,
        low: float | None = None,
        high: float | None = None,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        page = rise_to(self.name, "factor", factor)
        self.check_share("warn", warn)
        more_than(self.name, "matters", matters, 0.0)
        more_than(self.name, "limit", limit, 0.0)
        for option, bound in (("low", low), ("high", high)):
            if bound is not None:
                at_least(self.name, option, bound, 0.0)
        if low is not None and high is not None and low >= high:
            raise ValueError(f"detector {self.name}: low is {low!r}: it must be below high ({high!r})")
        self._limit, self._low, self._high = limit, low, high
        self._outside = 0
        super().__init__(
            (
                Series("kl", logarithm(matters, signed=True), 0.05, signed=True),
                Series("ppo_kl", logarithm(matters / 10, signed=True), 0.05, signed=True),
            ),
            (
                Watch(
                    0,
                    rising=True,
                    page=page,
                    warn=page * warn,
                    name="rose",
                    meaning="The policy runs away from the reference: it forgets what it knew, and the reward is asked "
                    "about text it was not made for.",
                    advice=(_COEF, _LR, _EPOCHS),
                ),
                Watch(
                    1,
                    rising=True,
                    page=page,
                    warn=page * warn,
                    name="rose",
                    meaning="Each step moves the policy further from the one that sampled its batch: the updates are "
                    "too large for what the batch can say.",
                    advice=(_LR, _EPOCHS, "actor_rollout_ref.actor.clip_ratio: lower it"),
                ),
            ),
            budget=budget,
            window=window,
            warmup=warmup,
            beside=(Series("reward", LINEAR, 0.005),),
        )

    def allow(self, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Severity | None:
        """Take off what is usual so many steps from the reference, and hear the reward."""
        size = change.size
        if watch.series == 0:
            before = min(max(BEFORE, change.length), self.age(watch) - change.length)
            now = max(sample.step - 0.5 * change.length, 1.0)
            then = max(sample.step - change.length - 0.5 * before, 1.0)
            size -= USUAL_POWER * math.log(now / then) if now > then else 0.0
        if size < watch.warn:
            return None
        paid = (self.drift(0, change) > RISING or self.age(watch) < EARLY) and size < 2.0 * watch.page
        return severity if size >= watch.page and not paid else min(severity, Severity.WARNING)

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step."""
        newer = sample.step > self._last_step
        verdicts = super().observe(sample)
        kl = sample.signals.get("kl")
        if (self._low is None and self._high is None) or kl is None or not math.isfinite(kl):
            return verdicts
        if newer:
            self._outside = self._outside + 1 if self._beyond(kl) > 1.0 else 0
        if self._outside < 2 or any(v.signal == "kl" and v.severity is Severity.CRITICAL for v in verdicts):
            return verdicts
        return (*(v for v in verdicts if v.signal != "kl"), self._out_of_range(sample.step, kl))

    def _beyond(self, kl: float) -> float:
        """Above 1 outside of the range."""
        if self._high is not None and kl > self._high:
            return min(kl / self._high, 1e12) if self._high > 0 else 1e12
        if self._low is not None and kl < self._low:
            return min(self._low / kl, 1e12) if kl > 0 else 1e12
        return 0.0

    def _out_of_range(self, step: int, kl: float) -> Verdict:
        above = self._high is not None and kl > self._high
        page = self._outside >= RANGE_STEPS
        return Verdict(
            detector=self.name,
            signal="kl",
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=step,
            onset=max(step - self._outside + 1, 0),
            score=self._beyond(kl),
            threshold=1.0,
            confidence=0.8 if page else 0.4,
            summary=(
                f"kl is {kl:.4g} nats, {'above' if above else 'below'} the range that was set "
                f"({self._high if above else self._low:.4g}), for {self._outside} steps"
            ),
            meaning=self._watches[0].meaning
            if above
            else "The policy hardly leaves the reference: it learns next to nothing, or the KL term holds it.",
            advice=(_COEF, _LR, _EPOCHS)
            if above
            else (
                "actor_rollout_ref.actor.kl_loss_coef (or algorithm.kl_ctrl.kl_coef): lower it",
                "actor_rollout_ref.actor.optim.lr: raise it",
            ),
        )

    def forecast(self, place: int, watch: Watch, sample: StepSample) -> Forecast | None:
        """When it reaches the limit."""
        if abs(sample.signals[self._series[watch.series].signal]) >= self._limit:
            return None
        return self.arrival(place, self._limit, sample)

    def resumed(self, step: int, attempt: int) -> None:
        """Forget all levels: a resume shifts them."""
        super().resumed(step, attempt)
        self._outside = 0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"outside": self._outside}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._outside = state["outside"]
