"""Step detector ``rollout_mismatch``: trainer and rollout engine drift apart in what they think the policy is.

The engine samples with other kernels and often other precision than the trainer computes gradients with, so there is
always some difference, and a constant offset is how a configuration lives. Growth is not: the batch then comes from
another policy than the one that is updated, and many collapses are preceded by it. All measures of it are watched
that verl logs, each as a growth by a factor beyond what this run has shown; where two say the same, one is said.

Score: as in :mod:`exporter.detectors.shifting`; threshold 1.

Reference: F. Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, 2025, and J. Liu et
al., When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch, 2025; the test: see
:mod:`exporter.detectors.shift`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from exporter.detectors.base import StepSample, Verdict
from exporter.detectors.calibration import Budget
from exporter.detectors.scales import AROUND_ONE, TO_ONE, logarithm
from exporter.detectors.shifting import Series, ShiftDetector, Watch, rise_to

_MEANING = (
    "What the rollout engine samples is less and less what the trainer believes it to be: the gradient is that of "
    "another policy. Collapses of the reward often follow within some dozens of steps."
)
_ADVICE = (
    "actor_rollout_ref.rollout.dtype, actor_rollout_ref.actor.fsdp_config.dtype: the same, float16 or bfloat16",
    "algorithm.rollout_correction.rollout_is (token or sequence): correct for it",
    "is the weight sync to the rollout engine complete? compare its log probabilities on one prompt",
    "actor_rollout_ref.actor.optim.lr: lower it",
)

_AGAIN = (("rollout_log_ppl_diff", "rollout_ppl_ratio"), ("rollout_probs_diff", "rollout_probs_correlation"))
"""Measures, and what is computed from the same numbers: judged only where the first is not logged."""


class RolloutMismatch(ShiftDetector):
    """A measure of the difference between trainer and rollout engine grows by a factor.

    ``factor``: growth that makes a page. ``warn``: share of it (in logarithms) that makes a warning. ``window``,
    ``warmup``: as in ``entropy``.

    >>> detector = RolloutMismatch()
    >>> for step in range(1, 101):
    ...     kl = 0.002 + step % 5 / 5000 + (0.002 * (step - 80) if step > 80 else 0.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"rollout_k3_kl": kl, "rollout_kl": -kl})):
    ...         if v.severity.label == "critical" and step < 89:
    ...             print(step, v.signal, "since", v.onset)
    86 rollout_k3_kl since 81
    87 rollout_k3_kl since 81
    88 rollout_k3_kl since 81
    """

    name = "rollout_mismatch"

    def __init__(
        self,
        *,
        factor: float = 2.5,
        warn: float = 0.6,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        page = rise_to(self.name, "factor", factor)
        self.check_share("warn", warn)
        series = (
            Series("rollout_k3_kl", logarithm(0.0015, signed=True), 0.05, signed=True),
            Series("rollout_kl", logarithm(0.002, signed=True), 0.05, signed=True),
            Series("rollout_log_ppl_diff", logarithm(0.004), 0.05),
            Series("rollout_probs_diff", logarithm(0.002), 0.05),
            Series("rollout_ppl_ratio", AROUND_ONE, 0.05),
            Series("rollout_probs_correlation", TO_ONE, 0.05),
        )
        super().__init__(
            series,
            [
                Watch(
                    place,
                    rising=True,
                    page=page,
                    warn=page * warn,
                    name="went" if place >= len(series) - 2 else "rose",
                    meaning=_MEANING,
                    advice=_ADVICE,
                )
                for place in range(len(series))
            ],
            budget=budget,
            window=window,
            warmup=warmup,
        )

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; the gravest finding is said, by the first measure that shows it."""
        signals = sample.signals
        twice = [again for measure, again in _AGAIN if measure in signals and again in signals]
        if twice:
            measures = {one.signal: signals[one.signal] for one in self._series if one.signal in signals}
            for again in twice:
                del measures[again]
            if "step_time" in signals:
                measures["step_time"] = signals["step_time"]
            sample = replace(sample, signals=measures)
        verdicts = super().observe(sample)
        if len(verdicts) < 2:
            return verdicts
        return (max(verdicts, key=lambda verdict: (verdict.severity, -verdicts.index(verdict))),)
