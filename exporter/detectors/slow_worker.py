"""Step detector ``slow_worker``: the slowest answer takes far longer than the others do, step after step.

verl waits for the last answer of a batch. A rollout worker that has become slow (a throttled GPU, a busy host, a tool
server that hangs) shows in the ratio of the slowest answer's generation time to the mean. The ratio is noisy and has a
level of its own in every run, for answers differ in length, so each step is measured by the run's own past: a step is
high when its ratio is beyond the level that only a tenth of the earlier steps exceeded, times a factor, and the slowest
answer itself takes longer than it usually did (a mean that shrinks makes no straggler). ``k`` of the last ``n`` steps
have to be high.

Score: the ``k``-th largest of the last ``n`` steps' ratios, in units of that level; threshold ``factor``, and its
square root for a warning.

Reference: J. Dean and L. A. Barroso, The tail at scale, Communications of the ACM 56, 2013; the k-of-n rule is the
runs rule of control charts (Western Electric, Statistical Quality Control Handbook, 1956).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.window import SortedWindow

EXCEEDED_BY = 0.1
"""Share of the earlier steps that exceed the level by which the newer ones are measured."""
LARGEST = 1e6


class SlowWorker:
    """Slowest over mean generation time, against the run's own past.

    ``factor``: times the usual upper level that is high. ``k`` of ``n``: steps that have to be. ``window``: steps of
    the past. ``warmup``: steps before the first is judged.

    >>> detector = SlowWorker()
    >>> for step in range(1, 90):
    ...     slow = (2.2 if step >= 70 else 1.0) * (30.0 + step % 7)
    ...     times = {"slowest_rollout_time": slow, "mean_rollout_time": 12.0 + step % 5 / 4}
    ...     for v in detector.observe(StepSample(step, 1, 0.0, times)):
    ...         if step in (79, 85):
    ...             print(step, v.severity.label, "since", v.onset, f"{v.score:.2f} over {v.threshold:.2f}")
    79 critical since 70 1.83 over 1.40
    85 critical since 70 1.93 over 1.40
    """

    name = "slow_worker"

    def __init__(self, *, factor: float = 1.4, k: int = 10, n: int = 15, window: int = 100, warmup: int = 20) -> None:
        more_than(self.name, "factor", factor, 1.0)
        at_least(self.name, "k", k, 1, whole=True)
        at_least(self.name, "n", n, 1, whole=True)
        at_most(self.name, "k", k, n, "n")
        at_least(self.name, "window", window, 10, whole=True)
        at_least(self.name, "warmup", warmup, 10, whole=True)
        self._factor, self._k, self._n, self._window, self._warmup = factor, k, n, window, warmup
        self._restart()

    def _restart(self) -> None:
        self._ratios = SortedWindow(self._window)
        self._slowest = SortedWindow(self._window)
        # Steps, ratios, slowest times and scores that are not part of the past yet.
        self._recent: deque[tuple[int, float, float, float]] = deque()
        self._last = -1
        self._onset: int | None = None  # while it is said

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; one without the two times, or without sense in them, is not counted."""
        if sample.step < self._last:
            self._restart()
        slowest, mean = sample.signals.get("slowest_rollout_time"), sample.signals.get("mean_rollout_time")
        if slowest is None or mean is None or not (0.0 < mean <= slowest < LARGEST and slowest < LARGEST * mean):
            return ()
        if sample.step > self._last:
            self._last = sample.step
            self._push(sample.step, slowest / mean, slowest)
        return self._judge(sample.step)

    def _push(self, step: int, ratio: float, slowest: float) -> None:
        score = 0.0
        if len(self._ratios) >= self._warmup:
            upper = self._ratios.largest(1 + int(EXCEEDED_BY * len(self._ratios)))
            score = min(ratio / upper, slowest / self._slowest.median())
        self._recent.append((step, ratio, slowest, score))
        if len(self._recent) > self._n:
            _, ratio, slowest, score = self._recent.popleft()
            # What was high does not become usual: a straggler that stays is said again and again.
            if score < math.sqrt(self._factor):
                self._ratios.push(ratio)
                self._slowest.push(slowest)

    def _judge(self, step: int) -> Sequence[Verdict]:
        if len(self._recent) < self._k:
            return ()
        score = sorted((entry[3] for entry in self._recent), reverse=True)[self._k - 1]
        page = score > self._factor
        threshold = self._factor if page else math.sqrt(self._factor)
        if not score > threshold:
            self._onset = None
            return ()
        high = [entry for entry in self._recent if entry[3] > math.sqrt(self._factor)]
        self._onset = high[0][0] if self._onset is None else self._onset
        _, ratio, slowest, _ = high[-1]
        return (
            Verdict(
                detector=self.name,
                signal="slowest_rollout_time",
                severity=Severity.CRITICAL if page else Severity.WARNING,
                step=step,
                onset=self._onset,
                score=score,
                threshold=threshold,
                confidence=min(0.9, 1.0 - 0.4 * threshold / score) if page else 0.3,
                summary=(
                    f"the slowest answer took {slowest:.3g} s, {ratio:.1f} times the mean, in {len(high)} of the last "
                    f"{len(self._recent)} steps; usually {self._ratios.median():.1f} times, and "
                    f"{self._slowest.median():.3g} s"
                ),
                meaning=(
                    "One rollout worker, or the tool it waits for, is much slower than the others, and every step "
                    "waits for it."
                ),
                advice=(
                    "nvidia-smi on the rollout nodes: clocks, temperature, and who else uses the GPU",
                    "actor_rollout_ref.rollout.agent.num_workers: more workers share the load more evenly",
                    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns, and time-outs of the tools",
                ),
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Other workers, other levels: forget everything."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "ratios": list(self._ratios),
            "slowest": list(self._slowest),
            "recent": [list(entry) for entry in self._recent],
            "last": self._last,
            "onset": self._onset,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        for ratio in state["ratios"]:
            self._ratios.push(float(ratio))
        for slowest in state["slowest"]:
            self._slowest.push(float(slowest))
        self._recent.extend((int(step), float(a), float(b), float(c)) for step, a, b, c in state["recent"])
        self._last, self._onset = int(state["last"]), state["onset"]
