"""Step detector ``surge``: a signal has left the range of its own recent past, and stays outside.

Every watched signal has a window of its recent magnitudes, which ends ``LAG`` steps ago, so that a growth over some
steps is measured against what was before it. The yardstick is the second largest value of the window: a heavy-tailed
but healthy signal carries its own spikes in it, and one spike cannot raise it. A step is *high* when its magnitude is
above ``factor`` times the yardstick, three times the median, and an absolute floor where the signal has one (a KL of
1e-4 may grow tenfold and mean nothing). Magnitudes make a loss that changes sign comparable: near 0 it is small,
whatever its ratio to the step before.

One high step is noted, two of five are a warning, three of five are a page, and so are two in a row above
``fast_factor`` of which the second is higher still: a spike that heals is on its way down by then. A high value that
was alone enters the window as it is, so that a signal that spikes by nature is soon known to; the others enter
clipped at ``factor`` times the yardstick, so that a new level that lasts is accepted after some dozens of steps.
Entropy is watched downwards too, by its reciprocal.

Score: the k-th largest ratio to the yardstick within the last n steps (the smaller of two for the fast rule);
threshold ``factor`` (``fast_factor``).

Reference: Hampel's identifier (F. R. Hampel, The influence curve and its role in robust estimation, JASA 69, 1974)
for the comparison with a rolling median, with an order statistic as the scale (H. A. David and H. N. Nagaraja, Order
Statistics, 2003) and the k-of-n rule of Western Electric (Statistical Quality Control Handbook, 1956).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import Expectation, Severity, StepSample, Verdict
from exporter.detectors.options import at_least, at_most, more_than, unknown_name
from exporter.detectors.watches import WATCHES, SurgeWatch
from exporter.detectors.window import SortedWindow

LAG = 10
"""The window ends this many steps ago: the longest growth that is still measured against what was before it."""
MEDIAN_FACTOR = 3.0
"""A high step is also this many times the median."""
FULL = 30
"""Below this many values in the window the ratio that counts as high is larger, up to three times as large."""
TINY = 1e-9
LARGEST_RATIO = 1e12
GROWING = 2.0
"""Times the step before that count as growth where only two steps are known."""
SIGNED = frozenset({"loss", "kl", "ppo_kl"})
"""Signals that may be below 0 in a healthy run; only their magnitude is judged."""
SIGN_MEMORY = 0.1
"""Share of the newest step in the sign that such a signal usually has."""


class Surge:
    """A signal far outside its recent range for several steps.

    ``factor``: times the yardstick from which on a step is high. ``fast_factor``: the same for the rule that needs
    only two steps, the second higher. ``k``, ``n``: high steps of the last n that make a page. ``window``: steps
    remembered. ``warmup``: steps of an attempt before anything is judged. ``floors``: floor by signal, in its unit, in
    place of the built-in one (both directions of entropy share it).

    >>> detector = Surge()
    >>> usual = [0.20, 0.24, 0.22, 0.19, 0.23] * 6
    >>> for step, norm in enumerate([*usual, 0.24, 0.95, 2.4, 16.0, 145.0], start=1):
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"grad_norm": norm})):
    ...         print(step, norm, v.severity.label, "since", v.onset)
    32 0.95 info since 32
    33 2.4 warning since 32
    34 16.0 critical since 32
    35 145.0 critical since 32
    """

    name = "surge"

    def __init__(
        self,
        *,
        factor: float = 2.0,
        fast_factor: float = 8.0,
        k: int = 3,
        n: int = 5,
        window: int = 100,
        warmup: int = 15,
        floors: Mapping[str, float] | None = None,
    ) -> None:
        more_than(self.name, "factor", factor, 1.0)
        more_than(self.name, "fast_factor", fast_factor, 1.0)
        at_most(self.name, "factor", factor, fast_factor, "fast_factor")
        at_least(self.name, "k", k, 2, whole=True)
        at_least(self.name, "n", n, 2, whole=True)
        at_most(self.name, "k", k, n, "n")
        at_least(self.name, "window", window, 20, whole=True)
        at_least(self.name, "warmup", warmup, 5, whole=True)
        self._floors = dict(floors or {})
        for signal, floor in self._floors.items():
            if signal not in {watch.signal for watch in WATCHES}:
                raise unknown_name(f"signal in floors of detector {self.name}", signal, [w.signal for w in WATCHES])
            at_least(self.name, f"floors.{signal}", floor, 0.0)
        self._factor, self._fast, self._k, self._n = factor, fast_factor, k, n
        self._window, self._warmup = window, warmup
        self._series = {watch.key: self._fresh(watch) for watch in WATCHES}

    def _fresh(self, watch: SurgeWatch) -> _Series:
        floor = self._floors.get(watch.signal, watch.floor)
        return _Series(watch, floor=floor, factor=self._factor, window=self._window, warmup=self._warmup, n=self._n)

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a signal that the step does not have is neither judged nor learned."""
        verdicts = []
        for watch in WATCHES:
            value = sample.signals.get(watch.signal)
            if value is None or not -math.inf < value < math.inf:
                continue
            series = self._series[watch.key]
            if sample.step < series.last_step:
                series = self._series[watch.key] = self._fresh(watch)
            if sample.step > series.last_step:
                series.push(sample.step, value)
            if series.calm_for >= self._n:
                continue
            verdict = self._judge(series, value)
            if verdict is not None:
                verdicts.append(verdict)
        return verdicts

    def _judge(self, series: _Series, value: float) -> Verdict | None:
        ratios = sorted(series.ratios, reverse=True)
        if not ratios or ratios[0] <= self._factor:
            return None
        high_now = series.ratios[-1] > self._factor
        in_a_row = series.growing()
        kth = ratios[self._k - 1] if len(ratios) >= self._k else 0.0
        second = ratios[1] if len(ratios) > 1 else 0.0
        if kth > self._factor:
            severity, score, threshold, count = Severity.CRITICAL, kth, self._factor, self._k
        elif in_a_row > self._fast:
            severity, score, threshold, count = Severity.CRITICAL, in_a_row, self._fast, 2
        elif second > self._factor:
            severity, score, threshold, count = Severity.WARNING, second, self._factor, 2
        elif high_now:
            severity, score, threshold, count = Severity.INFO, ratios[0], self._factor, 1
        else:
            return None
        watch = series.watch
        return Verdict(
            detector=self.name,
            signal=watch.signal,
            severity=severity,
            step=series.last_step,
            onset=max(series.onset - watch.before, 0),
            score=score,
            threshold=threshold,
            confidence=_confidence(severity, score, threshold),
            summary=(
                f"{watch.signal} left its range in {count} of the last {len(ratios)} steps: {value:.4g} now, usually "
                f"{'not below' if watch.falls else 'up to'} {series.usual():.4g} (median {series.middle():.4g}), "
                f"since step {series.onset}"
            ),
            meaning=watch.meaning,
            advice=watch.advice,
        )

    def expected(self) -> Mapping[str, Expectation]:
        """By signal: the median of its window, and the values from which on the next step would be high.

        >>> detector = Surge()
        >>> for step in range(1, 61):
        ...     _ = detector.observe(StepSample(step, 1, 0.0, {"grad_norm": 0.5 + step % 2 / 10}))
        >>> detector.expected()
        {'grad_norm': Expectation(expected=0.55, lower=0.0, upper=1.6500000000000001)}
        """
        found: dict[str, Expectation] = {}
        for watch in WATCHES:
            series = self._series[watch.key]
            if not series.judges():
                continue
            if not watch.falls:
                found[watch.signal] = series.expectation()
            elif watch.signal in found:
                rising = found[watch.signal]
                found[watch.signal] = Expectation(rising.expected, series.lower(), rising.upper)
        return found

    def resumed(self, step: int, attempt: int) -> None:
        """Forget all levels: a resume shifts them."""
        self._series = {watch.key: self._fresh(watch) for watch in WATCHES}

    def state_dict(self) -> dict[str, Any]:
        return {key: series.state_dict() for key, series in self._series.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for watch in WATCHES:
            series = self._fresh(watch)
            if watch.key in state:
                series.load_state_dict(state[watch.key])
            self._series[watch.key] = series


def _confidence(severity: Severity, score: float, threshold: float) -> float:
    """From 0.6 at the threshold towards 0.98; one signal that surges is never certainty."""
    if severity is Severity.INFO:
        return 0.2
    if severity is Severity.WARNING:
        return 0.4
    return min(0.98, 1.0 - 0.4 * threshold / score)


class _Series:
    """What is known of one watch: its window, the steps since, and their ratios to the yardstick."""

    def __init__(self, watch: SurgeWatch, *, floor: float, factor: float, window: int, warmup: int, n: int) -> None:
        self.watch = watch
        self._floor, self._factor, self._warmup = floor, factor, warmup
        self._past = SortedWindow(window)
        # Of the steps that are not in the window yet, and ratios of the last n.
        self._steps, self._sizes, self._highs = array("q"), array("d"), array("b")
        self._high_before = False  # whether the newest value of the window was high when it came
        self.ratios = array("d")
        self._n = n
        self.calm_for = n
        """Steps since the last one that was high."""
        self._seen = 0
        self._sign = 0.0  # from -1 to 1: whether the newest values were mostly below or above 0
        self.last_step = -1
        self.onset = 0

    def push(self, step: int, value: float) -> None:
        """Take the next step's finite value."""
        self.last_step = step
        size = 1.0 / max(abs(value), TINY) if self.watch.falls else abs(value)
        if size == 0.0:
            # Exactly 0 is a step without a gradient or without an update, not a level to measure others by.
            self._note(0.0)
            return
        self._seen += 1
        self._sign += SIGN_MEMORY * ((1.0 if value > 0.0 else -1.0) - self._sign)
        ratio = self._ratio(size) if self._seen > self._warmup else 0.0
        self._steps.append(step)
        self._sizes.append(size)
        self._highs.append(ratio > self._factor)
        self._note(ratio)
        while len(self._steps) > min(LAG, self._seen // 3):
            self._admit()

    def _note(self, ratio: float) -> None:
        self.ratios.append(ratio)
        if len(self.ratios) > self._n:
            del self.ratios[0]
        if ratio <= self._factor:
            self.calm_for += 1
            return
        if self.calm_for >= self._n:
            self.onset = self._estimate_onset()
        self.calm_for = 0

    def _ratio(self, size: float) -> float:
        """How many times the yardstick, with the demands of median, floor, slack and a short window worked in."""
        falls = self.watch.falls
        if not falls and size <= self._floor:
            return 0.0
        yardstick = self._past.largest(2)
        if not falls:
            yardstick = max(yardstick, self._floor / self._factor)
        ratio = min(size / yardstick / self._leniency(), LARGEST_RATIO)
        if ratio <= 1.0:
            return ratio
        if falls and 1.0 / self._past.median() - 1.0 / size < self._floor:
            return 0.0
        return ratio if size > MEDIAN_FACTOR * self._past.median() else 1.0

    def _leniency(self) -> float:
        """Times the yardstick that count as one: more where the window is short or the signal grows by nature."""
        missing = FULL - len(self._past)
        return (1.0 + 2.0 * missing / FULL) * self.watch.slack if missing > 0 else self.watch.slack

    def _admit(self) -> None:
        """Move the oldest of the recent values into the window, clipped if it was high and not alone in that."""
        size, high = self._sizes.pop(0), bool(self._highs.pop(0))
        del self._steps[0]
        alone = not self._high_before and not (self._highs and self._highs[0])
        self._past.push(min(size, self._factor * self._past.largest(2)) if high and not alone else size)
        self._high_before = high

    def _estimate_onset(self) -> int:
        """First step of the run-up: back while values are nearer, by their ratios, to now's than to the usual."""
        onset, now = self._steps[-1], self._sizes[-1]
        usual = max(self._past.largest(2), self._past.median())
        between = math.sqrt(usual) * math.sqrt(now)
        for step, size in zip(reversed(self._steps), reversed(self._sizes), strict=True):
            if size < between:
                break
            onset = step
        return onset

    def growing(self) -> float:
        """The ratio of the step before, where this step's is still well above it; 0 where it is not.

        A spike that lasts for two steps is on its way down at the second.
        """
        if len(self.ratios) < 2:
            return 0.0
        before, now = self.ratios[-2], self.ratios[-1]
        return before if now > GROWING * before or now == LARGEST_RATIO else 0.0

    def usual(self) -> float:
        """The yardstick in the signal's unit."""
        return 1.0 / self._past.largest(2) if self.watch.falls else self._past.largest(2)

    def middle(self) -> float:
        """The median in the signal's unit."""
        return 1.0 / self._past.median() if self.watch.falls else self._past.median()

    def judges(self) -> bool:
        """Whether enough was seen for a step to be judged."""
        return self._seen >= self._warmup and len(self._past) > 1

    def expectation(self) -> Expectation:
        """Of a watch that looks for growth: the median, and the values that are not high yet."""
        median = self._past.median()
        yardstick = max(self._past.largest(2), self._floor / self._factor)
        upper = max(self._factor * self._leniency() * yardstick, MEDIAN_FACTOR * median, self._floor)
        if self.watch.signal not in SIGNED:
            return Expectation(median, 0.0, upper)
        # The median of magnitudes, with the sign that the signal has; one that keeps changing it is around 0.
        return Expectation(median * (round(self._sign) if abs(self._sign) > 0.5 else 0), -upper, upper)

    def lower(self) -> float:
        """Of a watch that looks for a fall: the value from which on downwards the next step would be high."""
        median = self._past.median()
        size = max(self._factor * self._leniency() * self._past.largest(2), MEDIAN_FACTOR * median)
        return max(0.0, min(1.0 / size, 1.0 / median - self._floor))

    def state_dict(self) -> dict[str, Any]:
        return {
            "past": list(self._past),
            "recent": [list(values) for values in (self._steps, self._sizes, self._highs)],
            "high_before": self._high_before,
            "ratios": list(self.ratios),
            "seen": self._seen,
            "sign": self._sign,
            "last_step": self.last_step,
            "onset": self.onset,
            "calm_for": self.calm_for,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for value in state["past"]:
            self._past.push(float(value))
        steps, sizes, highs = state["recent"]
        self._steps, self._sizes, self._highs = array("q", steps), array("d", sizes), array("b", highs)
        self._high_before = state["high_before"]
        self.ratios = array("d", state["ratios"])
        self._seen, self.last_step, self.onset = state["seen"], state["last_step"], state["onset"]
        self._sign = state.get("sign", 0.0)
        self.calm_for = state.get("calm_for", 0)
