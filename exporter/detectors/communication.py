"""Step detector ``communication``: the weight sync takes a larger share of the step than it did.

New weights go to the rollout engine once a step. A network that loses a link, a transport that falls back to sockets or
a neighbour that takes the bandwidth shows here first, while the step as a whole hardly moves. The share alone misleads:
when answers get shorter, steps get faster and the share of a sync that takes what it always took grows by itself. So
both must have grown beyond the run's own past and noise: the seconds of the sync, and its share of the step without
validation and saving. A page asks besides that the sync takes at least ``page_share`` of the step, because a sync of a
hundredth of the step may treble and cost nothing.

This is the comparison with the run's own last two hundred steps; the one with a week ago is a rule of Prometheus
(``verl-performance.rules.yml``), which sees more than one run.

Score: how many times larger the share is (or the seconds, whichever grew less); threshold: how many times are too many.

Reference: the order statistics and the change point of :mod:`exporter.detectors.slowdown`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.calibration import Budget
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.phase_times import ADVICE, net_time
from exporter.detectors.slowdown import Slowdown, Slower, Test, safe_exp

_SIGNAL: Final = "weight_sync_time"
_LARGEST: Final = 1e9
_RECENT: Final = 8
_ALL: Final = 26
"""Blocks of eight steps."""


class Communication:
    """Share of the weight sync in the step.

    ``warn_factor``: growth of share and seconds that lasts 24 steps and is a warning. ``page_factor``: growth for a
    page, which takes eight steps. ``page_share``: share of the step below which there is no page. ``least_seconds``:
    growth of the sync below it is no finding.

    >>> detector = Communication()
    >>> for step in range(1, 80):
    ...     sync = 9.0 if step >= 50 else 3.0
    ...     timers = {"step_time": 27.0 + step % 3 + sync, "weight_sync_time": sync + step % 2 / 10}
    ...     for v in detector.observe(StepSample(step, 1, 0.0, timers)):
    ...         print(step, v.severity.label, f"share {v.score:.1f} times, since", v.onset)
    ...     if step == 56: break
    55 critical share 2.4 times, since 50
    56 critical share 2.4 times, since 50
    """

    name = "communication"

    def __init__(
        self,
        *,
        warn_factor: float = 1.3,
        page_factor: float = 1.6,
        page_share: float = 0.1,
        least_seconds: float = 0.2,
        budget: Budget | None = None,
    ) -> None:
        more_than(self.name, "warn_factor", warn_factor, 1.0)
        more_than(self.name, "page_factor", page_factor, 1.0)
        at_most(self.name, "warn_factor", warn_factor, page_factor, "page_factor")
        at_least(self.name, "page_share", page_share, 0.0)
        at_most(self.name, "page_share", page_share, 1.0, "a share of the step")
        at_least(self.name, "least_seconds", least_seconds, 0.0)
        self._page_share, self._least = page_share, least_seconds
        tests = (
            Test(8, _RECENT, math.sqrt(warn_factor * page_factor), page_factor),
            Test(24, _RECENT, warn_factor, page_factor),
            Test(24, _ALL, warn_factor, page_factor),
        )
        self._pace = Slowdown(tests, explanations=1, budget=budget)
        self._restart()

    def _restart(self) -> None:
        self._pace.restart()
        self._last_step = -1
        self._first = True
        self._shares: list[float] = []  # of the newest steps

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; one without a weight sync is neither judged nor learned."""
        sync = sample.signals.get(_SIGNAL)
        if sync is None or not 0.0 < sync < math.inf:
            return ()
        usual = self._usual_step()
        took = net_time(sample.signals, usual)
        if took is None or sample.step == self._last_step:
            return ()
        if sample.step < self._last_step:
            self._restart()
        self._last_step = sample.step
        if self._first:
            self._first = False
            return ()
        self._shares = [*self._shares[-7:], min(sync / took, 1.0)]
        if not self._pace.push(sample.step, math.log(sync), (math.log(took),)):
            return ()
        growth = self._pace.judge()
        if growth is None or growth.now - growth.before < self._least:
            return ()
        return (self._verdict(sample, growth),)

    def _usual_step(self) -> float | None:
        levels = self._pace.levels()
        return None if levels is None else safe_exp(levels[0] - levels[1])

    def _verdict(self, sample: StepSample, growth: Slower) -> Verdict:
        share = sorted(self._shares)[len(self._shares) // 2]
        page = growth.severity is Severity.CRITICAL and share >= self._page_share
        return Verdict(
            detector=self.name,
            signal=_SIGNAL,
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=sample.step,
            onset=growth.onset,
            score=min(growth.score, _LARGEST),
            threshold=growth.threshold,
            confidence=(0.7 if page else 0.4) + 0.25 * (1.0 - growth.threshold / growth.score),
            summary=(
                f"the weight sync takes {growth.now:.3g} s, {share:.0%} of the step; it took {growth.before:.3g} s "
                f"before, and its share is {min(growth.score, _LARGEST):.2f} times what it was or more, since step "
                f"{growth.onset}"
            ),
            meaning=(
                "New weights reach the rollout engine more slowly than they did, and all GPUs wait for them: a link, "
                "the transport or a neighbour on the network. The policy is not harmed; the time is lost."
            ),
            advice=ADVICE[_SIGNAL],
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget all levels: other nodes may run the new attempt."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "pace": self._pace.state(),
            "last_step": self._last_step,
            "first": self._first,
            "shares": list(self._shares),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pace.load(state["pace"])
        self._last_step, self._first, self._shares = state["last_step"], state["first"], list(state["shares"])
