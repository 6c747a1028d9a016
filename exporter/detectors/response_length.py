"""Step detector ``response_length``: answers become short at once, or grow until they are cut.

Answers grow to double over hundreds of steps in healthy runs, and shrink as a policy learns to be brief, so only a
change within some to some dozens of steps counts, beyond what this run has shown. A growth pages where more answers
than before are cut at the length limit; without that it is a warning. A fall while the reward rises
is a note, or a warning where it is large: the policy may have learned to be brief. A fall to less than half pages
whatever the reward does.

Score: as in :mod:`exporter.detectors.shifting`; threshold 1.

Reference: for growth without gain: Z. Liu et al., Understanding R1-Zero-Like Training: A Critical Perspective, 2025;
the test: see :mod:`exporter.detectors.shift`.
"""

from __future__ import annotations

from exporter.detectors.base import Forecast, Severity, StepSample
from exporter.detectors.calibration import Budget
from exporter.detectors.scales import LINEAR, logarithm
from exporter.detectors.shift import Change
from exporter.detectors.shifting import CLEAR, Series, ShiftDetector, Watch, fall_to, rise_to

FAR = 1.6
"""Times the size of a page (in logarithms) that no rising reward explains."""
CUT = 0.3
"""Share of answers cut at the limit that counts as many, whatever it was before."""


class ResponseLength(ShiftDetector):
    """The mean length of answers falls or rises by a factor.

    ``collapse``: share of the length before that makes a page. ``explosion``: factor that makes one. ``warn``: share of
    these changes (in logarithms) that makes a warning. ``window``, ``warmup``: as in ``entropy``.

    >>> detector = ResponseLength()
    >>> for step in range(1, 101):
    ...     length = 500.0 + step % 7 * 10 - (30.0 * (step - 80) if step > 80 else 0.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"response_length": max(length, 20.0)})):
    ...         if v.severity is Severity.CRITICAL and step < 94:
    ...             print(step, "since", v.onset)
    91 since 82
    92 since 82
    93 since 82
    """

    name = "response_length"

    def __init__(
        self,
        *,
        collapse: float = 0.6,
        explosion: float = 1.6,
        warn: float = 0.65,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        fall, rise = fall_to(self.name, "collapse", collapse), rise_to(self.name, "explosion", explosion)
        self.check_share("warn", warn)
        super().__init__(
            (Series("response_length", logarithm(1.0), 0.02),),
            (
                Watch(
                    0,
                    rising=False,
                    page=fall,
                    warn=fall * warn,
                    name="fell",
                    meaning="Answers become short at once: the policy has found a way to end early, by a shortcut of "
                    "the reward or because it no longer reasons.",
                    advice=(
                        "reward.custom_reward_function: read short answers that score well",
                        "actor_rollout_ref.actor.optim.lr: lower it",
                        "actor_rollout_ref.actor.kl_loss_coef: raise it",
                    ),
                    before=1,
                ),
                Watch(
                    0,
                    rising=True,
                    page=rise,
                    warn=rise * warn,
                    name="rose",
                    meaning="Answers grow out of proportion: the policy repeats itself or stalls for the limit, and "
                    "steps become slow and memory short.",
                    advice=(
                        "data.max_response_length: lower it",
                        "reward.reward_kwargs.overlong_buffer_cfg (DAPO): penalise what is overlong",
                        "actor_rollout_ref.actor.loss_agg_mode: token-mean rather than seq-mean-token-sum",
                        "actor_rollout_ref.actor.optim.lr: lower it",
                    ),
                    before=1,
                ),
            ),
            budget=budget,
            window=window,
            warmup=warmup,
            beside=(Series("reward", LINEAR, 0.005), Series("clip_ratio", LINEAR, 0.02)),
        )

    def allow(self, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Severity | None:
        """Hear the clip ratio of a growth, and the reward of a fall."""
        if not watch.rising:
            if self.drift(0, change) < CLEAR or -change.size > FAR * watch.page:
                return severity
            return Severity.WARNING if -change.size > watch.page else Severity.INFO
        cut = sample.signals.get("clip_ratio")
        if cut is None or cut >= CUT or self.drift(1, change) > CLEAR:
            return severity
        return min(severity, Severity.WARNING)

    def forecast(self, place: int, watch: Watch, sample: StepSample) -> Forecast | None:
        """Of a growth: when the mean reaches the length limit, where that is known."""
        limit = sample.setup.max_response_length
        if not watch.rising or limit is None or sample.signals["response_length"] >= limit:
            return None
        return self.arrival(place, float(limit), sample)
