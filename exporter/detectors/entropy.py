"""Step detector ``entropy``: the policy's entropy collapses, or explodes.

Entropy falls slowly in most healthy runs and rises in some that learn well, so neither is a finding as such. What is
judged is a fall, or a rise, to a share of what it was within some to some dozens of steps, beyond what this run has
shown. A fall has a forecast: when the entropy reaches ``floor`` if it goes on. While the reward
rises, both are notes: the policy explores, or becomes decided, and it pays. A fall over many steps is a warning,
unless the reward falls with it.

Changes are taken of the logarithm of entropy plus 0.01 nats: below that a policy is decided, and less means nothing.

Score: as in :mod:`exporter.detectors.shifting`; threshold 1.

Reference: for collapse as the end of exploration and of learning: G. Cui et al., The Entropy Mechanism of
Reinforcement Learning for Reasoning Language Models, 2025; the test: see :mod:`exporter.detectors.shift`.
"""

from __future__ import annotations

from exporter.detectors.base import Forecast, Severity, StepSample
from exporter.detectors.calibration import Budget
from exporter.detectors.options import more_than
from exporter.detectors.scales import LINEAR, logarithm
from exporter.detectors.shift import Change
from exporter.detectors.shifting import CLEAR, Series, ShiftDetector, Watch, fall_to, rise_to

SLOW = 30
"""Steps from which on a fall may be the price of learning."""
MATTERS = 0.05
"""Nats by which an entropy must rise for a page, whatever the factor."""
MATTERS_LESS = 0.02
"""Nats by which it must fall."""
EARLY = 100
"""First steps of an attempt."""
RISING = 2.0
"""Units of noise from which on the reward counts as rising while entropy falls: both move in a run that learns."""
_DECIDED = 0.01
_LR = "actor_rollout_ref.actor.optim.lr: lower it"


class Entropy(ShiftDetector):
    """The policy's entropy falls or rises by a factor.

    ``collapse``: share of the level before that makes a page. ``explosion``: factor that makes one. ``warn``: share of
    these changes (in logarithms) that makes a warning. ``floor``: nats, the limit of the forecast. ``window``: steps
    from which the usual noise is taken. ``warmup``: steps of an attempt before anything is judged.

    >>> detector = Entropy()
    >>> for step in range(1, 161):
    ...     entropy = (0.50 + step % 5 / 100) * (0.9 ** (step - 140) if step > 140 else 1.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"entropy": entropy})):
    ...         if v.severity is Severity.CRITICAL:
    ...             print(step, "since", v.onset, "at", v.forecast.limit, "in", round(v.forecast.steps), "steps")
    ...             break
    ...     else:
    ...         continue
    ...     break
    148 since 141 at 0.02 in 21 steps
    """

    name = "entropy"

    def __init__(
        self,
        *,
        collapse: float = 0.6,
        explosion: float = 1.9,
        warn: float = 0.6,
        floor: float = 0.02,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        more_than(self.name, "floor", floor, 0.0)
        fall, rise = fall_to(self.name, "collapse", collapse), rise_to(self.name, "explosion", explosion)
        self.check_share("warn", warn)
        self._floor = floor
        super().__init__(
            (Series("entropy", logarithm(_DECIDED), 0.02),),
            (
                Watch(
                    0,
                    rising=False,
                    page=fall,
                    warn=fall * warn,
                    name="fell",
                    meaning="The policy collapses onto few answers: the groups' rewards become all alike, nothing is "
                    "explored or learned any more.",
                    advice=(
                        "actor_rollout_ref.actor.entropy_coeff: raise it",
                        "actor_rollout_ref.actor.clip_ratio_high: raise it (DAPO: 0.28)",
                        "actor_rollout_ref.actor.kl_loss_coef: raise it",
                        _LR,
                    ),
                    before=1,
                ),
                Watch(
                    0,
                    rising=True,
                    page=rise,
                    warn=rise * warn,
                    name="rose",
                    meaning="The policy becomes random: it loses what it has learned, and answers turn to noise.",
                    advice=(
                        "actor_rollout_ref.actor.entropy_coeff: lower it, to 0 if it is more",
                        _LR,
                        "actor_rollout_ref.actor.clip_ratio_high: lower it",
                        "actor_rollout_ref.rollout.temperature: lower it",
                    ),
                    before=1,
                ),
            ),
            budget=budget,
            window=window,
            warmup=warmup,
            beside=(Series("reward", LINEAR, 0.005),),
        )

    def allow(self, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Severity | None:
        """Hear the reward.

        While it rises, a rise or a fall of the entropy is a note: the policy explores, or has become decided, and it
        pays. A fall that is twice as large as one has to be pages nevertheless. Early in an attempt, where entropy
        falls fastest, and over many steps, a fall pages only where the reward falls too.
        """
        reward = self.drift(0, change)
        gained = self.tell(watch, change.now) - self.tell(watch, change.before)
        if watch.rising:
            if gained < MATTERS:
                severity = min(severity, Severity.WARNING)
            return Severity.INFO if reward > CLEAR else severity
        if -gained < MATTERS_LESS:
            severity = min(severity, Severity.WARNING)
        if -change.size > 2.0 * watch.page and change.length <= SLOW:
            return severity
        if reward > RISING:
            return Severity.WARNING if -change.size > 1.5 * watch.page else Severity.INFO
        unsure = change.length >= SLOW or self.age(watch) < EARLY
        return min(severity, Severity.WARNING) if unsure and reward > -CLEAR else severity

    def forecast(self, place: int, watch: Watch, sample: StepSample) -> Forecast | None:
        """Of a fall: when it reaches the floor."""
        if watch.rising or sample.signals["entropy"] <= self._floor:
            return None
        return self.arrival(place, self._floor, sample)
