"""Step detector ``aborted_rollouts``: too large a share of the answers of a step is empty or was dropped.

What a log shows of rollouts that fail where nobody counts requests: ``aborted_ratio`` (answers of length 0) and
``rollout_evicted`` (prompt groups that verl's V1 trainer dropped). Judged over a window of steps, by evidence and not
by the bare share: one empty answer in a hundred is above 0.5 % and means nothing.

*Share*: the log does not say how many answers a step has. The shares themselves tell: the smallest one other
than 0, or the smallest difference of two, is one answer (or a few, which makes the evidence weaker and never stronger).
The evidence is the probability of that many empty answers, or more, if the true share were the limit, or of so many
steps in a row above the limit; of all beginnings in the window that one counts from which on it is strongest. A run of
which a share of answers is empty from its first steps on is configured so: its limit is twice that share. A page needs
empty answers in ``page_steps`` steps.

*Dropped groups*: every one is an error of the rollout already, and how many groups a step has is not logged either.
Steps with dropped groups count, against one step in twenty.

Score: the share (or the share of steps that dropped groups); threshold: the limit. The confidence is one less the
probability, at most 0.99.

Reference: the exact one-sided test of a share (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934) and the best
beginning (M. Kulldorff, Communications in Statistics 26, 1997), as in :mod:`exporter.detectors.rollout_failures`; the
tail by H. Chernoff's bound, Annals of Mathematical Statistics 23, 1952.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.rollout_failures import WARNING_ALPHA

WARMUP: Final = 15
"""Steps of an attempt from which its own usual share is taken; none of them is judged."""
STEPS_LIMIT: Final = 0.05
_ANSWERS: Final = (16.0, 65_536.0)
"""Least and most answers that a step is taken to have."""
_ABOVE_BY_CHANCE: Final = math.log(0.65)
"""Of the probability, at most, that a step has more empty answers than its mean."""


class AbortedRollouts:
    """Share of empty answers, and dropped prompt groups, over a window of steps.

    ``limit``: the share that is too much. ``window``: steps. ``alpha``: probability of chance below which it may be a
    page. ``page_steps``: steps with failures that a page needs.

    >>> detector = AbortedRollouts()
    >>> for step in range(1, 60):
    ...     empty = 5 / 128 if step > 40 else (1 / 128 if step == 20 else 0.0)  # one of 128 answers is no finding
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"aborted_ratio": empty})):
    ...         print(step, v.severity.label, f"share {v.score:.1%}", "since", v.onset)
    ...     if step == 44: break
    42 warning share 3.9% since 41
    43 warning share 3.9% since 41
    44 critical share 3.9% since 41
    """

    name = "aborted_rollouts"

    def __init__(self, *, limit: float = 0.005, window: int = 50, alpha: float = 1e-6, page_steps: int = 4) -> None:
        more_than(self.name, "limit", limit, 0.0)
        at_most(self.name, "limit", limit, 1.0, "a share of all answers")
        at_least(self.name, "window", window, 5, whole=True)
        more_than(self.name, "alpha", alpha, 0.0)
        at_most(self.name, "alpha", alpha, WARNING_ALPHA, "what makes a warning")
        at_least(self.name, "page_steps", page_steps, 2, whole=True)
        at_most(self.name, "page_steps", page_steps, window, "window")
        self._limit, self._window, self._alpha, self._page_steps = limit, window, alpha, page_steps
        self._series = {signal: _Series(window) for signal in ("aborted_ratio", "rollout_evicted")}

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a signal that the step does not have is neither judged nor learned."""
        verdicts = []
        for signal, series in self._series.items():
            value = sample.signals.get(signal)
            if value is None or not 0.0 <= value < math.inf:
                continue
            if signal == "aborted_ratio":
                if value > 1.0:
                    continue
            elif value:
                value = 1.0
            if not series.push(sample.step, value):
                continue
            verdict = self._judge(signal, series)
            if verdict is not None:
                verdicts.append(verdict)
        return verdicts

    def _judge(self, signal: str, series: _Series) -> Verdict | None:
        shares = signal == "aborted_ratio"
        limit = max(self._limit if shares else STEPS_LIMIT, 2.0 * series.usual())
        answers = series.answers() if shares else 1.0
        rarest, share, failing, onset = math.log(WARNING_ALPHA), 0.0, 0, -1
        total, steps, bad = 0.0, 0, 0
        for step, value in reversed(series.recent):
            total += value
            steps += 1
            if value == 0.0:
                continue
            bad += 1
            count = int(total * answers + 1e-6)
            if bad >= 2 and count > limit * answers * steps:
                rarity = _log_tail(count, limit * answers * steps)
                if shares and bad == steps:
                    rarity = min(rarity, steps * _ABOVE_BY_CHANCE)
                if rarity < rarest:
                    rarest, share, failing, onset = rarity, total / steps, bad, step
        if onset < 0:
            return None
        chance = math.exp(max(rarest, -600.0))
        page = chance < self._alpha and failing >= self._page_steps
        newest = series.recent[-1][0]
        what = (
            f"{share:.2%} of the answers of the steps since {onset} are empty"
            if shares
            else f"{share:.0%} of the steps since {onset} dropped prompt groups whose rollout failed"
        )
        return Verdict(
            detector=self.name,
            signal=signal,
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=newest,
            onset=onset,
            score=share,
            threshold=limit,
            confidence=min(1.0 - chance, 0.99) if page else 0.4,
            summary=f"{what} (limit {limit:.2%}, in {failing} steps; by chance with probability {chance:.1g})",
            meaning=(
                "The rollout fails for part of the batch: what is left is smaller, and biased against whatever makes "
                "requests fail (long answers, most often). An empty answer is still scored and learned from."
            ),
            advice=(
                "the rollout servers' own logs, at the onset: out of memory, time-outs, aborted requests",
                "actor_rollout_ref.rollout.gpu_memory_utilization: lower it, where the servers run out of memory",
                "actor_rollout_ref.rollout.max_num_seqs: lower it, where requests time out",
                "data.max_prompt_length and data.truncation: a prompt that leaves no room gives an empty answer",
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget the steps of the attempt before: its failures are not the new one's."""
        self._series = {signal: _Series(self._window) for signal in self._series}

    def state_dict(self) -> dict[str, Any]:
        return {signal: series.state() for signal, series in self._series.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for signal in self._series:
            series = self._series[signal] = _Series(self._window)
            if signal in state:
                series.load(state[signal])


def _log_tail(count: int, mean: float) -> float:
    """Upper bound of the logarithm of the probability of ``count`` events or more where ``mean`` are expected.

    Chernoff's, for a count above the mean; unlike the probability it tells very small ones apart.
    """
    return count - mean - count * math.log(count / mean)


class _Series:
    """One signal: its first steps, its newest ones, and the smallest share other than 0."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._restart()

    def _restart(self) -> None:
        self.recent: deque[tuple[int, float]] = deque(maxlen=self._window)
        self._last_step = -1
        self._seen = 0
        self._nonzero = 0  # of the newest values
        self._first = 0.0  # sum over the steps of the warm-up
        self._smallest = 1.0  # share, or difference of two
        self._newest = 0.0  # share other than 0

    def push(self, step: int, value: float) -> bool:
        """Take a value; False where nothing needs judging."""
        if step < self._last_step:
            self._restart()
        elif step == self._last_step:
            return False
        self._last_step = step
        self._seen += 1
        if value > 0.0:
            apart = abs(value - self._newest)
            self._smallest = min(self._smallest, value, apart if apart > 1.0 / _ANSWERS[1] else value)
            self._newest = value
        if self._seen <= WARMUP:
            self._first += value
            return False
        if len(self.recent) == self._window and self.recent[0][1] > 0.0:
            self._nonzero -= 1
        self._nonzero += value > 0.0
        self.recent.append((step, value))
        return self._nonzero >= 2

    def usual(self) -> float:
        """Mean over the steps of the warm-up."""
        return self._first / WARMUP

    def answers(self) -> float:
        """Answers of a step: as many as make the smallest share one answer."""
        return min(max(1.0 / self._smallest, _ANSWERS[0]), _ANSWERS[1])

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`load`."""
        return {
            "recent": [list(pair) for pair in self.recent],
            "last_step": self._last_step,
            "seen": self._seen,
            "first": self._first,
            "smallest": self._smallest,
            "newest": self._newest,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self.recent.extend((int(step), float(value)) for step, value in state["recent"])
        self._nonzero = sum(value > 0.0 for _, value in self.recent)
        self._last_step, self._seen = state["last_step"], state["seen"]
        self._first, self._smallest, self._newest = state["first"], state["smallest"], state["newest"]
