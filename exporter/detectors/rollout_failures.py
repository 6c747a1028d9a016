"""Live detector ``rollout_failures``: too large a share of the rollout requests fails.

verl's V1 trainer goes on when requests fail and logs no share of them; the plugin counts. Judged over a window of
time, by evidence, not by the bare share: one failure in a hundred is above 0.5 % and means nothing. The evidence is
the probability of that many failures, or more, if the true share were the limit: below one in a thousand is a warning,
below ``alpha`` a page (small, because it is asked once a second and for many beginnings). What is judged begins at the
failure, within the window, from which on the evidence is strongest, so that an hour without failures does not hide the
first bad minute. A page also needs failures at three looks at least, for one server that hiccups once fails many
requests together.

Score: the share of failed requests since that beginning; threshold ``limit``. The confidence is one less the
probability.

Reference: the exact one-sided test of a share (C. J. Clopper and E. S. Pearson, The use of confidence or fiducial
limits, Biometrika 26, 1934), by the Poisson tail, which bounds the binomial one for shares above a
small limit; M. Kulldorff, A spatial scan statistic, Communications in Statistics 26, 1997, for the best beginning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from exporter.detectors.base import LiveView, Severity, Verdict
from exporter.detectors.options import at_least, at_most, more_than

WARNING_ALPHA = 0.001
BURSTS = 64
"""Looks with new failures that are remembered, the newest ones."""
PAGE_BURSTS = 3


class _Burst(NamedTuple):
    """A look that brought new failures, and the counts at the look before."""

    time: float
    step: int
    succeeded_before: int
    failed_before: int


class RolloutFailures:
    """Share of failed rollout requests over a window, with evidence.

    ``limit``: the share that is too much. ``window_seconds``: how far back requests count. ``min_requests`` and
    ``min_failures``: counts below which nothing is said. ``alpha``: probability of chance below which it is a page.

    >>> detector = RolloutFailures()
    >>> for step, (ok, failed) in enumerate([(0, 0), (900, 0), (931, 1), (960, 4), (989, 7), (1018, 10)], start=40):
    ...     view = LiveView(1000.0 + step, step, 1, step, True, 0.0, rollouts_succeeded=ok, rollouts_failed=failed)
    ...     for v in detector.look(view):
    ...         print(step, v.severity.label, f"share {v.score:.1%}", "since", v.onset)
    43 warning share 6.2% since 42
    44 critical share 7.3% since 42
    45 critical share 7.8% since 42
    """

    name = "rollout_failures"

    def __init__(
        self,
        *,
        limit: float = 0.005,
        window_seconds: float = 600.0,
        min_requests: int = 50,
        min_failures: int = 3,
        alpha: float = 1e-6,
    ) -> None:
        more_than(self.name, "limit", limit, 0.0)
        at_most(self.name, "limit", limit, 1.0, "a share of all requests")
        more_than(self.name, "window_seconds", window_seconds, 0.0)
        at_least(self.name, "min_requests", min_requests, 1, whole=True)
        at_least(self.name, "min_failures", min_failures, 1, whole=True)
        more_than(self.name, "alpha", alpha, 0.0)
        at_most(self.name, "alpha", alpha, WARNING_ALPHA, "what makes a warning")
        self._limit, self._window, self._alpha = limit, window_seconds, alpha
        self._min_requests, self._min_failures = min_requests, min_failures
        self._restart()

    def _restart(self) -> None:
        self._bursts: deque[_Burst] = deque(maxlen=BURSTS)
        self._last: tuple[float, int, int] | None = None  # time, succeeded, failed

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Not needed here."""

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the requests of the last ``window_seconds``."""
        reading = (view.now, view.rollouts_succeeded, view.rollouts_failed)
        if self._last is None or any(new < old for new, old in zip(reading, self._last, strict=True)):
            self._restart()
        elif view.rollouts_failed > self._last[2]:
            self._bursts.append(_Burst(view.now, view.step, self._last[1], self._last[2]))
        self._last = reading
        while self._bursts and self._bursts[0].time <= view.now - self._window:
            self._bursts.popleft()
        return self._judge(view)

    def _judge(self, view: LiveView) -> Sequence[Verdict]:
        chance, since = WARNING_ALPHA, -1
        for index, burst in enumerate(self._bursts):
            failed = view.rollouts_failed - burst.failed_before
            total = failed + view.rollouts_succeeded - burst.succeeded_before
            if total >= self._min_requests and failed >= self._min_failures and failed > self._limit * total:
                by_chance = poisson_tail(failed, self._limit * total)
                if by_chance < chance:
                    chance, since = by_chance, index
        if since < 0:
            return ()
        start = self._bursts[since]
        failed = view.rollouts_failed - start.failed_before
        total = failed + view.rollouts_succeeded - start.succeeded_before
        share, looks, onset = failed / total, len(self._bursts) - since, start.step
        page = chance < self._alpha and looks >= PAGE_BURSTS
        return (
            Verdict(
                detector=self.name,
                signal="rollout_requests",
                severity=Severity.CRITICAL if page else Severity.WARNING,
                step=view.step,
                onset=onset,
                score=share,
                threshold=self._limit,
                confidence=1.0 - chance if page else 0.4,
                summary=(
                    f"{failed} of {total} rollout requests failed within {view.now - start.time:.0f} s ({share:.2%}, "
                    f"limit {self._limit:.2%}; by chance with probability {chance:.1g}), since step {onset}"
                ),
                meaning=(
                    "verl drops the samples of failed requests and goes on: the batches get smaller, and biased "
                    "against whatever makes requests fail (long answers, most often)."
                ),
                advice=(
                    "the rollout servers' own logs, at the onset",
                    "actor_rollout_ref.rollout.gpu_memory_utilization: lower it, where the servers run out of memory",
                    "actor_rollout_ref.rollout.max_num_seqs: lower it, where requests time out",
                ),
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget the requests of the attempt before: its failures are not the new one's."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "bursts": [list(burst) for burst in self._bursts],
            "last": None if self._last is None else list(self._last),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        self._bursts.extend(_Burst(float(time), *map(int, counts)) for time, *counts in state["bursts"])
        last = state["last"]
        self._last = None if last is None else (float(last[0]), int(last[1]), int(last[2]))


def poisson_tail(count: int, mean: float) -> float:
    """Probability of ``count`` or more events where ``mean`` are expected, for a count above the mean.

    >>> round(poisson_tail(3, 0.5), 4)
    0.0144
    """
    if count <= mean:
        return 1.0
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean > 0.0 else 0.0
    tail, k = 0.0, count
    while term > 1e-18 and k < count + 1000:
        tail += term
        k += 1
        term *= mean / k
    return min(1.0, tail)
