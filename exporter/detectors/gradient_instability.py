"""Step detector ``gradient_instability``: the gradient norm jumps about much more than it used to.

The operations manual's rule is: the spread (largest less smallest) of three steps is above twice the usual. On
healthy runs that holds at every tenth step. Made robust: the usual is taken from a window of spreads that ends before
the steps under judgement, as the larger of twice its median and its 90th percentile; what is compared with it is not
one spread but the k-th largest of the last n, so that most of them must be large; and the effect must be ``factor``,
not just significant. A heavy-tailed but healthy gradient has a 90th percentile to match, and a score that comes near
to 1 over and over: where a run's own past scores, and the budget of pages, ask for more than ``factor``, that counts,
up to ``MOST`` times as much.

Score: the k-th largest of the last n spreads over the usual; threshold ``factor`` for a page, 85 % of it for a
warning.

Reference: the k-of-n rule of Western Electric (Statistical Quality Control Handbook, 1956), on moving ranges as in W.
A. Shewhart's charts for single values (Economic Control of Quality of Manufactured Product, 1931), with order
statistics in place of mean and sigma.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.calibration import BlockMaxima, Budget
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.window import SortedWindow

SIGNAL = "grad_norm"
SPREAD_STEPS = 3
LEAST = 15
"""Spreads that the window must hold before anything is judged."""
FULL = 80
"""With fewer spreads in the window, up to half as much again is asked."""
WARNING_SHARE = 0.85
LARGEST_RATIO = 1e12
USUAL = (0.75, 0.06)
"""Location and scale of the largest score in a block of healthy steps, before a run has shown its own."""
MOST = 1.6


class GradientInstability:
    """Most of the last steps' gradient norms spread far wider than usual.

    ``factor``: times the usual spread that make a page. ``k``, ``n``: how many of the last n spreads must be that wide.
    ``window``: spreads remembered as usual.

    >>> detector = GradientInstability()
    >>> calm = [0.5, 0.6, 0.55, 0.65, 0.52] * 8
    >>> for step, norm in enumerate([*calm, *[3.0, 0.4, 2.8, 0.3, 3.1, 0.5, 2.9, 0.6]], start=1):
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"grad_norm": norm})):
    ...         print(step, v.severity.label, "since", v.onset)
    47 critical since 41
    48 critical since 41
    """

    name = "gradient_instability"

    def __init__(
        self, *, factor: float = 1.4, k: int = 7, n: int = 10, window: int = 100, budget: Budget | None = None
    ) -> None:
        more_than(self.name, "factor", factor, 1.0)
        at_least(self.name, "k", k, 4, whole=True)
        at_least(self.name, "n", n, 4, whole=True)
        at_most(self.name, "k", k, n, "n")
        at_least(self.name, "window", window, 20, whole=True)
        self._factor, self._k, self._n, self._window = factor, k, n, window
        self._rarity = (budget or Budget()).rarity()
        self._scores = BlockMaxima(1, *USUAL)
        self._restart()

    def _restart(self) -> None:
        self._norms: deque[float] = deque(maxlen=SPREAD_STEPS)
        self._recent: deque[tuple[int, float]] = deque()  # step and spread, the last n
        self._past = SortedWindow(self._window)
        self._last_step = -1
        self._onset: int | None = None

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; none without a finite gradient norm."""
        norm = sample.signals.get(SIGNAL)
        if norm is None or not math.isfinite(norm):
            return ()
        if sample.step < self._last_step:
            self._restart()
        fresh = sample.step > self._last_step
        if fresh:
            self._push(sample.step, norm)
        return self._judge(fresh)

    def _push(self, step: int, norm: float) -> None:
        self._last_step = step
        self._norms.append(norm)
        if len(self._norms) < SPREAD_STEPS:
            return
        spread = min(max(self._norms) - min(self._norms), 1e300)
        self._recent.append((step, spread))
        if len(self._recent) > self._n:
            _, left = self._recent.popleft()
            # A streak of gradients of exactly 0 says nothing of the usual spread; a wide one counts, but clipped, so
            # that a new way of life is accepted after some dozens of steps.
            if left > 0.0:
                self._past.push(min(left, self._factor * self._usual()) if len(self._past) >= LEAST else left)

    def _usual(self) -> float:
        return max(2.0 * self._past.median(), self._past.largest(max(1, len(self._past) // 10)))

    def _judge(self, fresh: bool) -> Sequence[Verdict]:
        if len(self._past) < LEAST or len(self._recent) < self._n:
            return ()
        usual = self._usual()
        spreads = sorted((spread for _, spread in self._recent), reverse=True)
        score = min(spreads[self._k - 1] / usual, LARGEST_RATIO)
        thin = 1.0 + 0.5 * max(0, FULL - len(self._past)) / FULL
        least = thin * min(max(self._factor, self._scores.quantile(0, self._rarity)), MOST * self._factor)
        warn = WARNING_SHARE * least
        if fresh:
            self._scores.raise_to(0, score)
            self._scores.step()
        if score <= warn:
            self._onset = None
            return ()
        self._scores.found([0])
        if self._onset is None:
            self._onset = next(step for step, spread in self._recent if spread > warn * usual)
        page = score > least
        return (
            Verdict(
                detector=self.name,
                signal=SIGNAL,
                severity=Severity.CRITICAL if page else Severity.WARNING,
                step=self._last_step,
                onset=self._onset,
                score=score,
                threshold=least if page else warn,
                confidence=min(0.95, 1.0 - 0.5 * least / score) if page else 0.4,
                summary=(
                    f"grad_norm spread over {SPREAD_STEPS} steps by {spreads[self._k - 1]:.4g} or more in {self._k} of "
                    f"the last {self._n} steps, {score:.3g} times the usual {usual:.4g}, since step {self._onset}"
                ),
                meaning=(
                    "The optimizer is driven by a few samples or sits at the edge of stability; a surge of the loss "
                    "or the KL often follows."
                ),
                advice=(
                    "actor_rollout_ref.actor.optim.clip_grad (SFT: optim.clip_grad): lower it",
                    "actor_rollout_ref.actor.optim.lr (SFT: optim.lr): lower it",
                    "actor_rollout_ref.actor.ppo_mini_batch_size (SFT: data.train_batch_size): raise it",
                ),
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget what was usual, and keep how far this run's scores go."""
        self._restart()
        self._scores.restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "norms": list(self._norms),
            "recent": [list(pair) for pair in self._recent],
            "past": list(self._past),
            "last_step": self._last_step,
            "onset": self._onset,
            "scores": self._scores.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        self._norms.extend(float(norm) for norm in state["norms"])
        self._recent.extend((int(step), float(spread)) for step, spread in state["recent"])
        for spread in state["past"]:
            self._past.push(float(spread))
        self._last_step, self._onset = state["last_step"], state["onset"]
        if "scores" in state:  # a snapshot of an older version has none
            self._scores.load(state["scores"])
