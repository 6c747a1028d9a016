"""Step detector ``clipping``: updates, or answers, are cut far more often than before.

``pg_clipfrac`` is the share of tokens whose policy ratio was clipped: where it saturates, the updates are too large
for their batch, and most of what the batch says is thrown away. ``clip_ratio`` is the share of answers that were cut
at the length limit: they have no end, mostly no reward, and teach the policy not to finish. Both have levels that are
a matter of the configuration (a clip ratio of 0.8 is how some runs begin), so a rise is judged, and it must reach a
share that matters.

Score: as in :mod:`exporter.detectors.shifting`; threshold 1.

Reference: J. Schulman et al., Proximal Policy Optimization Algorithms, 2017 (the clipped objective); Q. Yu et al.,
DAPO, 2025 (overlong answers as noise of the reward); the test: see :mod:`exporter.detectors.shift`."""

from __future__ import annotations

from exporter.detectors.base import Severity, StepSample
from exporter.detectors.calibration import Budget
from exporter.detectors.options import at_least, at_most
from exporter.detectors.scales import linear, logarithm
from exporter.detectors.shift import Change
from exporter.detectors.shifting import Series, ShiftDetector, Watch, rise_to


class Clipping(ShiftDetector):
    """The share of clipped tokens, or of answers cut at the limit, rises.

    ``factor``: growth of ``pg_clipfrac`` that makes a page, once it reaches ``tokens``. ``rise``: growth of
    ``clip_ratio`` that makes a page, once it reaches ``answers``. ``warn``: share of both that makes a warning.
    ``window``, ``warmup``: as in ``entropy``.

    >>> detector = Clipping()
    >>> for step in range(1, 101):
    ...     share = 0.05 + step % 3 / 100 + (0.05 * (step - 80) if step > 80 else 0.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"clip_ratio": min(share, 1.0)})):
    ...         if v.severity is Severity.CRITICAL and step < 91:
    ...             print(step, "since", v.onset)
    89 since 81
    90 since 81
    """

    name = "clipping"

    def __init__(
        self,
        *,
        factor: float = 3.0,
        tokens: float = 0.1,
        rise: float = 0.3,
        answers: float = 0.4,
        warn: float = 0.55,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        page = rise_to(self.name, "factor", factor)
        self.check_share("warn", warn)
        for option, value in (("tokens", tokens), ("answers", answers), ("rise", rise)):
            at_least(self.name, option, value, 0.0)
            at_most(self.name, option, value, 1.0, "the whole")
        self._reach, self._warn = (tokens, answers), warn
        super().__init__(
            (Series("pg_clipfrac", logarithm(0.01), 0.05), Series("clip_ratio", linear(least=0.0, most=1.0), 0.02)),
            (
                Watch(
                    0,
                    rising=True,
                    page=page,
                    warn=page * warn,
                    name="rose",
                    meaning="Far more tokens than before reach the clip range: the policy leaves its trust region.",
                    advice=(
                        "actor_rollout_ref.actor.optim.lr: lower it",
                        "actor_rollout_ref.actor.ppo_mini_batch_size: raise it; ppo_epochs: lower it",
                        "actor_rollout_ref.actor.clip_ratio: compare with what is usual (0.2)",
                    ),
                ),
                Watch(
                    1,
                    rising=True,
                    page=rise,
                    warn=rise * warn,
                    name="rose",
                    meaning="More and more answers are cut at the length limit: they earn nothing and teach the policy "
                    "not to finish.",
                    advice=(
                        "data.max_response_length: raise it",
                        "reward.reward_kwargs.overlong_buffer_cfg (DAPO): penalise what is overlong",
                        "look at answers that were cut: do they repeat themselves?",
                    ),
                    before=1,
                ),
            ),
            budget=budget,
            window=window,
            warmup=warmup,
        )

    def allow(self, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Severity | None:
        """A rise that stays below a share that matters is a warning at most, far below it nothing."""
        now, reach = self.tell(watch, change.now), self._reach[watch.series]
        if now < self._warn * reach:
            return None
        return severity if now >= reach else min(severity, Severity.WARNING)
