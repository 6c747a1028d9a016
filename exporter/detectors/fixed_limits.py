"""Step detector ``fixed_limits``: signals against limits that somebody has set, whatever the run itself has shown.

For teams with house rules, and for the preset ``manual``, which sets the operations manual's thresholds. Nothing is
limited by default, and then the detector is not even built: a limit that is right for one configuration is wrong for
most (a KL below 0.01, of which the manual warns, is where many GRPO runs live all their life).

Every limit is a row of one table. A value passes a limit in ``k`` of the last ``n`` steps that have it, and it is a
finding. Four rules differ: ``step_seconds`` wants ``step_seconds_times`` slow steps in a row, ``step_seconds_p95``
judges the 95th percentile of the last ``window`` steps, ``loss_times`` the magnitude of the loss over the median
magnitude of the ``window`` steps before, and ``memory_ratio`` the memory in use over what the machine has, where that
is known (what GPUs report between the steps is the detector ``memory``'s). A loss that is NaN is ``non_finite``'s.

Score: by how much the limit is passed, in its unit; threshold 0. The confidence is 0.5: that a limit is passed is
certain, that anything is wrong with the run is not.

Reference: control limits that are specified rather than estimated (W. A. Shewhart, Economic Control of Quality of
Manufactured Product, 1931); the percentile by nearest rank.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.limits import LIMITS, Limit
from exporter.detectors.options import at_least, at_most, finite, more_than, one_of
from exporter.detectors.window import SortedWindow

LEAST = 15
"""Steps that a median must come from."""
LEAST_PERCENTILE = 20
"""Steps that a 95th percentile must come from: of fewer it would be the slowest one."""
LARGEST = 1e300
SEVERITIES = {severity.label: severity for severity in Severity}


class FixedLimits:
    """Signals beyond limits that were set.

    ``step_seconds_p95`` (seconds): 95th percentile of the step time of the last ``window`` steps is above it.
    ``step_seconds`` (seconds): so many steps in a row took longer. ``step_seconds_times`` (steps): how many in a row.
    ``kl_above`` (nats): KL divergence from the reference is above it. ``kl_below`` (nats): it is below it.
    ``memory_ratio`` (ratio): share of a GPU's, or the trainer host's, memory in use at the step's end is above it.
    ``loss_times`` (times): magnitude of the loss over its median of the ``window`` steps before is above it.
    ``grad_norm_above``: gradient norm before clipping is above it.
    ``entropy_below`` (nats): entropy per token is below it.
    ``reward_below``: mean score of the batch is below it.
    ``response_length_above`` (tokens): mean length of the responses is above it.
    ``clip_ratio_above`` (ratio): share of responses cut at the length limit is above it.
    ``throughput_below`` (tokens per second and GPU): throughput is below it.
    ``mfu_below`` (ratio): model FLOPs utilisation is below it.
    ``k``, ``n`` (steps): limits but those of the step time must be passed in k of the last n steps.
    ``window`` (steps): that percentile and median are taken of. ``warmup`` (steps): of an attempt, not judged.
    ``severity``: of all findings: info, warning or critical.

    >>> detector = FixedLimits(kl_above=0.3, k=2, n=3, warmup=0)
    >>> for step, kl in enumerate([0.1, 0.4, 0.2, 0.5, 0.1], start=1):
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"kl": kl})):
    ...         print(step, v.severity.label, "since", v.onset, v.summary)
    4 warning since 2 kl was above the fixed limit of 0.3 nats in 2 of the last 3 steps: 0.5 now, since step 2
    """

    name = "fixed_limits"

    def __init__(
        self,
        *,
        step_seconds_p95: float | None = None,
        step_seconds: float | None = None,
        step_seconds_times: int = 3,
        kl_above: float | None = None,
        kl_below: float | None = None,
        memory_ratio: float | None = None,
        loss_times: float | None = None,
        grad_norm_above: float | None = None,
        entropy_below: float | None = None,
        reward_below: float | None = None,
        response_length_above: float | None = None,
        clip_ratio_above: float | None = None,
        throughput_below: float | None = None,
        mfu_below: float | None = None,
        k: int = 3,
        n: int = 5,
        window: int = 100,
        warmup: int = 15,
        severity: str = "warning",
    ) -> None:
        given = locals()
        limits: dict[str, tuple[Limit, float]] = {}
        for limit in LIMITS:
            value = given[limit.option]
            if value is not None:
                _check(limit, value)
                limits[limit.key] = (limit, float(value))
        self._limits = limits
        if kl_above is not None and kl_below is not None:
            at_most(self.name, "kl_below", kl_below, kl_above, "kl_above")
        at_least(self.name, "step_seconds_times", step_seconds_times, 1, whole=True)
        at_least(self.name, "k", k, 1, whole=True)
        at_least(self.name, "n", n, 1, whole=True)
        at_most(self.name, "k", k, n, "n")
        at_least(self.name, "window", window, LEAST_PERCENTILE, whole=True)
        at_least(self.name, "warmup", warmup, 0, whole=True)
        one_of(self.name, "severity", severity, SEVERITIES)
        self._k, self._n, self._times, self._window = k, n, step_seconds_times, window
        self._warmup, self._severity = warmup, SEVERITIES[severity]
        self._restart()

    @property
    def watches_anything(self) -> bool:
        """Whether a limit is set; where none is, there is no use in this detector."""
        return bool(self._limits)

    def _restart(self) -> None:
        self._series = {key: self._fresh(limit) for key, (limit, _) in self._limits.items()}
        self._steps = 0
        self._last_step = -1

    def _fresh(self, limit: Limit) -> _Series:
        if limit.rule == "in_a_row":
            return _Series(self._times, self._times)
        if limit.rule == "percentile":
            return _Series(None, self._window)
        return _Series(self._k, self._n, SortedWindow(self._window) if limit.rule == "over_median" else None)

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step by every limit whose signal it has as a finite number."""
        step = sample.step
        if step < self._last_step:
            self._restart()
        if step > self._last_step:
            self._steps += 1
            self._last_step = step
        verdicts = []
        for key, (limit, bound) in self._limits.items():
            measured = sample.signals.get(limit.signal)
            if measured is None or not math.isfinite(measured):
                continue
            reading = limit.reading(measured, sample)
            if reading is None:
                continue
            series = self._series[key]
            if step > series.last_step:
                series.push(step, reading, bound, below=limit.below, warming=self._steps <= self._warmup)
            verdict = self._judge(limit, bound, series)
            if verdict is not None:
                verdicts.append(verdict)
        return verdicts

    def _judge(self, limit: Limit, bound: float, series: _Series) -> Verdict | None:
        score = series.score()
        if score <= 0.0 or self._steps <= self._warmup:
            series.onset = None
            return None
        if series.onset is None:
            series.onset = series.estimate_onset()
        way, seen = "below" if limit.below else "above", series.seen
        unit = f" {limit.unit}" if limit.unit else ""
        what = f"{limit.signal} was {way} the fixed limit of {bound:.4g}{unit}"
        if limit.rule == "percentile":
            what = f"the 95th percentile of {what} over {seen} steps, at {bound + score:.4g}"
        elif limit.rule == "in_a_row":
            what += f" in {seen} steps in a row"
        elif series.size > 1:
            what += f" in {series.k} of the last {seen} steps"
        return Verdict(
            detector=self.name,
            signal=limit.signal,
            severity=self._severity,
            step=series.last_step,
            onset=series.onset,
            score=score,
            threshold=0.0,
            confidence=0.5,
            summary=f"{what}: {series.newest:.4g} now, since step {series.onset}",
            meaning=limit.meaning,
            advice=limit.advice,
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget what was seen: a streak does not go on across a restart."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "last_step": self._last_step,
            "series": {key: series.state_dict() for key, series in self._series.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        self._steps, self._last_step = state["steps"], state["last_step"]
        for key, series in self._series.items():
            if key in state["series"]:  # a limit that was set since starts fresh
                series.load_state_dict(state["series"][key])


def _check(limit: Limit, value: float) -> None:
    """Refuse a limit that is no number, or that nothing, or everything, passes."""
    if limit.least is None:
        finite(FixedLimits.name, limit.option, value)
    else:
        more_than(FixedLimits.name, limit.option, value, limit.least)
        at_most(FixedLimits.name, limit.option, value, limit.most, "the largest that there can be")


class _Series:
    """By how much the last steps passed one limit.

    Args:
        k: steps of ``size`` that have to pass; None for the share above the 95th percentile.
        size: steps that are kept.
        usual: magnitudes that a value is divided by the median of, where it is.
    """

    def __init__(self, k: int | None, size: int, usual: SortedWindow | None = None) -> None:
        self.k, self.size = k, size
        self._past: deque[tuple[int, float]] = deque()  # step, and by how much it passed; not above 0: it did not
        self._passed = 0
        self._usual = usual
        self.newest = 0.0
        self.last_step = -1
        self.onset: int | None = None

    def push(self, step: int, reading: float, bound: float, *, below: bool, warming: bool) -> None:
        """Take the next step's finite reading. While an attempt warms up only what is usual is learned."""
        self.last_step = step
        if self._usual is not None:
            size, reading = abs(reading), self._over_median(abs(reading))
            self._usual.push(size)
        self.newest = reading
        if not warming or self.k is None:
            excess = bound - reading if below else reading - bound
            self._keep(step, max(-LARGEST, min(excess, LARGEST)))

    def _keep(self, step: int, excess: float) -> None:
        self._past.append((step, excess))
        self._passed += excess > 0.0
        if len(self._past) > self.size:
            self._passed -= self._past.popleft()[1] > 0.0

    def _over_median(self, size: float) -> float:
        """How many times the median; 0, which passes no limit, where that is not known or 0."""
        median = self._usual.median() if self._usual is not None and len(self._usual) >= LEAST else 0.0
        return min(size / median, LARGEST) if median > 0.0 else 0.0

    def score(self) -> float:
        """By how much the k-th of the steps passed; 0 where too few did, or were seen."""
        k, seen = self.k, len(self._past)
        if k is None:
            k = seen - math.ceil(0.95 * seen) + 1 if seen >= LEAST_PERCENTILE else seen + 1
        if self._passed < k:
            return 0.0
        return sorted((excess for _, excess in self._past), reverse=True)[k - 1]

    @property
    def seen(self) -> int:
        """Steps that are kept."""
        return len(self._past)

    def estimate_onset(self) -> int:
        """The step since which more steps passed than did not, by the widest margin; the first such."""
        onset, margin, widest = self.last_step, 0, -self.size
        for step, excess in reversed(self._past):
            margin += 1 if excess > 0.0 else -1
            if margin >= widest and excess > 0.0:
                onset, widest = step, margin
        return onset

    def state_dict(self) -> dict[str, Any]:
        return {
            "past": [list(pair) for pair in self._past],
            "usual": None if self._usual is None else list(self._usual),
            "newest": self.newest,
            "last_step": self.last_step,
            "onset": self.onset,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; of one from other options as much as there is room for."""
        for step, excess in state["past"]:
            self._keep(int(step), float(excess))
        if self._usual is not None:
            for size in state["usual"] or ():
                self._usual.push(float(size))
        self.newest, self.last_step, self.onset = state["newest"], state["last_step"], state["onset"]
