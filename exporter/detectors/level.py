"""Step detector ``level``: loss or gradient have moved to another level, and stay there.

``surge`` finds what leaves its range at once; a level that is several times higher, but within what a heavy-tailed
signal may reach in a single step, is found here, after some more steps. A policy-gradient loss sits near 0 and
changes its sign: of a loss a change counts by the noise that it has, and only away from 0. Gradients are compared by
their logarithms; gradients that vanish are a warning (that they are exactly 0 is for ``dead_run``).

Score: as in :mod:`exporter.detectors.shifting`; threshold 1.

Reference: E. S. Page, Continuous Inspection Schemes, Biometrika 41, 1954, for changes of level as against single
values; the test: see :mod:`exporter.detectors.shift`.
"""

from __future__ import annotations

import math

from exporter.detectors.base import Severity, StepSample
from exporter.detectors.calibration import Budget
from exporter.detectors.options import at_least, more_than
from exporter.detectors.scales import LINEAR, logarithm
from exporter.detectors.shift import Change
from exporter.detectors.shifting import Series, ShiftDetector, Watch, rise_to

_LR = (
    "actor_rollout_ref.actor.optim.lr (SFT: optim.lr): lower it, and compare what the run logs with what is configured"
)
_CLIP = "actor_rollout_ref.actor.optim.clip_grad (SFT: optim.clip_grad): lower it"
_DATA = "data.train_files: look at the batches since the onset"
_AWAY = 1.5
"""Times as far from 0 as before that a loss must be."""


class Level(ShiftDetector):
    """Loss or gradient norm, of policy or value model, at a new level.

    ``loss``: change of a loss, in standard deviations of its own noise, that makes a page. ``gradient``: growth of a
    gradient norm, by this factor, that makes one. ``critic``: growth of the value model's loss that makes one.
    ``warn``: share of these (of factors: in logarithms) that makes a warning. ``window``, ``warmup``: as in
    ``entropy``.

    >>> detector = Level()
    >>> for step in range(1, 101):
    ...     norm = (0.5 + step % 7 / 10) * (4.0 if step > 80 else 1.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"grad_norm": norm})):
    ...         if v.severity is Severity.CRITICAL and step < 86:
    ...             print(step, "since", v.onset)
    84 since 81
    85 since 81
    """

    name = "level"

    def __init__(
        self,
        *,
        loss: float = 3.0,
        gradient: float = 3.0,
        critic: float = 4.0,
        warn: float = 0.6,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        at_least(self.name, "loss", loss, 0.0)
        more_than(self.name, "loss", loss, 0.0)
        rise, value = rise_to(self.name, "gradient", gradient), rise_to(self.name, "critic", critic)
        self.check_share("warn", warn)
        broken = (
            "The loss has moved to another level: the policy moves away from what the batch asks for, or the "
            "data changed."
        )
        driven = (
            "Gradients stay at a multiple of their size: the updates are driven by a few samples, or the policy has "
            "left the region in which it was trained."
        )
        misled = "The value model diverges; its advantages will mislead the policy."
        super().__init__(
            (
                Series("loss", LINEAR, 1e-9),
                Series("grad_norm", logarithm(1e-6), 0.05),
                Series("critic_loss", logarithm(1e-4), 0.05),
                Series("critic_grad_norm", logarithm(1e-6), 0.05),
            ),
            (
                Watch(0, True, 0.0, 0.0, "rose", broken, (_LR, _CLIP, _DATA), noises=loss),
                Watch(0, False, 0.0, 0.0, "fell", broken, (_LR, _CLIP, _DATA), noises=loss),
                Watch(1, True, rise, rise * warn, "rose", driven, (_CLIP, _LR, _DATA)),
                Watch(
                    1,
                    False,
                    math.inf,
                    2.0 * rise,
                    "fell",
                    "Gradients vanish: the policy is saturated, or the batches have nothing left to teach.",
                    ("data.train_files: harder prompts", "actor_rollout_ref.actor.entropy_coeff: raise it"),
                ),
                Watch(
                    2,
                    True,
                    value,
                    value * warn,
                    "rose",
                    misled,
                    ("critic.optim.lr: lower it", "critic.cliprange_value"),
                ),
                Watch(
                    3, True, rise, rise * warn, "rose", misled, ("critic.optim.clip_grad: lower it", "critic.optim.lr")
                ),
            ),
            budget=budget,
            window=window,
            warmup=warmup,
        )

    def allow(self, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Severity | None:
        """A loss that comes nearer to 0 learns."""
        if watch.series == 0 and abs(change.now) < _AWAY * abs(change.before):
            return None
        return severity
